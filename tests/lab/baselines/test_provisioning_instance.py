from __future__ import annotations

import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.provisioning import provision
from hebe_lab.baselines.provisioning_instance import generate_fleet


def test_is_the_same_for_a_seed_and_another_for_another():
    (options, demand), (same, same_demand), (other, _) = (generate_fleet(5, 7, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(options.qps, same.qps)
    np.testing.assert_array_equal(demand, same_demand)
    assert (options.qps != other.qps).any()


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 4), (10, 6), (20, 60)])
def test_can_be_met_by_dividing_each_type_alike(size):
    options, demand = generate_fleet(*size, seed=1)
    whole = (options.qps * options.available).sum(axis=1)
    assert (demand / whole).sum() == pytest.approx(0.9)


def test_exhausts_the_best_types_and_leaves_others():
    options, demand = generate_fleet(20, 60, seed=1)
    used = provision(options, demand, time_limit_s=0).counts.sum(axis=0)
    assert 5 < (used == options.available).sum() < 40
    assert 0.3 < used.sum() / options.available.sum() < 0.8


def test_needs_a_model_and_a_type():
    with pytest.raises(PlanningError, match="0 models on 3 server types"):
        generate_fleet(0, 3)
