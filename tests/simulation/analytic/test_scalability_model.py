from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hebe.models import catalog
from hebe.planning.colocation.shared_server import ScalabilityTables
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.analytic.scalability_model import resources_of, scalability_profile
from hebe.simulation.analytic.server_types import HERA_SOCKET
from hebe.simulation.fleet.fleet_run import QueryTrace
from hebe.simulation.node.co_run import BatchCosts, SharedServerSimulation, TenantLoad
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes, ProductionSizes

SHARED = SharedServerModel(replace(HERA_SOCKET, flops_per_cycle_per_core=64.0), 11)
SIZES = ProductionSizes().draw(5_000, np.random.default_rng(0))
NAMES = ("dlrm-a", "dlrm-d", "ncf", "wnd")


@cache
def profile_of(name):
    """Not when the file is read, which every process does that runs some of the tests."""
    return scalability_profile(SHARED, catalog.entry(f"hera-{name}"), SIZES)


@pytest.mark.parametrize("name", NAMES)
def test_more_workers_and_more_ways_serve_more(name):
    rows = np.array(profile_of(name).qps_by_cache_ways)
    assert rows.shape == (16, 11)
    assert (np.diff(rows, axis=0) > 0).all()
    assert (np.diff(rows, axis=1) >= -1e-6 * rows.max()).all()
    assert profile_of(name).estimated


def test_planning_can_use_the_profiles():
    made = ScalabilityTables.of([profile_of(name) for name in NAMES], resources_of(SHARED))
    np.testing.assert_allclose(made.alone, [profile.qps[-1] for profile in map(profile_of, NAMES)])


def test_memory_holds_so_many_workers():
    profile = scalability_profile(SHARED, catalog.entry("hera-dlrm-b"), SIZES)
    assert profile.workers == (1, 2, 3, 4, 5, 6, 7)  # 7 x 25.6 of 192 GB
    assert profile.memory_bytes[-1] == pytest.approx(7 * 25.6e9)


def test_nothing_moves_more_than_the_memory_gives():
    for profile in map(profile_of, NAMES):
        assert max(profile.bandwidth_bytes_per_s) <= resources_of(SHARED).bandwidth_bytes_per_s


def test_a_target_below_the_service_time_is_out_of_reach():
    profile = scalability_profile(SHARED, catalog.entry("hera-wnd"), SIZES, SlaTarget(1.0))
    assert not any(profile.qps)


@pytest.mark.parametrize(
    ("name", "workers", "ways"), [("dlrm-a", 16, 11), ("dlrm-d", 8, 3), ("ncf", 16, 1), ("wnd", 8, 11)]
)
def test_means_and_formulas_agree_with_the_simulation(name, workers, ways):
    spec, predicted = catalog.entry(f"hera-{name}"), profile_of(name).qps_table()[workers, ways]
    queries = 8_000
    trace = QueryTrace.draw(2 * queries, ProductionSizes(), 5)
    tenant = TenantLoad(BatchCosts(BatchPhases(SHARED, spec)), workers, ways, spec.sla, trace)
    simulated = SharedServerSimulation([tenant], queries / predicted).sustained([predicted]).qps[0]
    assert simulated == pytest.approx(predicted, rel=0.1)


def test_a_query_is_split_over_workers():
    """On one worker four batches follow each other, on four they run side by side."""
    ncf, size = catalog.entry("hera-ncf"), np.array([1024])
    batch = BatchPhases(SHARED, ncf).times([256], SHARED.core_cache_bytes + SHARED.server.llc_bytes / 4)
    bound_ms = 1.5e3 * float(batch.compute_s[0] + batch.memory_s[0])
    profile = scalability_profile(SHARED, ncf, size, SlaTarget(bound_ms))
    assert profile.qps[0] == 0
    assert profile.qps[3] > 0


def test_a_profile_has_the_name_it_is_given():
    assert scalability_profile(SHARED, catalog.entry("hera-ncf"), SIZES[:50], name="NCF").model == "NCF"


@pytest.mark.parametrize(
    ("server", "sizes", "message"),
    [
        (SHARED, FixedSizes(1).draw(0, np.random.default_rng(0)), "query sizes: give at least one"),
        (SHARED, np.array([0, 5]), "query sizes: give at least one, each at least 1 item"),
        (replace(SHARED, server=replace(HERA_SOCKET, memory_bytes=10**9)), SIZES, "one worker's tables take 25.6 GB"),
    ],
)
def test_what_cannot_be_profiled_is_refused(server, sizes, message):
    with pytest.raises(PlanningError, match=message):
        scalability_profile(server, catalog.entry("hera-dlrm-b"), sizes)
