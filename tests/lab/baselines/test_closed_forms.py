"""The router in virtual time against queueing theory. `hebe bench planning` does the same with many more queries."""

import numpy as np
import pytest

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, run_fleet
from hebe.workload.query_sizes import FixedSizes
from hebe_lab.baselines.closed_forms import mdc_latency_s, mm1_latency_s
from hebe_lab.bench.planning.simulator import deterministic_servers, exponential_servers, little_error


def simulate(table, rate_qps, workers, queries, seed):
    trace = QueryTrace.draw(queries, FixedSizes(1), seed)
    return trace, run_fleet(trace, rate_qps, (workers,), TableServers(table), FirstComeFirstServed(), 1e9)


def test_mm1():
    _, run = simulate(exponential_servers(), 0.5, 1, 120_000, 1)
    assert run.latency_s.mean() == pytest.approx(mm1_latency_s(0.5, 1.0), rel=0.01)
    assert run.busy_s[0] / run.end_s == pytest.approx(0.5, rel=0.01)
    quick_s = np.log(2) * mm1_latency_s(0.5, 1.0)  # the latency of M/M/1 is exponential
    assert np.median(run.latency_s) == pytest.approx(quick_s, rel=0.015)


@pytest.mark.parametrize(("workers", "load"), [(1, 0.5), (3, 0.7), (8, 0.8)])
def test_mdc(workers, load):
    _, run = simulate(deterministic_servers(), load * workers, workers, 80_000, 2)
    assert run.latency_s.mean() == pytest.approx(mdc_latency_s(load * workers, 1.0, workers), rel=0.01)


def test_littles_law():
    trace, run = simulate(exponential_servers(), 2.4, 4, 100_000, 3)
    assert abs(little_error(trace, 2.4, run)) <= 0.01


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_one_deterministic_worker_is_pollaczek_and_khinchin(load):
    assert mdc_latency_s(load / 2, 2.0, 1) == pytest.approx(2.0 * (1 + load / (2 * (1 - load))), rel=1e-9)


def test_waits_of_several_deterministic_workers_are_half_of_exponential_ones_or_a_little_more():
    """Of M/M/4 at load 0.8, Erlang C gives a wait of 0.7455 service times."""
    wait = mdc_latency_s(3.2, 1.0, 4) - 1
    assert 0.5 * 0.7455 < wait < 0.54 * 0.7455


@pytest.mark.parametrize("arguments", [(1.0, 1.0, 1), (0.0, 1.0, 1), (0.5, -1.0, 1), (0.5, 1.0, 0)])
def test_a_queue_that_grows_without_end_is_refused(arguments):
    with pytest.raises(ValueError, match="load below 1"):
        mdc_latency_s(*arguments)


def test_an_overloaded_single_worker_is_refused():
    with pytest.raises(ValueError, match=r"rate_qps 2\.0"):
        mm1_latency_s(2.0, 1.0)
