"""hera-emu: what it tells of co-runs that are as predicted, and which pairs are formed."""

from dataclasses import replace
from itertools import combinations

import pytest
from rich.progress import Progress

from hebe.planning.colocation.colocation import share_server
from hebe_lab.studies.hera import emu as hera_emu
from hebe_lab.studies.hera.node import ENTRIES, CoRunCase, Effort, HeraNode, scaling_badly
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hera_co_runs import as_predicted

NODE = HeraNode()


def test_the_least_emu_is_that_of_the_pairs_that_are_formed(monkeypatch):
    monkeypatch.setattr(hera_emu, "measure_all", as_predicted)
    result = hera_emu.run(StudyOptions(quick=True), Progress(disable=True))
    figures = {figure.name: figure for figure in result.figures}
    least = figures["hera.emu.min"]
    by_way, pairs, _ = result.tables
    formed = [row for row in pairs.rows if row[-1]]
    assert len(pairs.rows) == 28
    assert least.runs == len(formed) > len(scaling_badly(NODE))
    assert f"{100 * least.value:.0f}%" == min((row[7] for row in formed), key=lambda share: int(share[:-1]))
    assert 1 < least.value < figures["hera.emu.min.first_partner"].value
    assert figures["hera.emu_error"].value == pytest.approx(1 / 0.97 - 1)
    assert by_way.rows[0][:6] == ["one model a server", 0, *["100%"] * 4]
    assert [row[-1] for row in by_way.rows] == ["37.3%", "34.7%", "5.4%", None]
    assert_well_told(hera_emu, result)


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


def test_hera_pairs_each_model_that_scales_badly_with_one_that_scales():
    low = scaling_badly(NODE)
    pairs = hera_emu.hera_pairs(NODE, low)
    assert len(pairs) == len(low)
    assert all(len(set(pair) & set(low)) == 1 for pair in pairs)
