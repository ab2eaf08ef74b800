"""What is shown of a simulated pool: of runs that were made up, so that every figure can be told."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.capacity.files.pool_plan import PoolPlanFile
from hebe.capacity.files.service_times import ServiceTimes
from hebe.capacity.pool_simulation import Estimate, SimulationMade, SimulationRequest
from hebe.cli.simulate.results import document
from hebe.report.html import page as page_of
from hebe.simulation.fleet.fleet_case import RunResult
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream, SizeShift
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from tests.cli.shown import shown

TIMES = ServiceTimes(
    "m", ServiceTable.from_samples({"gpu": {1: [1e-3], 2: [1e-3]}, "cpu": {1: [2e-3], 2: [2e-3]}}), (Path("t.csv"),)
)
REQUEST = SimulationRequest(
    (Path("t.csv"),), None, {"gpu": 1, "cpu": 2}, None, None, 100.0, 12.0, 95.0, "fixed:1", "poisson", 100, 2, 0
)


def run(late, rate_qps=100.0):
    """A hundred queries of 5 ms, but for some `late` ones of 20 ms; servers of gpus work for half of ten seconds."""
    latency_s = np.full(100, 5e-3)
    latency_s[:late] = 20e-3
    return RunResult(latency_s, (5.0, 2.0), 10.0, rate_qps, (1, 2))


def made(late=(2, 4), **changes):
    usual = SimulationMade(
        REQUEST, None, TIMES, (1, 2), PolicyChoice(PolicyKind.FCFS), SlaTarget(12.0, 95.0),
        QueryStream("poisson", "fixed:1", 100, 0), None, tuple(map(run, late)),
    )  # fmt: skip
    return replace(usual, **changes)


def test_the_figures_are_means_of_the_runs():
    figures = json.loads(json.dumps(document(made()).data))
    assert figures["pool"] == {"gpu": 1, "cpu": 2}
    assert figures["policy"] == {"name": "fcfs"}
    assert figures["attainment"]["value"] == pytest.approx(0.97)
    assert figures["throughput_qps"]["value"] == pytest.approx(10.0)
    assert figures["utilisation"] == {"gpu": pytest.approx(0.5), "cpu": pytest.approx(0.1)}
    assert list(figures["latency_ms"]) == ["p50", "p95", "p99"], "a hundred queries tell no p99.9"
    assert figures["latency_ms"]["p99"]["value"] == pytest.approx(20.0)
    assert figures["find_qps"] is None
    assert "sizes_shifted" not in figures


@pytest.mark.parametrize(("late", "words"), [((2, 4), "met"), ((2, 8), "met in 1 of 2 runs"), ((8, 9), "missed")])
def test_the_table_tells_whether_the_target_held(late, words):
    text = shown(document(made(late)))
    assert f"SLA p95 within 12 ms {words}" in text
    assert "arrival rate 100 queries/s" in text
    assert "utilisation, 2 x cpu 10.00%" in text
    assert "m on gpu=1, cpu=2, fcfs, poisson arrivals, 2 runs of 100 queries each." in text


def test_intervals_end_where_shares_do():
    text = shown(document(made((0, 4))))
    assert "SLA attainment 98.00%" in text
    assert "100.00%" in text
    assert "123" not in text
    figures = document(made((0, 40))).data
    assert (figures["attainment"]["low"], figures["attainment"]["high"]) == (0.0, 1.0)


def test_a_rate_that_was_searched_stands_first_and_none_at_all_is_said():
    found = made(request=replace(REQUEST, rate_qps=None), capacity=Estimate.of([100.0, 110.0]))
    assert document(found).data["find_qps"]["value"] == pytest.approx(105.0)
    assert "latency-bounded throughput 105 queries/s" in shown(document(found))
    none = replace(found, capacity=Estimate.of([0.0, 0.0]), runs=())
    assert "No rate keeps p95 within 12 ms." in shown(document(none))
    assert "latency_ms" not in document(none).data
    assert "Latency" not in page_of(document(none)).split("No rate keeps")[1].split("</h2>")[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, True), ({"times": replace(TIMES, model="other")}, False), ({"partitions": 1}, False)],
)
def test_the_prediction_is_that_of_the_plan_s_model_and_partitions(changes, told):
    plan = PoolPlanFile(
        "m", SlaTarget(12.0, 95.0), "fixed:1", 1.0, {"gpu": 1, "cpu": 2}, {"gpu": 0.5, "cpu": 0.1},
        PolicyChoice(PolicyKind.FCFS), (Path("t.csv"),), Path("prices.csv"), {"qps": 123.0}, {}, partitions=2,
    )  # fmt: skip
    of_plan = replace(REQUEST, service_times=(), pool=None, plan=Path("pool.toml"), rate_qps=None)
    found = made(request=of_plan, plan=plan, capacity=Estimate.of([100.0, 110.0]), **{"partitions": 2} | changes)
    assert ("The plan predicted 123 queries/s." in shown(document(found))) == told


def test_partitions_and_a_shift_of_sizes_are_told():
    prices = {"gpu": 0.5, "cpu": 0.1}
    plan = PoolPlanFile(
        "m", SlaTarget(12.0, 95.0), "fixed:2", 1.0, {"gpu": 1, "cpu": 2}, prices, PolicyChoice(PolicyKind.FCFS),
        (Path("t.csv"),), Path("prices.csv"), {}, {},
    )  # fmt: skip
    told = made(plan=plan, partitions=3, shift=SizeShift(150, 0.2))
    assert document(told).data["sizes_shifted"] == {"after_queries": 150, "distance": 0.2}
    text = shown(document(told))
    assert "in 3 partitions" in text
    assert "Query sizes are fixed:1, the plan was made for fixed:2: noticed after 150 queries" in text
    assert "distance of 0.20. Plan anew with hebe plan pool --sizes fixed:1." in text


def test_the_page_has_latencies_and_utilisation():
    page = page_of(document(made()))
    assert page.count("<svg") == 3
    for words in ("SLA attainment", "97.00%", "busiest server type", "2 x cpu"):
        assert words in page
