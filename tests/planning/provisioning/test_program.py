from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.provisioning.program import CoverProgram, Method, _priced, largest_load_factor, relax, search_exactly
from hebe.planning.provisioning.provisioning import FleetOptions, make_program
from hebe_lab.baselines.provisioning_instance import generate_fleet


def generated(seed, models=5, server_types=8, load=1.0, set_up=0.0):
    options, demand = generate_fleet(models, server_types, seed)
    draw = np.random.default_rng(seed)
    previous = draw.integers(0, 3, options.qps.shape)
    return make_program(options, load * demand, previous=previous, set_up_cost=set_up)


@pytest.mark.parametrize("seed", [0, 7, 92])
def test_the_largest_load_is_no_less_than_that_of_fractions_rounded_down(seed):
    """HiGHS told half of it, as optimal, where the load factor was far below 1 in the program's unit."""
    draw = np.random.default_rng(seed)
    shape = int(draw.integers(25, 60)), int(draw.integers(4, 8))
    qps, power = draw.uniform(50, 2000, shape), draw.uniform(100, 400, shape)
    names = [tuple(f"{kind}{number}" for number in range(size)) for kind, size in zip("mt", shape, strict=True)]
    options = FleetOptions(*names, qps, power, draw.integers(20, 100, shape[1]))
    demand = draw.uniform(0.2, 1, shape[0]) * qps.mean(axis=1) * options.available.sum() / shape[0]
    program = make_program(options, demand)
    rounded = largest_load_factor(program, 0.0)
    for limit_s in (2.0, 30.0):  # HiGHS counts real time, of which a busy machine gives it little
        found = largest_load_factor(program, limit_s)
        if found.whole > max(rounded.whole, 0.85 * found.fractional):
            break
    assert rounded.whole < found.whole <= found.most <= found.fractional == rounded.most
    assert found.whole > 0.85 * found.fractional


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 5.0, 500.0]))
def test_the_bound_is_the_value_of_the_fractions(seed, set_up):
    program = generated(seed, set_up=set_up)
    found = relax(program)
    assert found.bound == pytest.approx(program.value(found.counts), rel=1e-6)
    covered = (program.qps * found.counts).sum(axis=1)
    np.testing.assert_array_less(program.demand * (1 - 1e-6), covered)
    np.testing.assert_array_less(found.counts.sum(axis=0), program.available + 1e-6)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000))
def test_interior_point_and_simplex_agree(seed):
    program = generated(seed, set_up=3.0)
    assert relax(program, Method.INTERIOR_POINT).bound == pytest.approx(relax(program).bound, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 5.0, 500.0]))
def test_a_plan_costs_the_bound_and_its_reduced_costs(seed, set_up):
    """What fixing columns by reduced cost rests on: of any plan, whatever it is, if only it meets the demand."""
    program = generated(seed, load=0.5, set_up=set_up)
    found = relax(program)
    shares = np.random.default_rng(seed).dirichlet(np.ones(5), len(program.available)).T
    counts = np.floor(shares * program.available)
    if not program.is_met(counts):
        counts = np.ceil(found.counts)
    counts = np.where(np.isfinite(found.reduced_cost), counts, 0)
    kept = np.minimum(counts, program.previous) if set_up else np.zeros_like(counts)
    reduced = np.where(counts - kept > 0, found.reduced_cost, 0) * (counts - kept)
    kept_reduced = np.where(kept > 0, np.maximum(found.kept_reduced_cost, 0), 0) * kept
    if program.is_met(counts):
        assert program.value(counts) >= found.bound + reduced.sum() + kept_reduced.sum() - 1e-6 * found.bound


def test_prices_say_what_a_server_and_a_query_are_worth():
    # model-1 pays 100 watts for 100 queries/s without T1, 120 for 400 with it
    program = CoverProgram(
        np.array([[100.0, 200.0], [100.0, 400.0]]),
        np.array([[100.0, 120.0], [100.0, 120.0]]),
        np.zeros((2, 2)),
        np.zeros((2, 2), dtype=np.int64),
        np.array([70, 5]),
        np.array([1000.0, 3000.0]),
    )
    found = relax(program)
    np.testing.assert_allclose(found.demand_price, [1.0, 1.0])
    np.testing.assert_allclose(found.type_price, [0.0, 280.0], atol=1e-9)
    np.testing.assert_allclose(found.reduced_cost, [[0.0, 200.0], [0.0, 0.0]], atol=1e-9)
    assert found.bound == pytest.approx(2600)


def test_what_cannot_be_met_has_no_relaxation():
    assert relax(generated(0, load=100.0)) is None
    options, demand = generate_fleet(2, 2, 0)
    assert relax(make_program(options, 0 * demand)).bound == 0


def test_exact_search_beats_what_it_is_told_to_or_proves_that_nothing_does():
    options, demand = generate_fleet(3, 4, 1)
    program = make_program(options, demand)
    relaxed = relax(program)
    best = search_exactly(program, relaxed, np.inf, 0.0, 20.0)
    assert program.is_met(best.counts)
    value = program.value(best.counts)
    assert best.bound == pytest.approx(value, rel=1e-6)
    again = search_exactly(program, relaxed, value * 1.001, 0.0, 20.0)
    assert program.value(again.counts) == pytest.approx(value)
    lower = search_exactly(program, relaxed, 0.5 * (relaxed.bound + value), 0.0, 20.0)
    assert lower.bound >= value * (1 - 1e-9) or lower.counts is None
    assert search_exactly(program, relaxed, np.inf, 0.0, 20.0, most_columns=3) is None


def test_exact_search_keeps_what_a_plan_of_just_the_value_to_beat_needs():
    """A whole second server costs 0.9 beyond its worth at the relaxation's prices: all that there is to spare."""
    program = CoverProgram(
        np.array([[4.0, 7.0]]), np.array([[4.0, 7.9]]), np.zeros((1, 2)), np.zeros((1, 2), dtype=np.int64),
        np.array([9, 9]), np.array([7.0]),
    )  # fmt: skip
    relaxed = relax(program)
    assert relaxed.bound == pytest.approx(7.0)
    found = search_exactly(program, relaxed, 7.9, 0.0, 20.0)
    assert found.counts.tolist() == [[0, 1]]
    assert found.bound == pytest.approx(7.9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.5, 3.0), st.sampled_from([0.0, 5.0]))
def test_the_bound_holds_at_any_prices_of_the_demand(seed, factor, set_up):
    """Even where a server were worth more than it costs at them."""
    program = generated(seed, set_up=set_up)
    found = relax(program)
    priced = _priced(program, found.counts, factor * found.demand_price, found.type_price)
    assert priced.bound <= found.bound * (1 + 1e-6)
    assert priced.reduced_cost.min() >= -1e-9


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000))
def test_the_largest_load_fits_and_more_does_not(seed):
    program = generated(seed, models=3, server_types=4)
    factor = largest_load_factor(program, 5.0)
    assert 1 <= factor.whole <= factor.fractional * (1 + 1e-6)
    demand = program.demand
    served = (program.qps * factor.counts).sum(axis=1)
    np.testing.assert_array_less(factor.whole * demand * (1 - 1e-9), served)
    assert (factor.counts.sum(axis=0) <= program.available).all()
    assert factor.models
    assert factor.types
    scaled = [
        CoverProgram(program.qps, program.cost, program.set_up, program.previous, program.available, demand * scale)
        for scale in (factor.fractional * 0.999, factor.fractional * 1.001)
    ]
    assert relax(scaled[0]) is not None
    assert relax(scaled[1]) is None
