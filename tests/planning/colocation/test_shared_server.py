from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.colocation.colocation import share_server
from hebe.planning.colocation.shared_server import (
    BandwidthContention,
    ScalabilityTables,
    ServerResources,
    all_sets,
    best_splits,
    splits_of,
)
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

from .scalability import (
    BANDWIDTH_BOUND,
    CACHE_BOUND,
    CAPACITY_BOUND,
    COMPUTE_BOUND,
    SERVER,
    profile,
    small_fleets,
    tables,
)

HALF = profile("half", 100.0, memory_limit=8, memory=1e9)
"""Of eight workers, which are all that fit half of a server."""


def served_together(made, members, cores, ways):
    """What each member of a set serves in one split; None if it does not fit."""
    server, contention = made.server, made.contention
    if sum(cores) > server.cores or sum(ways) > server.cache_ways:
        return None
    if sum(made.memory[model, count] for model, count in zip(members, cores, strict=True)) > server.memory_bytes:
        return None
    demands = [contention.demand[model, count] for model, count in zip(members, cores, strict=True)]
    slowdown = float(np.interp(sum(demands), contention.demands, contention.slowdowns))
    factors = [1 + contention.share[m, count] * (slowdown - 1) for m, count in zip(members, cores, strict=True)]
    moved = sum(demand / factor for demand, factor in zip(demands, factors, strict=True))
    fit = server.bandwidth_bytes_per_s / max(moved, server.bandwidth_bytes_per_s)
    return [
        made.qps[model, count, part] * min(1.0, contention.alone[model, count] / factor) * fit
        for model, count, part, factor in zip(members, cores, ways, factors, strict=True)
    ]


def best_by_trying(made, members, weights):
    """The largest worth over all partitions; -inf if none fits."""
    size, best = len(members), -np.inf
    for cores in product(range(1, made.server.cores + 1), repeat=size):
        for ways in product(range(1, made.server.cache_ways + 1), repeat=size):
            served = served_together(made, members, cores, ways)
            if served is not None:
                best = max(best, sum(weights[model] * rate for model, rate in zip(members, served, strict=True)))
    return best


@settings(max_examples=25)
@given(
    small_fleets(least=3, most=3, cores=4, ways=3), st.lists(st.floats(0, 2), min_size=3, max_size=3), st.integers(1, 3)
)
def test_the_best_split_is_worth_what_the_best_of_all_is(made, weights, size):
    """Where memory is short all partitions are tried; else only those that leave no core idle: more is never worse
    without contention, and with it a core fewer can be worth more, by a little."""
    weights = np.array(weights)
    sets = all_sets(3, size)
    splits = best_splits(made, sets, weights)
    for row, members in enumerate(sets):
        best = best_by_trying(made, members, weights)
        if best == -np.inf:
            assert splits.value[row] == -np.inf
        else:
            assert splits.value[row] <= best * (1 + 1e-9) + 1e-12
            served = served_together(made, members, splits.cores[row], splits.cache_ways[row])
            np.testing.assert_allclose(splits.qps[row], served, rtol=1e-9)
            assert splits.value[row] == pytest.approx((weights[members] * served).sum(), rel=1e-9, abs=1e-12)


@given(small_fleets(least=2), st.data())
def test_a_split_can_be_had(made, data):
    """Cores, ways, memory and bandwidth suffice."""
    size = data.draw(st.integers(1, min(len(made.models), 3)))
    weights = np.array([data.draw(st.floats(0, 2)) for _ in made.models])
    sets = all_sets(len(made.models), size)
    splits = best_splits(made, sets, weights)
    for row, members in enumerate(sets):
        if splits.value[row] == -np.inf:
            continue
        cores, ways, qps = splits.cores[row], splits.cache_ways[row], splits.qps[row]
        assert (cores >= 1).all() and (ways >= 1).all()  # noqa: PT018
        assert cores.sum() <= made.server.cores
        assert ways.sum() <= made.server.cache_ways
        assert made.memory[members, cores].sum() <= made.server.memory_bytes
        assert (qps <= made.qps[members, cores, ways] * (1 + 1e-12)).all()


def test_a_split_gives_cores_to_who_uses_them():
    made = tables(CAPACITY_BOUND, CACHE_BOUND)
    splits = best_splits(made, np.array([[0, 1]]), np.array([1 / 40, 1 / 16_000]))
    assert splits.cores.tolist() == [[8, 8]]
    assert splits.value[0] == pytest.approx(splits.qps[0] @ [1 / 40, 1 / 16_000])


def test_idle_cores_can_be_the_price_of_fitting():
    wide = profile("wide", 1.0, memory=30e9, memory_limit=6)
    made = tables(wide, CAPACITY_BOUND)
    splits = best_splits(made, np.array([[0, 1]]), np.array([1.0, 1.0]))
    assert made.memory[[0, 1], splits.cores[0]].sum() <= SERVER.memory_bytes
    assert splits.cores.tolist() == [[1, 7]]


def test_memory_may_leave_each_model_a_single_core():
    """100 GB for two models of 40 GB a worker."""
    heavy = [profile(name, 1.0, memory=40e9, memory_limit=2) for name in "ab"]
    made = tables(*heavy, server=ServerResources(16, 11, 100e9, 100e9))
    splits = best_splits(made, np.array([[0, 1]]), np.ones(2))
    assert splits.cores.tolist() == [[1, 1]]
    assert splits.value.tolist() == [2.0]


def test_what_cannot_fit_together_is_said_to_be_worth_nothing():
    heavy = [profile(name, 1.0, memory=150e9, memory_limit=1) for name in "ab"]
    made = tables(*heavy, COMPUTE_BOUND)
    splits = best_splits(made, all_sets(3, 2), np.ones(3))
    assert splits.value[0] == -np.inf
    assert np.isfinite(splits.value[1:]).all()


def test_more_models_than_cores_or_ways_never_fit():
    made = tables(
        *(profile(f"m{number}", 1.0, memory_limit=2) for number in range(3)), server=ServerResources(2, 11, 1e11)
    )
    assert splits_of(made, 3) == 0
    assert best_splits(made, all_sets(3, 3), np.ones(3)).value.tolist() == [-np.inf]


def test_workers_that_bring_nothing_are_not_used():
    made = tables(BANDWIDTH_BOUND, CAPACITY_BOUND, CACHE_BOUND)
    assert made.workers[:, 16].tolist() == [10, 8, 16]
    assert made.memory[1, 16] == 8 * 24e9
    np.testing.assert_allclose(made.alone, [200, 40, 16_000])


def test_a_server_with_less_memory_has_room_for_fewer_workers():
    made = tables(CAPACITY_BOUND, server=ServerResources(16, 11, 100e9, 100e9))
    assert made.workers[0, 16] == 4
    assert made.alone[0] == 20


def test_a_worker_takes_all_of_its_cores():
    """As the same model measured with workers of one core, at those counts at which a worker is whole."""
    fine = profile("m", 10.0, one_way=0.5)
    at = [3, 7, 11, 15]
    rows = [fine.qps_by_cache_ways[place] for place in at]
    qps, traffic, memory = ([part[place] for place in at] for part in (fine.qps, fine.bandwidth_bytes_per_s, fine.qps))
    coarse = ScalabilityProfile("m", (1, 2, 3, 4), qps, traffic, fine.cache_ways, rows, memory, cores_per_worker=4)
    made = tables(coarse, COMPUTE_BOUND)
    assert made.workers[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4]
    assert made.cores_per_worker.tolist() == [4, 1]
    of_one_core = tables(fine, COMPUTE_BOUND)
    whole = [0, 4, 8, 12, 16]
    np.testing.assert_allclose(made.qps[0, whole], of_one_core.qps[0, whole])
    np.testing.assert_allclose(made.qps[0, 7], made.qps[0, 4])
    np.testing.assert_allclose(made.contention.share[:, whole], of_one_core.contention.share[:, whole])
    only = made.only(np.array([1]))
    assert only.cores_per_worker.tolist() == [1]
    shared = share_server(tables(coarse, replace(coarse, model="n")), ("m", "n"))
    assert sum(tenant.cores for tenant in shared.tenants) == 16
    assert [tenant.cores_per_worker for tenant in shared.tenants] == [4, 4]
    assert shared.utilization <= 1 + 1e-9, "neither cache nor cores are there twice"


@given(st.integers(1, 7), st.integers(1, 4))
def test_every_set_once(count, size):
    sets = all_sets(count, size)
    assert len({tuple(row) for row in sets.tolist()}) == len(sets)
    assert all((np.diff(row) > 0).all() for row in sets)


@pytest.mark.parametrize(
    ("profiles", "server", "message"),
    [
        ([], SERVER, "profiles: there is none"),
        ([CACHE_BOUND, CACHE_BOUND], SERVER, "profiles: model cache-bound has more than one"),
        ([CACHE_BOUND], ServerResources(8, 11, 1e11), "cache-bound: workers go up to 16: the server has 8 cores"),
        (
            [ScalabilityProfile("huge", (10**12,), (1.0,), (1.0,), (11,), ((1.0,),))],
            SERVER,
            "huge: workers go up to 1000000000000: the server has 16 cores",
        ),
        (
            [ScalabilityProfile("m", (1, 4), (1.0, 4.0), (1.0, 4.0), (11,), ((), (4.0,)), cores_per_worker=5)],
            SERVER,
            "m: workers go up to 4 of 5 cores each: the server has 16 cores",
        ),
        (
            [ScalabilityProfile("m", (16,), (1.0,), (1.0,), (11,), ((1.0,),))],
            SERVER,
            r"m: memory_bytes is not known, but the server's is, 2e\+11: profile the model again, or leave out",
        ),
        (
            [ScalabilityProfile("huge", (16,), (1.0,), (1.0,), (10**12,), ((1.0,),))],
            SERVER,
            "huge: cache_ways go up to 1000000000000: the server has 11",
        ),
        ([CACHE_BOUND], ServerResources(16, 12, 1e11), "cache-bound: cache_ways go up to 11: the server has 12"),
        (
            [CACHE_BOUND],
            ServerResources(16, 11, 1e9),
            r"bandwidth_bytes_per_s goes up to 1.6e\+10: the server has 1e\+09",
        ),
        ([CAPACITY_BOUND], ServerResources(16, 11, 1e11, 1e9), r"memory_bytes is 2.4e\+10 with one worker"),
        (
            [ScalabilityProfile("m", (1, 2), (1.0, 2.0), (0.0, 0.0), (11,), ((), (2.0,)), (1e10, 2e8))],
            SERVER,
            r"profile of m: memory_bytes falls from 1e\+10 with 1 workers to 2e\+08 with 2",
        ),
        ([HALF], SERVER, "half: workers go up to 8: the server has cores and memory for more; profile the model with"),
        ([replace(HALF, memory_bytes=())], ServerResources(16, 11, 1e11), "half: workers go up to 8: the server has"),
        (
            [ScalabilityProfile("m", (1, 4), (1.0, 4.0), (1.0, 4.0), (11,), ((), (4.0,)), cores_per_worker=3)],
            ServerResources(16, 11, 1e11),
            "m: workers go up to 4: the server has cores and memory for more",
        ),
    ],
)
def test_profiles_of_another_server_are_refused(profiles, server, message):
    with pytest.raises(PlanningError, match=message):
        ScalabilityTables.of(profiles, server)


@pytest.mark.parametrize(
    ("made", "server"),
    [
        (HALF, ServerResources(16, 11, 1e11, 8.9e9)),
        (replace(HALF, cores_per_worker=2), SERVER),
        (replace(HALF, memory_bytes=tuple(20e9 + bytes_ for bytes_ in HALF.memory_bytes)),
         ServerResources(16, 11, 1e11, 28.9e9)),
    ],
)  # fmt: skip
def test_a_profile_that_stops_where_cores_or_memory_do_is_of_the_whole_server(made, server):
    assert ScalabilityTables.of([made], server).alone.tolist() == [800.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 11, 1e11), "server: cores is 0"),
        ((2.5, 11, 1e11), "server: cores is 2.5"),
        ((16, True, 1e11), "server: cache_ways is True"),
        ((16, 11, 0.0), "server: bandwidth_bytes_per_s is 0.0"),
        ((16, 11, float("nan")), "server: bandwidth_bytes_per_s is nan"),
        ((16, 11, 1e11, -1), "server: memory_bytes is -1"),
        ((10**12, 11, 1e11), "server: cores is 1,000,000,000,000: must be at most 768"),
        ((16, 64, 1e11), "server: cache_ways is 64: must be at most 32"),
    ],
)
def test_a_server_that_is_none_is_refused(fields, message):
    with pytest.raises(PlanningError, match=message):
        ServerResources(*fields)


def test_an_unknown_model_is_named():
    with pytest.raises(PlanningError, match="model ncf: has no scalability profile"):
        tables().index_of("ncf")


COUNTS = np.arange(17.0)


BANDWIDTH = 100.0


def slowed(traffic):
    """A memory that takes twice as long at its full bandwidth, and half of that rise at 0.84 of it."""
    return 1 + (traffic / BANDWIDTH) ** 4


def alone(a_worker, workers, share=1.0):
    """Traffic of so many workers that would each move `a_worker`, were memory unloaded."""
    traffic = 0.0
    for _ in range(500):
        factor = 1 + share * (slowed(traffic) - 1)
        traffic = 0.7 * traffic + 0.3 * min(a_worker * workers / factor, BANDWIDTH)
    return traffic


HUNGRY = np.array([alone(8.0, count) for count in COUNTS])


MODEST = np.array([alone(2.0, count, share=0.25) for count in COUNTS])


CONTENTION = BandwidthContention.of(
    np.stack([HUNGRY, MODEST]), np.stack([HUNGRY, MODEST]), np.stack([COUNTS, COUNTS]), BANDWIDTH
)


def kept(*members):
    at = ([model for model, _ in members], [count for _, count in members])
    return CONTENTION.kept(*(part[at][None, :] for part in (CONTENTION.demand, CONTENTION.share, CONTENTION.alone)))[0]


def test_the_memory_s_slowdown_is_read_off_the_hungriest_model():
    moved = CONTENTION.demands / CONTENTION.slowdowns
    measured = (moved > 40) & (moved < HUNGRY[-1] + 1e-6)
    np.testing.assert_allclose(CONTENTION.slowdowns[measured], slowed(moved[measured]), rtol=0.05)


def test_a_model_beside_itself_does_as_on_all_cores():
    together = kept((0, 8), (0, 8))
    np.testing.assert_allclose(together, HUNGRY[16] / 2 / HUNGRY[8], rtol=0.01)


def test_two_models_slow_each_other_down_as_the_memory_does():
    """Against the fixed point of the memory that both share, which planning never saw."""
    traffic = np.array([60.0, 10.0])
    for _ in range(2000):
        factor = 1 + np.array([1.0, 0.25]) * (slowed(traffic.sum()) - 1)
        traffic = 0.9 * traffic + 0.1 * np.array([8.0 * 8, 2.0 * 8]) / factor
    truth = traffic / [HUNGRY[8], MODEST[8]]
    np.testing.assert_allclose(kept((0, 8), (1, 8)), truth, rtol=0.03)


def test_nobody_is_slowed_down_while_there_is_little_traffic():
    np.testing.assert_allclose(kept((1, 8), (1, 8)), 1.0, rtol=0.01)
    assert CONTENTION.quiet_bytes_per_s > 0


def test_a_single_model_keeps_everything():
    for model in (0, 1):
        for count in (1, 8, 16):
            assert kept((model, count))[0] == pytest.approx(1.0)


def test_a_model_with_little_traffic_a_core_keeps_everything_near_the_full_bandwidth_too():
    """Between the curve's knots its factor comes out below that measured alone: 98 GB/s would be 101."""
    traffic = np.array([[0.0, 70.0, 99.0], [0.0, 24.5, 98.0]])
    busy = np.array([[0.0, 1.0, 2.0], [0.0, 4.0, 8.0]])
    made = BandwidthContention.of(traffic, traffic, busy, BANDWIDTH)
    assert made.kept(*(part[[1], [2]][None] for part in (made.demand, made.share, made.alone))) == pytest.approx(1.0)


@given(small_fleets(), st.data())
def test_any_single_model_keeps_everything(made, data):
    contention = made.contention
    at = ([data.draw(st.integers(0, len(made.models) - 1))], [data.draw(st.integers(0, made.server.cores))])
    shares = contention.kept(contention.demand[at][None], contention.share[at][None], contention.alone[at][None])
    assert shares == pytest.approx(1.0)


@given(small_fleets(least=2), st.data())
def test_all_together_move_no_more_than_there_is(made, data):
    contention = made.contention
    members = [data.draw(st.integers(0, len(made.models) - 1)) for _ in range(3)]
    counts = [data.draw(st.integers(0, made.server.cores)) for _ in members]
    at = (members, counts)
    shares = contention.kept(contention.demand[at][None], contention.share[at][None], contention.alone[at][None])[0]
    assert (shares > 0).all()
    assert (shares <= 1).all()
    traffic = contention.demand[at] / contention.alone[at]
    assert (shares * traffic).sum() <= contention.bandwidth_bytes_per_s * (1 + 1e-9)


def test_a_profile_that_is_cut_off_at_the_full_bandwidth_knows_no_slowdown_before():
    """Ten workers move 95 of 100 GB/s, more workers no more: nothing but the end of the bandwidth is seen."""
    made = tables(BANDWIDTH_BOUND, COMPUTE_BOUND, CACHE_BOUND).contention
    assert made.quiet_bytes_per_s == pytest.approx(100e9)
    at = ([0, 1], [10, 6])
    np.testing.assert_allclose(made.kept(made.demand[at][None], made.share[at][None], made.alone[at][None]), 1.0)


def test_models_that_move_nothing_have_no_contention():
    none = np.zeros((2, 17))
    idle = BandwidthContention.of(np.ones((2, 17)), none, np.stack([COUNTS, COUNTS]), BANDWIDTH)
    np.testing.assert_array_equal(idle.kept(none[:, :2], none[:, :2], none[:, :2] + 1), 1.0)
