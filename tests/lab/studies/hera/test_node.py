"""Hera's node: its models' profiles, short co-runs of them, and the demands of the paper's figures."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.planning.colocation.affinity import WorkerScalability, worker_scalability
from hebe.planning.colocation.colocation import ServerGroup, Tenant
from hebe_lab.studies.hera.node import (
    ENTRIES,
    SKEWED_QPS,
    CoRunCase,
    Effort,
    HeraNode,
    Measured,
    even_demands,
    measure_all,
    measured_rates,
    scaling_badly,
    skewed_demands,
)

NODE = HeraNode()


def test_the_paper_s_models_of_low_scalability_are_ours_too():
    assert {"DLRM (B)", "DLRM (D)"} <= set(scaling_badly(NODE))
    assert worker_scalability(NODE.tables).count(WorkerScalability.HIGH) >= 5


def test_eight_workers_of_dlrm_b_fill_the_memory():
    assert NODE.by_itself("DLRM (B)").workers == 8
    assert {NODE.by_itself(name).workers for name in ENTRIES if name != "DLRM (B)"} == {16}


def test_half_of_the_socket():
    tenant = NODE.on_half("NCF", 4)
    assert (tenant.workers, tenant.cache_ways) == (8, 4)
    assert tenant.qps < NODE.by_itself("NCF").qps


def test_what_is_alone_in_a_co_run_sustains_what_it_does_alone():
    tenant = NODE.by_itself("DLRM (C)")
    answer = NODE.measure([tenant], Effort(300, 3_000))
    assert answer.together_qps == answer.alone_qps
    assert answer.utilization == pytest.approx(1.0)
    assert answer.alone_qps[0] == pytest.approx(tenant.qps, rel=0.3)


def test_a_measurement_can_be_repeated():
    tenants = [NODE.on_half("NCF", 5), NODE.on_half("DLRM (D)", 6)]
    one, other = (NODE.measure(tenants, Effort(50, 1_000)) for _ in range(2))
    assert one == other


def test_cases_are_measured_in_processes_of_their_own():
    tenants = (NODE.by_itself("DLRM (D)"), NODE.by_itself("DIN"))
    cases = [CoRunCase(NODE, (tenant,), Effort(50, 500)) for tenant in tenants]
    answers = measure_all("alone", cases, Progress(disable=True))
    assert answers == [NODE.measure([tenant], Effort(50, 500)) for tenant in tenants]


def test_rates_go_to_planning_by_set():
    group = ServerGroup((Tenant("NCF", 8, 5, 100.0), Tenant("DIEN", 8, 6, 10.0)), 1, 1.0)
    rates = measured_rates([group], [Measured((90.0, 9.0), (200.0, 20.0))])
    assert rates == {frozenset(["NCF", "DIEN"]): {"NCF": 90.0, "DIEN": 9.0}}


def test_a_socket_of_another_size_is_another_socket():
    small = HeraNode(12, 5, 85e9)
    assert small.tables.server.cores == 12
    assert small.shared.way_bytes == NODE.shared.way_bytes
    assert (small.tables.alone < NODE.tables.alone).all()
    assert np.isfinite(small.tables.alone).all()


def test_demands_are_the_papers_settings():
    low = scaling_badly(NODE)
    for share, demand in skewed_demands(low).items():
        assert sum(demand.values()) == pytest.approx(SKEWED_QPS)
        assert sum(demand[name] for name in low) == pytest.approx(share * SKEWED_QPS)
    assert all(set(demand.values()) == {target} for target, demand in even_demands().items())
