"""What is shown of a simulated day: of two models in three intervals that were made up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.capacity.files.provisioning_plan import ProvisioningPlanFile
from hebe.capacity.files.service_times import ServiceTimes
from hebe.capacity.planned_models import FleetPlanRequest, ModelUnderPlan
from hebe.capacity.provisioning_simulation import DayMade
from hebe.cli.simulate.provisioning_results import document
from hebe.cli.terminal.output import print_json
from hebe.report.html import page as page_of
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.provisioned_day import IntervalRun
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from tests.cli.shown import shown

TABLE = ServiceTable.from_samples({"slow": {1: [0.01], 2: [0.01]}, "fast": {1: [0.005], 2: [0.005]}})
LATE = np.zeros((3, 2, 2), np.int64)


def model(name, latency_ms):
    times = ServiceTimes(name, TABLE, (Path("times.csv"),))
    return ModelUnderPlan(times, SlaTarget(latency_ms, 95.0), "fixed:1", np.array([1.0]), 1)


def of(attainment, tail_s, used=(0.5, 0.25)):
    return IntervalRun(attainment, tail_s, used, 500)


@pytest.fixture
def made():
    """Model a misses its target in the last interval, b is never answered in the first and has no load in the second.
    Of each type two servers serve each model, of the fast one for a alone."""
    counts = np.array([[[2, 2], [2, 0]]] * 3)
    load = np.array([[100.0, 50.0], [200.0, 0.0], [300.0, 50.0]])
    plan = ProvisioningPlanFile(
        Path("day.toml"), ("a", "b"), ("slow", "fast"), "0", 60.0, 30.0, load, np.array([[400.0, 100.0]] * 3), counts,
        LATE, None,
    )  # fmt: skip
    request = FleetPlanRequest((Path("times.csv"),), Path("day.toml"), 1.0, None, None, None, "poisson", 5000, 1, 0)
    runs = (
        (of(1.0, 0.02), of(1.0, 0.03), of(0.5, 0.2)),
        (of(0.0, np.inf), None, of(0.98, 0.04)),
    )
    models = {"a": model("a", 100.0), "b": model("b", 50.0)}
    return DayMade(request, plan, models, PolicyChoice(PolicyKind.FCFS), 5000, runs)


def test_the_figures_are_by_interval_and_null_where_there_is_no_load(made, capsys):
    print_json(document(made).data)
    figures = json.loads(capsys.readouterr().out)
    a, b = (figures["models"][name] for name in ("a", "b"))
    assert a["attainment"] == {"mean": pytest.approx(0.75), "least": 0.5, "by_interval": [1.0, 1.0, 0.5]}
    assert b["attainment"]["by_interval"] == [0.0, None, 0.98]
    assert b["tail_ms"] == [None, None, pytest.approx(40.0)]
    assert (a["intervals_missed"], b["intervals_missed"]) == (1, 1)
    assert figures["intervals_met"] == pytest.approx(3 / 5)
    assert figures["queries_sent"] == 2500
    assert figures["server_types"]["fast"]["servers"] == [2, 2, 2]
    assert figures["server_types"]["fast"]["mean_utilisation"] == pytest.approx(0.25)
    assert [(one["start_s"], one["model"]) for one in figures["missed"]] == [(0.0, "b"), (120.0, "a")]


def test_the_terminal_tells_models_types_and_the_worst_intervals_first(made):
    text = shown(document(made))
    assert "a p95 in 100 ms 300 75.00% 50.00% 200 ms 1 of 3 0.75" in text
    assert "b p95 in 50 ms 50 49.00% 0.00% not answered 1 of 2 0.5" in text
    assert text.index("00:00 b 50 100 0.5 0.00% not answered") < text.index("00:02 a 300 400 0.75 50.00% 200 ms")
    assert "The SLA target is met in 3 of 5 intervals of a model (60.0%)." in text
    assert "Planned load, fcfs, poisson arrivals, 5,000 queries for each model in each of 3 intervals." in text


def test_a_load_factor_several_runs_and_periods_are_in_the_verdict(made):
    request = replace(made.request, load_factor=1.5, seeds=2, arrivals="burst:2:1:4")
    text = shown(document(replace(made, request=request)))
    assert "Planned load times 1.5, fcfs, burst:2:1:4 arrivals, 5,000 queries, or whole periods of them, for" in text
    assert "intervals, 2 times." in text


def test_late_servers_and_short_samples_are_told(made):
    late = LATE.copy()
    late[2, 0, 0] = 1
    text = shown(document(replace(made, plan=replace(made.plan, late=late), queries=500)))
    assert "1 servers are late: they join 30 s after their interval begins" in text
    assert "At the peak 500 queries of a last 16." in text
    assert "for 20 times give --queries 1000." in text
    assert "50.00% 200 ms 1" in text


def test_gaps_of_a_recorded_load_are_told(made, tmp_path):
    load = tmp_path / "load.csv"
    load.write_text("time_s,count\n0,60\n60,90\n240,60\n")
    request = replace(made.request, arrivals=f"trace:{load}")
    text = shown(document(replace(made, request=request)))
    assert "line 4: time_s 240 is 180 s after the line before, others 60 s: a gap" in text


def test_a_day_that_holds_has_no_list_of_what_misses(made):
    kept = replace(made, runs=((of(1.0, 0.02),) * 3, (of(1.0, 0.02), None, of(1.0, 0.02))))
    assert "missed at" not in shown(document(kept))
    assert "Intervals that miss" not in page_of(document(kept))
    assert document(kept).data["missed"] == []


def test_the_page_has_attainment_and_utilisation_over_the_day(made):
    drawn = page_of(document(made))
    assert drawn.count("<svg") == 2
    for words in ("SLA attainment", "Utilisation by server type", "Intervals that miss their SLA target", "2 missed"):
        assert words in drawn
