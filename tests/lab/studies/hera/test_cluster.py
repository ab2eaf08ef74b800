"""hera-cluster: servers counted with co-runs that are as predicted, and plans made again where they fall short."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.hera import cluster as hera_cluster
from hebe_lab.studies.hera.node import ENTRIES, Effort, HeraNode, Measured
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hera_co_runs import as_predicted


def test_servers_are_counted_and_the_optimum_is_proved(monkeypatch):
    monkeypatch.setattr(hera_cluster, "measure_all", as_predicted)
    result = hera_cluster.run(StudyOptions(quick=True), Progress(disable=True))
    by_target, by_share, proved, left_out = result.tables
    for row in by_target.rows:
        assert float(row[4]) <= 0.95 * float(row[1])  # Hera, and one model a server
    assert [row[-1] for row in proved.rows] == [True]
    assert by_share.rows[0][1] == by_share.rows[0][4]  # nobody to share with
    assert [row[0] for row in left_out.rows] == list(ENTRIES)
    figures = {figure.name: figure for figure in result.figures}
    assert figures["hera.servers_saved.deeprecsys"].paper == 26.0
    assert figures["hera.servers_saved.optimal2"].value >= 0, "the optimum needs no more servers than Hera"
    assert_well_told(hera_cluster, result)


@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.9, True), (0.0, False)])
def test_a_plan_that_falls_short_is_made_again_for_more(monkeypatch, share, holds):
    """Where servers sustain `share` of what is predicted."""

    def sustained(_title, cases, _progress):
        return [Measured(tuple(share * tenant.qps for tenant in case.tenants), (1.0,)) for case in cases]

    monkeypatch.setattr(hera_cluster, "measure_all", sustained)
    monkeypatch.setattr(hera_cluster, "_MOST_PROOFS", 4)
    proofs = hera_cluster._Proofs(HeraNode(), Effort(1, 1), {}, Progress(disable=True))
    demand = {"DLRM (D)": 4_000.0, "NCF": 40_000.0}
    first, last, held = proofs.prove(demand, 2, 2.0)
    assert held == holds
    assert (first is last) == (share == 1.0)
    assert last.servers >= first.servers
