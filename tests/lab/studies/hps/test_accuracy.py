"""hps-accuracy: what it tells of a small run, and which click logs it takes.

A small model trained on made-up rows, and its held-out tail served from caches.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.embeddings.cache.host_cache import HostCache
from hebe.models.training.criteo_sample import generate_criteo
from hebe_lab.studies.hps import accuracy as hps_accuracy
from hebe_lab.studies.hps.accuracy import DEFAULTS, PAPER_CACHE, ZERO, Case, Effort, batch_size, run, score_cases
from hebe_lab.study import StudyError, StudyOptions
from tests.lab.studies.study_page import page_of

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


CASES = [
    Case(PAPER_CACHE, 1.0),
    Case(PAPER_CACHE),
    Case(PAPER_CACHE, seen=1.0),
    Case(0.0005),
    Case(PAPER_CACHE, at_once=True),
    Case(PAPER_CACHE, at_once=True, default=DEFAULTS[-1]),
]


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A log of made-up rows, its scores with all rows in memory, and each of `CASES`."""
    with Progress(disable=True) as progress:
        log, exact, scored = score_cases(None, ROWS, CASES, tmp_path_factory.mktemp("accuracy"), progress)
    return log, exact, dict(zip(CASES, scored, strict=True))


def test_the_tail_is_scored(scored):
    log, exact, by_case = scored
    assert (log.trained_rows, len(log.labels), log.batch) == (1600, 400, 10)
    assert exact.own_rows == exact.hit_rate == 1.0
    assert all(answer.scores.shape == log.labels.shape for answer in by_case.values())


def test_who_waits_gets_the_scores_of_all_rows(scored):
    _, exact, by_case = scored
    waiting = by_case[CASES[0]]
    assert waiting.own_rows == 1.0
    assert waiting.hit_rate < 1.0
    assert waiting.scores == pytest.approx(exact.scores, abs=1e-5)


def test_what_a_cache_has_seen_and_how_large_it_is_shows_in_its_hit_rate(scored):
    _, exact, by_case = scored
    cold, seen, small, at_once, ones = (by_case[case] for case in CASES[1:])
    assert (at_once.hit_rate, at_once.own_rows) == (0.0, 0.0)
    assert 0 < small.hit_rate < cold.hit_rate < seen.hit_rate < 1
    assert cold.hit_rates[0] == 0.0
    assert all(answer.own_rows >= answer.hit_rate for answer in by_case.values())  # popular keys are asked for often
    off = [np.abs(answer.scores - exact.scores).mean() for answer in (seen, cold, at_once, ones)]
    assert off == sorted(off)
    assert off[0] < off[-1]


def test_a_run_can_be_repeated(scored, tmp_path):
    _, _, by_case = scored
    with Progress(disable=True) as progress:
        _, _, (again,) = score_cases(None, ROWS, CASES[3:4], tmp_path, progress)
    assert np.array_equal(again.hit_rates, by_case[CASES[3]].hit_rates)
    assert again.scores == pytest.approx(by_case[CASES[3]].scores, abs=1e-6)


def test_wrong_rows_are_noticed(monkeypatch, tmp_path):
    replace = HostCache.replace_tables

    def replace_by_wrong(cache, tables, keys, starts, rows, *others):
        replace(cache, tables, keys, starts, rows + 1, *others)

    monkeypatch.setattr(HostCache, "replace_tables", replace_by_wrong)
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="items that got all their rows"):
        score_cases(None, ROWS, [Case(PAPER_CACHE, seen=1.0)], tmp_path, progress)


def test_a_log_that_cannot_be_trained_on_is_an_error_of_its_own(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("not\ta click\tlog\n")
    with Progress(disable=True) as progress, pytest.raises(StudyError, match=r"train\.txt"):
        score_cases(path, ROWS, CASES[:1], tmp_path, progress)
