"""hera-affinity: what it tells of co-runs that are as predicted."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.hera import affinity as hera_affinity
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hera_co_runs import as_predicted


def test_what_is_estimated_correlates_with_what_co_runs_keep(monkeypatch):
    monkeypatch.setattr(hera_affinity, "measure_all", as_predicted)
    result = hera_affinity.run(StudyOptions(quick=True), Progress(disable=True))
    figures = {figure.name: figure for figure in result.figures}
    assert figures["hera.affinity_correlation"].value > 0.95
    assert figures["hera.affinity_correlation"].paper == 0.95
    (pairs,) = result.tables
    assert len(pairs.rows) == 36
    for _, _, cache, bandwidth, contended, kept in pairs.rows:
        assert max(cache, bandwidth, contended, kept) <= 1 + 1e-9
    over = figures["hera.affinity_error.contended"].value
    assert over == pytest.approx(max(row[4] / row[5] for row in pairs.rows) - 1)
    assert_well_told(hera_affinity, result)
