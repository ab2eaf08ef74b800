"""The pick from the artifact's own figures."""

import pytest

from hebe.planning.pool.pool import plan_pool
from hebe_lab.studies.kairos.setting import BUDGET_PER_HOUR, MODELS, Setting, published_bound_qps, published_pick


@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_one_from_measurements(model):
    problem = Setting(model).problem
    assert published_pick(model, problem, BUDGET_PER_HOUR) == plan_pool(problem, BUDGET_PER_HOUR).pick.counts


def test_bounds_are_those_of_eq_15():
    assert published_bound_qps("dien", (2, 0, 0, 0)) == pytest.approx(2 * 105.56)
    assert published_bound_qps("dien", (0, 3, 0, 0)) == 0
    # One base and one r5n.large, which serves 0.857 of all queries; the base has time left for any.
    large, offloaded = 105.56 * 0.143 / 0.212, 63.06 * 0.143 / 0.857
    expected = 63.06 / 0.857 + (1 - offloaded / large) * 105.56
    assert published_bound_qps("dien", (1, 0, 1, 0)) == pytest.approx(expected)
    # So many auxiliary ones that the large queries fill the base.
    assert published_bound_qps("dien", (1, 0, 50, 0)) == pytest.approx(large / 0.143)
