"""The benchmark's day: tuples that servers sustain, and what becomes of a plan from them."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.bench import planning_simulator
from hebe.bench.planning_simulator import ServiceCase, Stretch, intervals_met, service_qps
from hebe.simulation.provisioned_day import PlannedServers
from hebe.workload.query_sizes import ProductionSizes

SLOWEST = 9


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
    monkeypatch.setattr(planning_simulator, "sweep", lambda _, function, cases, __: [function(case) for case in cases])
    took, met = planning_simulator._day(True, Progress(disable=True))
    assert (took.name, took.target, met.name, met.target) == (
        "simulator.day", "<= 300", "simulator.day.intervals_met", None,
    )  # fmt: skip
    assert met.value == pytest.approx(1.0, abs=0.1)
    assert "12,000 queries" in took.note
