"""Days and steady loads of a made-up cluster under each scheduler."""

import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.baselines import provision_obliviously
from hebe.planning.provisioning.day import DayPlan
from hebe_lab.studies.hercules.fleet import day_curve
from hebe_lab.studies.hercules.schedulers import cluster_days, largest_load_qps, largest_oblivious_qps, savings_at
from hebe_lab.study import StudyOptions

from .hercules_tuples import EFFORT, EVENLY, FLEET


def test_the_largest_oblivious_load_is_served_and_not_much_more_is():
    peak = largest_oblivious_qps(FLEET, EVENLY, 0.1)
    assert peak / EVENLY == pytest.approx(np.full(6, (peak / EVENLY)[0]))
    provision_obliviously(FLEET, 0.9 * peak, np.random.default_rng(5), over_provision_rate=0.1)
    failed = 0
    for seed in range(20):
        try:
            provision_obliviously(FLEET, 1.1 * peak, np.random.default_rng(seed), over_provision_rate=0.1)
        except PlanningError:
            failed += 1
    assert failed
    assert (largest_load_qps(FLEET, EVENLY, 0.1) > peak).all()


def test_days_of_all_schedulers_meet_the_load():
    peak = 0.5 * largest_oblivious_qps(FLEET, EVENLY, 0.1)
    day = day_curve(StudyOptions(quick=True), 7200.0)
    days = cluster_days(FLEET, peak, day, EFFORT)
    for plan in (days.hercules, days.priority, *days.greedy, *days.oblivious):
        assert (plan.capacity_qps >= (1 - 1e-6) * 1.1 * day[1][:, None] * peak).all()
        assert (plan.servers_by_type <= FLEET.available).all()
    saving = days.hercules_over_greedy(DayPlan.power_saving_over)
    assert [one.mean for one in saving] == [days.hercules.power_saving_over(other).mean for other in days.greedy]
    assert all(one.mean >= -0.01 for one in saving)
    assert all(one.mean > 0 for one in days.greedy_over_oblivious(DayPlan.power_saving_over))
    assert len(days.priority_over_greedy(DayPlan.capacity_saving_over)) == EFFORT.seeds


def test_steady_savings_follow_from_the_seeds():
    load = 0.3 * largest_oblivious_qps(FLEET, EVENLY, 0.1)
    assert savings_at(FLEET, load, EFFORT) == savings_at(FLEET, load, EFFORT)
    assert savings_at(FLEET, load, EFFORT).hercules_power >= -0.01
