"""The benchmark's speeds and closed forms, and its day: tuples that servers sustain, and what becomes of a plan."""

import itertools

import numpy as np
import pytest
from rich.progress import Progress

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.matching import CostMatching
from hebe.simulation.fleet.provisioned_day import PlannedServers
from hebe.workload.query_sizes import ProductionSizes
from hebe_lab.bench.planning import simulator as planning_simulator
from hebe_lab.bench.planning.simulator import ServiceCase, Stretch, _Queue, intervals_met, relative_error, service_qps

SLOWEST = 9


def test_speeds_are_the_median_of_queries_over_the_threads_own_time(monkeypatch):
    """Runs that take 1, 2 and 4 s of processor time, each scheduler's own."""
    read_s = itertools.accumulate(itertools.cycle([0.0, 1.0, 0.0, 2.0, 0.0, 4.0]))
    monkeypatch.setattr(planning_simulator.time, "thread_time", lambda: next(read_s))
    ran = []
    monkeypatch.setattr(planning_simulator, "run_fleet", lambda trace, *rest: ran.append((len(trace), type(rest[3]))))
    monkeypatch.setattr(
        planning_simulator, "run_node", lambda arrivals, *_, workers, **__: ran.append((len(arrivals), workers))
    )
    figures = planning_simulator._speeds(True, Progress(disable=True))
    assert [(figure.name, figure.target, figure.unit, figure.runs) for figure in figures] == [
        ("simulator.queries_per_s.fcfs", ">= 80000", "queries/s", 3),
        ("simulator.queries_per_s.matching14", ">= 12000", "queries/s", 3),
        ("simulator.queries_per_s.node2", None, "queries/s", 3),
        ("simulator.queries_per_s.node16", None, "queries/s", 3),
    ]
    assert [figure.value for figure in figures] == [2_500.0] * 4
    assert all(figure.low < figure.value < figure.high and not figure.met for figure in figures)
    assert ran[:6] == [(5_000, FirstComeFirstServed)] * 3 + [(5_000, CostMatching)] * 3
    assert ran[6:] == [(5_000, 2)] * 3 + [(5_000, 16)] * 3
    assert "5,000 queries on 14 instances" in figures[0].note
    assert "5,000 queries on 16 workers of one server" in figures[3].note


def test_closed_forms_are_met_if_the_errors_of_several_runs_cancel_out(monkeypatch):
    """A run alone is off by some per cent either way, or by as much each time."""
    errors = {"mm1": (0.03, -0.03, 0.01, -0.01), "mdc": (0.02, 0.02, 0.02, 0.02), "little": (-0.004,) * 4}
    asked = []

    def sweep(function, cases, _on_done):
        asked.extend((function, case) for case in cases)
        return [errors[case.kind][case.seed] for case in cases]

    monkeypatch.setattr(planning_simulator, "sweep", sweep)
    figures = planning_simulator._closed_forms(True, Progress(disable=True))
    assert [(figure.name, figure.target, figure.unit, figure.runs) for figure in figures] == [
        (f"simulator.error.{kind}", "<= 0.01", "share", 4) for kind in ("mm1", "mdc", "little")
    ]
    assert [figure.value for figure in figures] == pytest.approx([0.0, 0.02, 0.004])
    assert [figure.met for figure in figures] == [True, False, True]
    standard_error = np.sqrt(2 * (0.03**2 + 0.01**2) / 3) / 2
    assert (figures[0].low, figures[0].high) == pytest.approx((0.0, standard_error))
    assert (figures[1].low, figures[1].high) == pytest.approx((0.02, 0.02))
    assert {function for function, _ in asked} == {relative_error}
    assert {(case.kind, case.load, case.workers, case.queries) for _, case in asked} == {
        ("mm1", 0.6, 1, 50_000), ("mdc", 0.8, 4, 50_000), ("little", 0.8, 4, 50_000),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "load", "workers"), [("mm1", 0.6, 1), ("mdc", 0.8, 4), ("little", 0.8, 4)])
def test_the_simulator_is_near_the_closed_forms(kind, load, workers):
    errors = [relative_error(_Queue(kind, load, workers, 20_000, seed)) for seed in range(4)]
    assert np.mean(errors) == pytest.approx(0.0, abs=0.03)
    assert len(set(errors)) == 4, "each seed draws a trace of its own"


def test_an_error_is_the_share_by_which_the_simulated_value_is_too_large(monkeypatch):
    exact = relative_error(_Queue("mm1", 0.6, 1, 2_000, 0))
    of_theory = planning_simulator.mm1_latency_s
    monkeypatch.setattr(planning_simulator, "mm1_latency_s", lambda *queue: of_theory(*queue) / 1.5)
    assert relative_error(_Queue("mm1", 0.6, 1, 2_000, 0)) + 1 == pytest.approx(1.5 * (exact + 1))


def busy_qps():
    """Queries/s of one server of each type that is never idle, of the slowest service."""
    sizes = ProductionSizes().draw(50_000, np.random.default_rng(1))
    return 1 / planning_simulator._service(SLOWEST).table.quantiles_s[:, sizes].mean(axis=(1, 2))


def test_tuples_of_long_runs_are_sustained_and_those_of_short_ones_are_not():
    """What the figure's note says: in a few SLAs more are answered in time than servers sustain."""
    long, short = (np.array(service_qps(ServiceCase(SLOWEST, slas))) / busy_qps() for slas in (40.0, 4.0))
    assert (long < 1.01).all()
    assert (short > long).all()
    assert short[0] > 1.05


def test_an_interval_is_met_where_servers_suffice():
    each_qps = float(busy_qps()[0])
    enough, too_few = PlannedServers(10 * each_qps, (12, 0, 0, 0)), PlannedServers(12 * each_qps, (10, 0, 0, 0))
    idle = PlannedServers(0.0, (0, 0, 0, 0))
    assert intervals_met(Stretch(SLOWEST, 0, (enough, too_few, idle), 3_000)) == [True, False, True]


def test_a_small_day_gives_its_figures(monkeypatch):
    monkeypatch.setattr(planning_simulator, "_SERVICES", 1)
    monkeypatch.setattr(planning_simulator, "_DAY_PACES", np.array([1.0]))
    monkeypatch.setattr(planning_simulator, "_SERVERS", 60)
    monkeypatch.setattr(planning_simulator, "sweep", lambda function, cases, _: [function(case) for case in cases])
    took, met = planning_simulator._day(True, Progress(disable=True))
    assert (took.name, took.target, met.name, met.target) == (
        "simulator.day", "<= 300", "simulator.day.intervals_met", None,
    )  # fmt: skip
    assert met.value == pytest.approx(1.0, abs=0.1)
    assert "12,000 queries" in took.note
