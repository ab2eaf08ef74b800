"""Reading the time per stage from a Prometheus page, and from a server of the standard library's."""

import pytest

from hebe.cli.demo.scoring import MetricsError, StageTotals, parse_stages, read_stages

PAGE = """\
# HELP hebe_stage_seconds Time of answered queries in each stage.
# TYPE hebe_stage_seconds histogram
hebe_stage_seconds_bucket{le="0.001",model="a",stage="queue",version="1"} 3.0
hebe_stage_seconds_bucket{le="+Inf",model="a",stage="queue",version="1"} 4.0
hebe_stage_seconds_count{model="a",stage="queue",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="queue",version="1"} 0.25
hebe_stage_seconds_count{model="a",stage="sparse",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="sparse",version="1"} 0.5
hebe_stage_seconds_count{model="a",stage="dense",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="dense",version="1"} 1.0
hebe_stage_seconds_count{model="a",stage="queue",version="2"} 1.0
hebe_stage_seconds_sum{model="a",stage="queue",version="2"} 1.0
hebe_stage_seconds_count{model="b",stage="queue",version="1"} 9.0
hebe_stage_seconds_sum{model="b",stage="queue",version="1"} 9.0
# HELP hebe_queries_total Queries answered.
# TYPE hebe_queries_total counter
hebe_queries_total{model="a",version="1"} 4.0
"""


def test_totals_are_those_of_all_versions_of_the_model_alone():
    assert parse_stages(PAGE, "a") == StageTotals(5, {"queue": 1.25, "sparse": 0.5, "dense": 1.0})
    assert parse_stages(PAGE, "c") == StageTotals(0, {"queue": 0.0, "sparse": 0.0, "dense": 0.0})


def test_means_are_of_the_queries_between_two_looks():
    before = StageTotals(5, {"queue": 1.0, "sparse": 0.5, "dense": 1.0})
    after = StageTotals(15, {"queue": 1.01, "sparse": 0.52, "dense": 1.03})
    assert after.mean_ms_since(before) == pytest.approx({"queue": 1.0, "sparse": 2.0, "dense": 3.0})
    assert before.mean_ms_since(before) == {}


def test_no_page_is_an_error():
    with pytest.raises(MetricsError, match=r"http://127\.0\.0\.1:1/metrics: cannot be read"):
        read_stages("http://127.0.0.1:1/metrics", "a")
