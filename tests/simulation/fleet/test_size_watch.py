import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.simulation.fleet.query_stream import LOOK, size_shift
from hebe.workload.query_sizes import NormalSizes, ProductionSizes

PLANNED_FROM = 100_000


@pytest.fixture(scope="module")
def planned():
    return size_weights(ProductionSizes().draw(PLANNED_FROM, np.random.default_rng(0)), 999)


@pytest.mark.parametrize("seed", range(3))
def test_the_sizes_that_were_planned_for_are_not_a_shift(planned, seed):
    sizes = ProductionSizes().draw(20_000, np.random.default_rng(seed + 1))
    assert size_shift(sizes, planned, planned_from=PLANNED_FROM) is None


def test_other_sizes_are_noticed_as_soon_as_enough_were_seen(planned):
    shift = size_shift(NormalSizes(500, 150, 999).draw(5_000, np.random.default_rng(1)), planned)
    assert shift is not None
    assert shift.queries == 1_000
    assert shift.distance > 0.3


def test_a_change_within_the_run_is_noticed_after_it(planned):
    rng = np.random.default_rng(2)
    sizes = np.concatenate((ProductionSizes().draw(6_000, rng), NormalSizes(500, 150, 999).draw(6_000, rng)))
    shift = size_shift(sizes, planned)
    assert shift is not None
    assert 6_000 < shift.queries < 8_000
    assert shift.queries % LOOK == 0


def test_a_run_too_short_to_tell_says_nothing(planned):
    assert size_shift([900] * 999, planned) is None
    assert size_shift([900] * 1_000, planned) is not None


def test_bad_sizes_and_plans_are_refused(planned):
    with pytest.raises(PlanningError, match="query size is 0"):
        size_shift([0], planned)
    with pytest.raises(PlanningError, match="planned sums to"):
        size_shift([1], np.array([0.5]))
