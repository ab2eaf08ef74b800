"""Pools measured one by one for searches: each once, and only where it may be good."""

import numpy as np
import pytest

from hebe.planning.pool.pool import kairos_bounds, pools_within
from hebe_lab.studies.kairos import evaluation as kairos_evaluation
from hebe_lab.studies.kairos.contenders import (
    DRS,
    KAIROS,
    RIBBON,
    SPLITTING,
    Contender,
    splitting_on,
    with_best_threshold,
)
from hebe_lab.studies.kairos.evaluation import pool_evaluator, pool_judge, throughput_on
from hebe_lab.studies.kairos.setting import Setting

SETTING = Setting("rm2", budget_per_hour=1.1)
QUERIES = 150


@pytest.mark.parametrize("scheme", [KAIROS, RIBBON])
def test_a_pool_is_measured_once_and_one_without_a_bound_never(monkeypatch, scheme):
    asked = []
    monkeypatch.setattr(kairos_evaluation, "throughput_on", lambda *case: asked.append(case[2:]) or 7.0)
    pools, bounds = np.array([[1, 0, 0, 0], [0, 1, 0, 0]]), np.array([100.0, 0.0])
    evaluate = pool_evaluator(SETTING, scheme, QUERIES, pools, bounds)
    found = [evaluate(pool) for pool in ((1, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0))]
    if scheme == KAIROS:
        assert found == [7.0, 0.0, 7.0, 0.0], "no policy that is in time serves what has no bound"
        assert asked == [((1, 0, 0, 0), QUERIES, 85.0)]
    else:
        assert found == [7.0] * 4, "a policy that is late serves every size somewhere"
        assert asked == [((1, 0, 0, 0), QUERIES), ((0, 1, 0, 0), QUERIES)]


def test_each_scheme_is_measured_with_its_own_policy():
    pool = (1, 0, 2, 0)
    for scheme, contender in (
        (KAIROS, Contender(SETTING, KAIROS, pool)),
        (RIBBON, Contender(SETTING, RIBBON, pool)),
        (SPLITTING, splitting_on(SETTING, pool)),
    ):
        usual = contender.qps(QUERIES, kairos_evaluation.CHOOSING_SEED, tolerance=0.01)
        assert throughput_on(SETTING, scheme, pool, QUERIES) == usual
    assert throughput_on(SETTING, DRS, pool, QUERIES) == with_best_threshold(SETTING, pool, QUERIES)[1]


def test_the_judge_agrees_with_the_measurement():
    pools = pools_within(SETTING.problem, SETTING.budget_per_hour)
    bounds = kairos_bounds(SETTING.problem, pools)
    head = [tuple(pool) for pool in pools[np.argsort(-bounds)[:8]].tolist()]
    qps = {pool: throughput_on(SETTING, KAIROS, pool, QUERIES) for pool in head}
    best_qps = max(qps.values())
    judge = pool_judge(SETTING, KAIROS, QUERIES, pools, best_qps, 0.9)
    for pool, found in qps.items():
        if abs(found / best_qps - 0.9) > 0.03:  # or the search's tolerance decides
            assert judge(pool) == (best_qps if found > 0.9 * best_qps else 0.0)
    assert judge((0, 0, 0, 1)) == 0.0, "no base instance"
