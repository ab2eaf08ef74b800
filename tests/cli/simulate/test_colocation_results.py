"""What is shown of a simulated plan of shared servers: of runs that were made up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.capacity.colocation_simulation import ColocationSimulated, ModelPart, ModelSimulated
from hebe.capacity.files.colocation_plan import ColocationPlanFile
from hebe.capacity.files.service_times import ServiceTimes
from hebe.capacity.planned_models import FleetPlanRequest, ModelUnderPlan
from hebe.cli.simulate.colocation_results import document
from hebe.planning.colocation.colocation import ServerGroup, Tenant
from hebe.report.html import page as page_of
from hebe.simulation.fleet.fleet_case import FleetCase, RunResult
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream
from hebe.simulation.measured.service_table import ServiceTable
from hebe.simulation.queueing.shared_slowdown import WorkersAtLimit
from hebe.spec import SlaTarget
from tests.cli.shown import shown

TENANTS = (Tenant("filter", 1, 1, 500.0), Tenant("ranker", 1, 1, 9.0))
GROUPS = (ServerGroup(TENANTS, 7, 1.4), ServerGroup((Tenant("filter", 2, 2, 2000.0),), 1, 1.0))
REQUEST = FleetPlanRequest((Path("times.csv"),), Path("shared.toml"), 1.0, None, None, None, "poisson", 100, 2, 0)


def run(late, workers):
    """A hundred queries of 50 ms, but for some `late` ones of 400 ms; all workers work half of the time."""
    latency_s = np.full(100, 0.05)
    latency_s[:late] = 0.4
    return RunResult(latency_s, tuple(0.5 * count * 10 for count in workers), 10.0, 60.0, workers)


def model(name, parts, late, stretch=1.0, load_qps=60.0):
    table = ServiceTable.from_samples({f"group {part.group}": {1: [0.05], 2: [0.05]} for part in parts})
    known = ModelUnderPlan(
        ServiceTimes(name, table, (Path("times.csv"),)), SlaTarget(300.0, 95.0), "fixed:1", np.array([1.0]), 1
    )
    workers = tuple(part.workers for part in parts)
    case = FleetCase(
        table, workers, PolicyChoice(PolicyKind.FCFS), known.sla, 1, QueryStream("poisson", "fixed:1", 100, 0), load_qps
    )
    runs = tuple(run(count, workers) for count in late)
    return ModelSimulated(name, known, load_qps, WorkersAtLimit(1, 10.0), stretch, parts, case, runs)


def made(ranker_late=(1, 2), stretch=1.0, **changes):
    plan = ColocationPlanFile({"filter": 60.0, "ranker": 60.0}, GROUPS, {}, None, None)
    models = (
        model("filter", (ModelPart(2, 1, GROUPS[1].tenants[0], 1.0), ModelPart(1, 7, TENANTS[0], 1.25)), (0, 0)),
        model("ranker", (ModelPart(1, 7, TENANTS[1], 1.1),), ranker_late, stretch),
    )
    return ColocationSimulated(replace(REQUEST, **changes), plan, models)


def test_the_figures_are_by_model_and_by_group():
    figures = json.loads(json.dumps(document(made((1, 8))).data))
    assert (figures["servers"], figures["all_held"]) == (8, False)
    by_model = {one["model"]: one for one in figures["models"]}
    assert by_model["ranker"]["runs_held"] == 1
    assert by_model["ranker"]["attainment"]["value"] == pytest.approx(0.955)
    assert by_model["ranker"]["attainment"]["high"] == 1.0
    assert by_model["filter"]["capacity_qps"] == pytest.approx(7 * 500 + 2000)
    shared, single = figures["groups"]
    assert [each["model"] for each in shared["tenants"]] == ["filter", "ranker"]
    assert shared["tenants"][0]["slowdown"] == 1.25
    assert single["tenants"][0]["utilisation"]["value"] == pytest.approx(0.5)


def test_the_terminal_tells_models_what_runs_where_and_the_verdict():
    text = shown(document(made()))
    assert "ranker 60 95% p95 300 ms 50 ms 98.50% met" in text
    assert "1 7 ranker 1 / 1 9 1.10 50%" in text
    assert "At the planned demand, all models keep the SLA target on 8 servers." in text
    assert "2 runs of 100 queries for each model, poisson arrivals, fcfs." in text


@pytest.mark.parametrize(("late", "words"), [((1, 8), "1 of 2"), ((8, 9), "missed")])
def test_a_model_that_misses_its_target_is_named_with_what_helps(late, words):
    text = shown(document(made(late, load_factor=1.2)))
    assert f"% {words}" in text
    assert "At 1.2 x the demand, the SLA target is not kept by ranker: plan with a larger --over-provision." in text


@pytest.mark.parametrize(
    ("stretch", "words"),
    [
        (0.4, "ranker: the 10 queries/s that 1 worker alone served by its scalability profile cannot be with these"),
        (2.0, "ranker: the 10 queries/s that 1 worker alone served by its scalability profile could be with 2.00 x"),
    ],
)
def test_service_times_that_the_throughputs_cannot_be_of_are_told(stretch, words):
    unfit = made((8, 9), stretch)
    text = shown(document(unfit))
    assert words in text
    assert "filter: the" not in text
    assert "larger --over-provision" not in text, "it is not known to help"
    assert words in page_of(document(unfit))


def test_the_target_that_throughputs_are_measured_at_is_told_where_it_is_known():
    assert "at this SLA and these query sizes: if" in shown(document(made(stretch=2.0)))
    one = made(stretch=2.0)
    filter_, ranker = one.models
    ranker = replace(ranker, known=replace(ranker.known, profiled_sla=SlaTarget(20.0, 99.0)))
    text = shown(document(replace(one, models=(filter_, ranker))))
    assert "at p99 within 20 ms, as profiled, and these query sizes: if" in text


def test_gaps_of_a_recorded_load_are_told(tmp_path):
    load = tmp_path / "load.csv"
    load.write_text("time_s,count\n0,60\n60,90\n240,60\n")
    one = made(arrivals=f"trace:{load}")
    words = "line 4: time_s 240 is 180 s after the line before, others 60 s: a gap"
    assert words in shown(document(one))
    assert words in page_of(document(one))


def test_the_page_has_tails_and_utilisation():
    drawn = page_of(document(made()))
    assert drawn.count("<svg") == 4
    for words in ("Tail latency over its bound", "ranker: latency by percentile", "models in their SLA", "2 of 2"):
        assert words in drawn
