from functools import cache

import numpy as np
import pytest

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.simulation.measured.service_table import ServiceTable
from hebe.simulation.queueing.shared_slowdown import WorkersAtLimit, longest_stretch, service_classes
from hebe.spec import SlaTarget
from hebe.workload.forms import query_sizes

SLA = SlaTarget(40.0, 95.0)
SIZES = "quantiles:5,10,20,40,100"


def table(factor=1.0):
    """1 ms and 0.1 ms an item, within a tenth."""
    items = np.arange(101)[:, None]
    return ServiceTable(("cpu",), factor * (1e-3 + 1e-4 * items * np.linspace(0.9, 1.1, 5))[None])


def weights():
    sizes = query_sizes(SIZES).draw(50_000, np.random.default_rng(0))
    return np.bincount(sizes, minlength=101)[1:] / sizes.size


@cache
def simulated_limit(workers, factor=1.0):
    """The latency-bounded throughput that simulation finds."""
    trace = QueryTrace.draw(8000, query_sizes(SIZES), seed=0)
    found = fleet_capacity([trace], (workers,), TableServers(table(factor)), FirstComeFirstServed, SLA)
    return WorkersAtLimit(workers, found.qps)


def test_classes_are_equally_likely_service_times():
    service_s = service_classes(table().quantiles_s[0], weights())
    assert service_s.shape == (1000,)
    assert (np.diff(service_s) >= 0).all()
    assert service_s.mean() == pytest.approx(float(table().mean_s[0] @ weights()), rel=1e-3)


def test_sizes_that_nobody_asks_for_do_not_count():
    alone = np.zeros(100)
    alone[9] = 1.0
    service_s = service_classes(table().quantiles_s[0], alone)
    assert np.unique(service_s) == pytest.approx(1e-3 + 1e-3 * np.linspace(0.9, 1.1, 5))


@pytest.mark.parametrize(("workers", "factor"), [(2, 1.0), (4, 1.0), (2, 1.5), (1, 0.7)])
def test_the_slowdown_behind_two_simulated_throughputs_is_found(workers, factor):
    """Throughput by worker would say 0.81 for two workers that are not slowed down at all."""
    service_s = service_classes(table().quantiles_s[0], weights())
    alone, shared = simulated_limit(1), simulated_limit(workers, factor)
    slowdown = longest_stretch(service_s, SLA, shared) / longest_stretch(service_s, SLA, alone)
    assert slowdown == pytest.approx(factor, rel=0.05)


def test_service_times_that_were_measured_with_a_throughput_fit_it():
    service_s = service_classes(table().quantiles_s[0], weights())
    for workers in (1, 3):
        assert longest_stretch(service_s, SLA, simulated_limit(workers)) == pytest.approx(1.0, rel=0.06)


def test_a_rate_near_none_leaves_all_of_the_bound_to_service():
    service_s = np.full(1000, 1e-3)
    assert longest_stretch(service_s, SLA, WorkersAtLimit(1, 1e-9)) == pytest.approx(40.0, rel=1e-3)


@pytest.mark.parametrize(("workers", "qps"), [(0, 1.0), (1, 0.0)])
def test_nothing_is_no_limit(workers, qps):
    with pytest.raises(ValueError, match="must both be more than 0"):
        WorkersAtLimit(workers, qps)
