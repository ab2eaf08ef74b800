"""A policy that is told service times beforehand."""

from dataclasses import replace

import pytest

from hebe.query import Query, SubQuery
from hebe.scheduling.distribution import FirstComeFirstServed
from hebe.scheduling.fleet import Fleet
from hebe.studies.kairos_contenders import splitting_on
from hebe.studies.kairos_known_times import KnownTimes
from hebe.studies.kairos_setting import TYPES, Setting

SETTING = Setting("rm2", budget_per_hour=1.1)


def test_known_service_times_serve_more_in_a_short_run():
    contender = splitting_on(SETTING, (1, 0, 4, 0))
    learning, known = (replace(contender, known=known).qps(300, 1, tolerance=0.02) for known in (False, True))
    assert known > learning


def test_predictors_know_every_type_and_the_policy_gets_the_queries():
    service_s = SETTING.problem.service_s
    policy, fleet = KnownTimes(FirstComeFirstServed(), service_s), Fleet(TYPES)
    policy.fleet_changed(fleet, 0.0)
    for server_type in range(len(TYPES)):
        for items in (50, 300, 1000):
            expected_s = service_s[server_type, items - 1]
            assert fleet.service_time_s(server_type, items) == pytest.approx(expected_s, rel=0.15)
    query = SubQuery(Query(7, 10, 0.0), 0, 10)
    policy.arrived(query, fleet, 0.0)
    assert policy.waiting == 1
    assert policy.withdraw_all() == [query]
