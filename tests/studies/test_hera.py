"""The hera studies: what they tell of given co-runs, and the co-runs themselves, short ones."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from rich.progress import Progress

from hebe.planning.affinity import WorkerScalability, worker_scalability
from hebe.planning.colocation import ServerGroup, Tenant, share_server
from hebe.report.figures import FigureFile
from hebe.studies import hera_affinity, hera_cluster, hera_emu, hera_sensitivity
from hebe.studies.hera_node import (
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
from hebe.studies.page import study_page
from hebe.studies.study import StudyOptions

NODE = HeraNode()


def as_predicted(_title, cases, _progress):
    """Every set sustains 0.97 of what is predicted; on half of the cores each, of what contention leaves."""
    answers = []
    for case in cases:
        alone = case.alone or [case.node.by_itself(tenant.model) for tenant in case.tenants]
        kept = np.full(len(case.tenants), 0.97 if len(case.tenants) > 1 else 1.0)
        if case.alone:
            tables = case.node.tables
            at = [tables.index_of(tenant.model) for tenant in alone], [tenant.workers for tenant in alone]
            contention = tables.contention
            kept *= contention.kept(
                *(part[at][None] for part in (contention.demand, contention.share, contention.alone))
            )[0]
        together = kept * [tenant.qps for tenant in case.tenants]
        answers.append(Measured(tuple(together.tolist()), tuple(tenant.qps for tenant in alone)))
    return answers


@pytest.fixture(params=[hera_affinity, hera_cluster, hera_emu, hera_sensitivity], ids=lambda study: study.__name__)
def study(request, monkeypatch):
    """A study whose co-runs are not simulated, which would take a minute."""
    monkeypatch.setattr(request.param, "measure_all", as_predicted)
    monkeypatch.setattr(hera_sensitivity, "NODES", hera_sensitivity.NODES[:2])
    return request.param


def test_a_study_tells_what_it_measured(study):
    result = study.run(StudyOptions(quick=True), Progress(disable=True))
    assert result.tables
    assert all(table.rows for table in result.tables)
    assert all(figure.name.startswith("hera.") for figure in result.figures)
    assert any(figure.paper is not None for figure in result.figures)
    file = FigureFile.here("hera", "hebe study", 1.0, True, result.figures)
    page = study_page(study.DESCRIPTION, file, result).render()
    assert "<svg" in page
    values = {figure.name: figure.value for figure in result.figures}
    if study is hera_affinity:
        assert values["hera.affinity_correlation"] > 0.95
        assert len(result.tables[0].rows) == 36
    if study is hera_emu:
        (least,) = (figure for figure in result.figures if figure.name == "hera.emu.min")
        formed = [row for row in result.tables[1].rows if row[-1]]
        assert least.runs == len(formed) > len(scaling_badly(NODE))
        assert f"{100 * least.value:.0f}%" == min((row[7] for row in formed), key=lambda share: int(share[:-1]))
        assert 1 < least.value < values["hera.emu.min.first_partner"]
        assert values["hera.emu_error"] == pytest.approx(1 / 0.97 - 1)
        assert len(result.tables[1].rows) == 28
    if study is hera_cluster:
        for row in result.tables[0].rows:
            assert float(row[4]) <= 0.95 * float(row[1])  # Hera, and one model a server
        assert [row[-1] for row in result.tables[2].rows] == [True]
        assert result.tables[1].rows[0][1] == result.tables[1].rows[0][4]  # nobody to share with
    if study is hera_sensitivity:
        assert [row[0] for row in result.tables[1].rows] == [node.cores for node in hera_sensitivity.NODES]


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


def test_every_pair_that_algorithm_2_forms_counts_first_partner_or_not():
    """By what pairs should serve, and by what they were measured to."""
    pairs = list(combinations(ENTRIES, 2))
    groups = {pair: share_server(NODE.tables, pair) for pair in pairs}
    cases = [CoRunCase(NODE, groups[pair].tenants, Effort(1, 1)) for pair in pairs]
    measured = dict(zip(pairs, as_predicted("", cases, None), strict=True))
    formed = hera_emu.formed_pairs(NODE, groups, measured)
    assert {("DLRM (B)", "WnD"), ("DLRM (B)", "NCF"), ("DLRM (D)", "DIEN")} <= set(formed)
    # a plan that knows that one pair does badly leaves the partner to another model
    first, second = ("DLRM (B)", "WnD"), ("DLRM (D)", "WnD")
    assert second not in formed
    measured[first] = replace(measured[first], together_qps=tuple(0.5 * qps for qps in measured[first].together_qps))
    assert {first, second} <= set(hera_emu.formed_pairs(NODE, groups, measured))


def test_demands_are_the_papers_settings():
    low = scaling_badly(NODE)
    for share, demand in skewed_demands(low).items():
        assert sum(demand.values()) == pytest.approx(SKEWED_QPS)
        assert sum(demand[name] for name in low) == pytest.approx(share * SKEWED_QPS)
    assert all(set(demand.values()) == {target} for target, demand in even_demands().items())


def test_hera_pairs_each_model_that_scales_badly_with_one_that_scales():
    low = scaling_badly(NODE)
    pairs = hera_emu.hera_pairs(NODE, low)
    assert len(pairs) == len(low)
    assert all(len(set(pair) & set(low)) == 1 for pair in pairs)
