from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.provisioning.program import CoverProgram, relax
from hebe.planning.provisioning.provisioning import make_program
from hebe.planning.provisioning.rounding import Rounding
from hebe_lab.baselines.provisioning_instance import generate_fleet


def rounded(program, rounds=0, seed=0):
    relaxed = relax(program)
    rounding = Rounding(program, relaxed, relaxed.counts, np.random.default_rng(seed))
    rounding.round()
    rounding.improve(rounds, 0.0)
    return rounding, relaxed


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 10.0]))
def test_a_rounded_plan_is_one_and_improvement_never_makes_it_dearer(seed, set_up):
    options, demand = generate_fleet(6, 10, seed)
    previous = np.random.default_rng(seed).integers(0, 5, options.qps.shape)
    program = make_program(options, demand, previous=previous, set_up_cost=set_up)
    first, relaxed = rounded(program)
    better, _ = rounded(program, rounds=40)
    for rounding in (first, better):
        assert len(rounding.short_models) == 0
        assert program.is_met(rounding.counts)
        assert (rounding.counts >= 0).all()
    assert relaxed.bound <= better.value <= first.value + 1e-9 * first.value


@pytest.mark.parametrize("seed", range(3))
def test_large_fleets_come_near_their_bound(seed):
    options, demand = generate_fleet(30, 120, seed)
    rounding, relaxed = rounded(make_program(options, demand))
    assert rounding.value / relaxed.bound - 1 < 0.01


def test_a_model_that_is_short_takes_what_another_can_do_without():
    # only T0 serves model-1, but model-0 begins with all of them
    program = CoverProgram(
        np.array([[10.0, 10.0], [10.0, 0.0]]),
        np.array([[1.0, 2.0], [1.0, 1.0]]),
        np.zeros((2, 2)),
        np.zeros((2, 2), dtype=np.int64),
        np.array([2, 2]),
        np.array([20.0, 20.0]),
    )
    rounding = Rounding(program, relax(program), np.array([[2, 0], [0, 0]]), np.random.default_rng(0))
    np.testing.assert_array_equal(rounding.short_models, [1])
    rounding.improve(50, 0.0)
    np.testing.assert_array_equal(rounding.counts, [[0, 2], [2, 0]])


def test_what_nothing_can_cover_is_reported_short():
    options, demand = generate_fleet(2, 3, 0)
    relaxed = relax(make_program(options, demand))
    program = make_program(options, 100 * demand)
    rounding = Rounding(program, relaxed, relaxed.counts, np.random.default_rng(0))
    rounding.round()
    np.testing.assert_array_equal(rounding.short_models, [0, 1])
    assert (rounding.counts.sum(axis=0) <= options.available).all()


def test_a_start_above_what_is_available_is_cut():
    options, demand = generate_fleet(3, 4, 0)
    program = make_program(options, demand)
    start = np.zeros(options.qps.shape)
    start[1] = options.available + 1
    rounding = Rounding(program, relax(program), start, np.random.default_rng(0))
    np.testing.assert_array_equal(rounding.counts[1], options.available)
