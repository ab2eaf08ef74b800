"""hps-accuracy: what it tells of a small run, and which click logs it takes."""

import pytest
from rich.progress import Progress
from tests.lab.studies.study_page import page_of

from hebe.models.training.criteo_sample import generate_criteo
from hebe_lab.studies.hps import accuracy as hps_accuracy
from hebe_lab.studies.hps.accuracy import DEFAULTS, PAPER_CACHE, ZERO, Effort, batch_size, run
from hebe_lab.study import StudyError, StudyOptions

ROWS = 2000


def test_the_study_tells_what_it_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(hps_accuracy, "EFFORTS", [Effort(ROWS, (0.0005, PAPER_CACHE))] * 3)
    monkeypatch.setattr(hps_accuracy, "_DRAWS", 10)
    few = (ZERO, DEFAULTS[-1])
    monkeypatch.setattr(hps_accuracy, "DEFAULTS", few)
    (tmp_path / "criteo").mkdir()
    generate_criteo(tmp_path / "criteo" / "train.txt", ROWS)
    with Progress(disable=True) as progress:
        result = run(StudyOptions(quick=True, data=tmp_path), progress)
    values = {figure.name: figure.value for figure in result.figures}
    assert values["hps.fig9.auc_lost.cold"] != 0
    assert abs(values["hps.fig9.auc_lost.seen"]) < 0.1
    thresholds, spread, defaults = result.tables
    assert [row[0] for row in thresholds.rows] == ["0", "0.5", "1"]
    assert thresholds.rows[-1][5] == "0.00%"
    assert spread.rows[0][1:4] == ["cold, one batch", "0.0%", "0.0%"]
    assert [row[3] for row in defaults.rows] == 2 * [default.name for default in few]
    assert "rows of train.txt" in result.content[0]
    assert page_of(hps_accuracy, result).count("<svg") == 2


def test_a_directory_without_a_click_log_is_named(tmp_path):
    with Progress(disable=True) as progress, pytest.raises(StudyError, match=r"there is none of criteo/train\.txt"):
        run(StudyOptions(data=tmp_path), progress)


@pytest.mark.parametrize(("rows", "expected"), [(1, 1), (400, 10), (20_000, 500), (10**6, 1024)])
def test_batches_are_as_large_as_the_paper_s_where_the_tail_allows(rows, expected):
    assert batch_size(rows) == expected
