"""The matching against SciPy's, which is exact: same total cost, for every shape and however many ties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import hebe.scheduling.fleet.assignment
from hebe.scheduling.fleet.assignment import busy_columns, match_queries, matching_cost


@pytest.fixture(params=["as it chooses", "prices and paths"])
def _way(request, monkeypatch):
    """Both ways of solving, also for sizes that would go the other."""
    if request.param == "prices and paths":
        monkeypatch.setattr(hebe.scheduling.fleet.assignment, "_SCIPY_WORK", -1)


def check(cost, counts):
    """The matching is one, matches as many as can be, and costs what SciPy's does."""
    matched = match_queries(cost, counts)
    assert matched.dtype == np.int64
    assert matched.shape == cost.shape[:1]
    queries = np.flatnonzero(matched >= 0)
    assert queries.size == min(len(cost), counts.sum())
    assert (np.bincount(matched[queries], minlength=counts.size) <= counts).all()
    rows, columns = linear_sum_assignment(np.repeat(cost, np.minimum(counts, len(cost)), axis=1))
    best = np.repeat(cost, np.minimum(counts, len(cost)), axis=1)[rows, columns].sum()
    assert cost[queries, matched[queries]].sum() == pytest.approx(best, rel=1e-9, abs=1e-12)
    return matched


@st.composite
def problems(draw):
    """Cost and counts: continuous, of few values, alike in many rows or columns, or of a wide range; any counts."""
    queries, types = draw(st.integers(0, 40)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cost = rng.random((queries, types))
    form = draw(st.sampled_from(["continuous", "ties", "equal rows", "equal columns", "wide", "negative"]))
    if form == "ties":
        cost = np.floor(4 * cost)
    elif form == "equal rows" and queries:
        cost = cost[rng.integers(0, max(queries // 5, 1), queries)]
    elif form == "equal columns":
        cost = cost[:, rng.integers(0, max(types // 2, 1), types)]
    elif form == "wide":
        cost = np.exp(8 * cost)
    elif form == "negative":
        cost -= 0.5
    if draw(st.booleans()):
        cost[rng.random(cost.shape) < draw(st.sampled_from([0.1, 0.5, 0.9]))] = 10.0  # the penalty of lateness
    counts = draw(st.lists(st.integers(0, 30), min_size=types, max_size=types))
    return cost, np.array(counts, np.int64)


@pytest.mark.usefixtures("_way")
@given(problems())
def test_the_cost_is_the_least(problem):
    check(*problem)


def kairos_problem(rng, queries, instances, types):
    """Costs as Kairos has them: sizes rounded to tens, latency linear in them, and late queries all at one price."""
    sizes = 10 * np.ceil(np.clip(rng.lognormal(5.2, 0.7, queries), 1, 1000) / 10)
    fixed_s = np.sort(rng.uniform(2e-3, 2e-2, types))
    per_item_s = np.sort(rng.uniform(5e-5, 6e-4, types))
    largest_s = fixed_s + 1000 * per_item_s
    service_s = fixed_s + per_item_s * sizes[:, None]
    cost = matching_cost(service_s, rng.uniform(0, 0.3, queries), largest_s[0] / largest_s, 0.35)
    return cost, rng.multinomial(instances, rng.dirichlet(np.full(types, 3.0)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("queries", "instances", "types"),
    [(300, 300, 4), (300, 200, 4), (200, 300, 4), (300, 300, 6), (250, 300, 2), (150, 150, 1), (120, 150, 30)],
)
def test_large_problems_of_kairos(seed, queries, instances, types):
    check(*kairos_problem(np.random.default_rng(seed), queries, instances, types))


@pytest.mark.parametrize(("queries", "instances"), [(300, 300), (400, 300), (300, 400)])
def test_large_problems_of_ties_only(queries, instances):
    rng = np.random.default_rng(7)
    cost = rng.integers(0, 3, (queries, 4)).astype(np.float64)
    check(cost, rng.multinomial(instances, [0.1, 0.2, 0.3, 0.4]))
    check(np.ones((queries, 4)), rng.multinomial(instances, [0.1, 0.2, 0.3, 0.4]))


@pytest.mark.usefixtures("_way")
def test_the_query_that_gains_most_gets_the_fast_instance():
    cost = np.array([[1.0, 1.1], [2.0, 9.0], [1.0, 1.5]])
    assert match_queries(cost, np.array([1, 2])).tolist() == [1, 0, 1]
    assert match_queries(cost, np.array([1, 0])).tolist() in ([0, -1, -1], [-1, -1, 0])
    assert match_queries(cost, np.array([0, 0])).tolist() == [-1, -1, -1]
    assert match_queries(cost, np.array([0, 7])).tolist() == [1, 1, 1]


@pytest.mark.usefixtures("_way")
def test_nothing_to_match():
    assert match_queries(np.empty((0, 3)), np.array([1, 2, 3])).tolist() == []
    assert match_queries(np.empty((2, 0)), np.empty(0, np.int64)).tolist() == [-1, -1]


@pytest.mark.usefixtures("_way")
def test_the_arguments_are_left_alone():
    cost, counts = kairos_problem(np.random.default_rng(1), 40, 50, 4)
    before = cost.copy(), counts.copy()
    assert (match_queries(cost, counts) == match_queries(np.asfortranarray(cost), counts)).all()
    assert (cost == before[0]).all()
    assert (counts == before[1]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_costs_that_are_not_finite_are_refused(value):
    cost = np.ones((3, 2))
    cost[1, 1] = value
    with pytest.raises(ValueError, match="every cost must be finite"):
        match_queries(cost, np.array([1, 1]))


def test_counts_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"counts \[1, -1\]: must not be negative"):
        match_queries(np.ones((3, 2)), np.array([1, -1]))
    with pytest.raises(ValueError, match=r"cost \(3, 2\) and counts \(3,\)"):
        match_queries(np.ones((3, 2)), np.array([1, 1, 1]))


def test_the_matrix_weighs_time_by_type_and_prices_lateness():
    service_s = np.array([[0.1, 0.2], [0.5, 0.9], [0.2, 0.3]])
    cost = matching_cost(service_s, np.array([0.0, 0.0, 0.75]), np.array([1.0, 0.5]), 1.0)
    assert cost == pytest.approx(np.array([[0.1, 0.1], [0.5, 0.45], [0.2, 5.0]]))


def test_the_safeguard_counts_as_late_what_would_be_nearly_late():
    service_s = np.array([[0.97], [0.99]])
    assert matching_cost(service_s, np.zeros(2), np.ones(1), 1.0) == pytest.approx(np.array([[0.97], [10.0]]))
    assert matching_cost(service_s, np.zeros(2), np.ones(1), 1.0, safeguard=1.0)[1] == pytest.approx(0.99)


def test_what_ends_exactly_at_the_safeguard_is_in_time():
    """Binary fractions, which are exact: half of 1 s, of which the second query waited a quarter."""
    cost = matching_cost(np.array([[0.5], [0.25]]), np.array([0.0, 0.25]), np.ones(1), 1.0, safeguard=0.5)
    assert cost.tolist() == [[0.5], [0.25]]


def test_busy_instances_are_columns_of_their_own():
    service_s = np.array([[0.1, 0.2], [0.5, 0.6]])
    cost = matching_cost(
        service_s,
        np.zeros(2),
        np.array([1.0, 0.5]),
        1.0,
        busy_types=np.array([1, 0, 1]),
        busy_remaining_s=np.array([0.1, 0.2, 0.5]),
    )
    assert cost == pytest.approx(np.array([[0.1, 0.1, 0.15, 0.3, 0.35], [0.5, 0.3, 0.35, 0.7, 5.0]]))
    assert service_s.tolist() == [[0.1, 0.2], [0.5, 0.6]]


def test_few_busy_instances_are_not_merged():
    kinds, remaining_s = np.array([1, 0, 1]), np.array([0.1, 0.2, 0.5])
    types, free_s, counts = busy_columns(20, 1, kinds, remaining_s)
    assert types.tolist() == kinds.tolist()
    assert free_s.tolist() == remaining_s.tolist()
    assert counts == [1, 1, 1]


def test_many_busy_instances_of_a_type_are_one_column_free_after_their_mean_time():
    kinds = np.repeat([0, 2], [60, 90])
    remaining_s = np.concatenate((np.linspace(0.0, 0.2, 60), np.linspace(0.0, 0.4, 90)))
    types, free_s, counts = busy_columns(200, 1, kinds, remaining_s)
    assert types.tolist() == [0, 2]
    assert free_s == pytest.approx([0.1, 0.2])
    assert counts == [60, 90]


def test_busy_instances_are_merged_only_where_the_matching_is_large():
    kinds, remaining_s = np.zeros(200, np.int64), np.linspace(0.0, 1.0, 200)
    assert busy_columns(5, 1, kinds, remaining_s)[2] == [1] * 200
    assert busy_columns(200, 1, kinds, remaining_s)[2] == [200]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 20))
def test_instances_that_are_free_at_the_same_time_lose_nothing_by_being_merged(seed, queries, busy):
    rng = np.random.default_rng(seed)
    service_s, waited_s = rng.uniform(0.01, 0.5, (queries, 3)), rng.uniform(0.0, 0.9, queries)
    kinds, idle = rng.integers(0, 3, busy), rng.integers(0, 5, 3)
    remaining_s = np.array([0.1, 0.2, 0.3])[kinds]
    least = []
    with pytest.MonkeyPatch.context() as patch:
        for most_work in (np.inf, -1):
            patch.setattr(hebe.scheduling.fleet.assignment, "_MOST_WORK", most_work)
            types, free_s, counts = busy_columns(queries, int(idle.sum()), kinds, remaining_s)
            cost = matching_cost(
                service_s, waited_s, np.array([1.0, 0.5, 0.2]), 1.0, busy_types=types, busy_remaining_s=free_s
            )
            matched = match_queries(cost, np.array([*idle, *counts]))
            least.append(cost[np.flatnonzero(matched >= 0), matched[matched >= 0]].sum())
    assert least[0] == pytest.approx(least[1])


def test_late_costs_ten_slas_and_no_less_than_is_asked_for():
    """Eq. 8; 0.2 s on a type of coefficient 0.05 is late, and so is the first once a worker of it is free."""
    service_s = np.array([[0.05, 0.2]])
    busy = {"busy_types": np.array([0]), "busy_remaining_s": np.array([0.06])}
    paper = matching_cost(service_s, np.zeros(1), np.array([1.0, 0.05]), 0.1, **busy)
    np.testing.assert_allclose(paper, [[0.05, 0.05, 1.0]])
    dear = matching_cost(service_s, np.zeros(1), np.array([1.0, 0.05]), 0.1, **busy, late_at_least=1.0)
    np.testing.assert_allclose(dear, [[0.05, 0.1, 1.0]])
