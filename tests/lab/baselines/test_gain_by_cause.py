import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.server_split.search import Reached, SearchResult
from hebe.server_configuration import Lane, Placement
from hebe_lab.baselines.gain_by_cause import gain_by_cause

BASE = (Lane(Placement.MODEL_ON_HOST, 4),)
FEWER = (Lane(Placement.MODEL_ON_HOST, 2, 2),)
PIPELINE = (Lane(Placement.PIPELINE_ON_HOST, 2, dense_workers=2),)
ALONE = (Lane(Placement.SPARSE_ON_HOST, 1, dense_workers=1),)
FUSED = (Lane(Placement.SPARSE_ON_HOST, 1, dense_workers=1, fused_items=1024), *FEWER)
ALL = (BASE, FEWER, PIPELINE, ALONE, FUSED)


def searched(qps, watts=0.0):
    tried = {configuration: Reached(value, watts) for configuration, value in qps.items()}
    best = max(tried, key=lambda configuration: tried[configuration].qps)
    return SearchResult(best, tried[best], best, tried, (), len(tried))


def test_each_freedom_has_what_it_adds():
    gain = gain_by_cause(
        searched({BASE: 100.0}), searched({FEWER: 120.0, PIPELINE: 180.0, ALONE: 360.0, FUSED: 1440.0})
    )
    assert (gain.op_parallelism, gain.pipeline) == (pytest.approx(1.2), pytest.approx(1.5))
    assert (gain.accelerator, gain.fusion) == (pytest.approx(2.0), pytest.approx(4.0))
    assert gain.total == pytest.approx(14.4)


def test_a_freedom_that_adds_nothing_has_one():
    gain = gain_by_cause(searched({BASE: 100.0}), searched({FEWER: 90.0, PIPELINE: 50.0}))
    assert gain.total == gain.op_parallelism == gain.pipeline == gain.fusion == 1.0


def test_what_both_asked_for_is_their_mean_so_that_noise_is_no_gain():
    gain = gain_by_cause(searched({BASE: 90.0}), searched({BASE: 110.0, FEWER: 100.0}))
    assert (gain.baseline_qps, gain.total) == (100.0, 1.0)


def test_a_baseline_on_the_accelerator():
    gain = gain_by_cause(searched({ALONE: 100.0}), searched({PIPELINE: 90.0, FUSED: 500.0}))
    assert (gain.op_parallelism, gain.accelerator, gain.fusion) == (1.0, 1.0, 5.0)


def test_beyond_the_power_budget_nothing_counts():
    found = searched({FEWER: 1000.0}, watts=200.0)
    assert gain_by_cause(searched({BASE: 100.0}, 100.0), found, 150.0).total == 1.0
    assert gain_by_cause(searched({BASE: 0.0}), found) is None


@given(st.lists(st.floats(0.1, 1e6), min_size=5, max_size=5))
def test_the_parts_multiply_to_the_whole(values):
    gain = gain_by_cause(searched({BASE: values[0]}), searched(dict(zip(ALL[1:], values[1:], strict=True))))
    assert math.isclose(gain.total, max(values) / values[0], rel_tol=1e-9)
    assert min(gain.op_parallelism, gain.pipeline, gain.accelerator, gain.fusion) >= 1.0
