from dataclasses import replace

import numpy as np
import pytest

from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.queries.schedule import RunPlan, Schedule
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals, PoissonArrivals, TraceArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes, ProductionSizes
from hebe.workload.rate_trace import RateTrace

POOL = QueryPool(ModelInputs((ModelInput("dense", "FP32", (1,), None),)), UniformKeys(), 1000, np.random.default_rng(0))
PLAN = RunPlan(200.0, 5.0, 0.1, PoissonArrivals(), ProductionSizes(), seed=1)


def test_the_schedule_is_the_seed():
    one, again, other = (list(Schedule(replace(PLAN, seed=seed), POOL).queries()) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len(one) == pytest.approx(1020, rel=0.1)
    for due_s, items, offset in one:
        assert 0 <= due_s < 5.1
        assert 0 <= offset <= POOL.items - items


@pytest.mark.parametrize("taken", [0, 1, 65_535, 65_536, 65_537, 100_000])
def test_what_is_left_is_told_without_drawing_its_queries(taken):
    plan = replace(PLAN, rate_qps=40_000.0)
    every = list(Schedule(plan, POOL).queries())
    schedule = Schedule(plan, POOL)
    queries = schedule.queries()
    # The open loop holds one query more than it has sent.
    sent = [next(queries) for _ in range(taken + 1)][:taken]
    assert sent == every[:taken]
    assert schedule.items_of(taken) == sum(items for _, items, _ in sent)
    left = np.concatenate(list(schedule.times_after(taken)))
    np.testing.assert_array_equal(left, [due_s for due_s, _, _ in every[taken:]])


def test_nothing_is_left_of_all():
    schedule = Schedule(PLAN, POOL)
    every = list(schedule.queries())
    assert np.concatenate(list(schedule.times_after(len(every)))).size == 0
    assert schedule.items_of(len(every)) == sum(items for _, items, _ in every)


def in_window(plan):
    times = np.array([due_s for due_s, _, _ in Schedule(plan, POOL).queries()])
    return int((times >= plan.warm_up_s).sum())


DAY = RateTrace(np.array([0.0, 10.0, 20.0, 30.0]), np.array([1.0, 0.0, 9.0]))


@pytest.mark.parametrize(
    ("arrivals", "duration_s"),
    [
        (BurstArrivals(9.0, 1.0, 10.0), 20.0),
        (TraceArrivals(DAY), 20.0),
        (TraceArrivals(DAY, speed=3.0), 20.0),
    ],
)
@pytest.mark.parametrize("warm_up_s", [0.0, 3.0])
def test_the_mean_rate_is_that_of_the_window_whatever_the_warm_up(arrivals, duration_s, warm_up_s):
    plan = RunPlan(2000.0, duration_s, warm_up_s, arrivals, FixedSizes(1), seed=3)
    assert in_window(plan) == pytest.approx(40_000, rel=0.02)


def test_whether_any_query_is_due_in_the_window():
    assert PLAN.has_arrivals()
    clock = replace(PLAN, rate_qps=0.1, duration_s=1.0, warm_up_s=0.5, arrivals=ConstantArrivals())
    assert not clock.has_arrivals(), "the first is due at once, in the warm-up, the next after ten seconds"
    assert replace(clock, warm_up_s=0.0).has_arrivals()
    assert not replace(PLAN, rate_qps=1e-6).has_arrivals()
