"""The kairos studies, small, on generated measurements: what holds whatever the numbers are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.progress import Progress

from hebe.report.figures import FigureFile
from hebe.studies import (
    STUDIES,
    kairos_bounds,
    kairos_distribution,
    kairos_homogeneous,
    kairos_robustness,
    kairos_search,
    kairos_shift,
)
from hebe.studies import sweep as sweeping
from hebe.studies.kairos_setting import PRICES, SLA_MS, settings
from hebe.studies.page import study_page
from hebe.studies.study import Picture, StudyOptions, StudyResult

from .kairos_measurements import write_measurements

BUDGET = 1.1
MODELS = ("rm2", "wnd")
PROGRESS = Progress(disable=True)


KAIROS = {
    "kairos-bounds": kairos_bounds,
    "kairos-distribution": kairos_distribution,
    "kairos-homogeneous": kairos_homogeneous,
    "kairos-robustness": kairos_robustness,
    "kairos-search": kairos_search,
    "kairos-shift": kairos_shift,
}


@pytest.fixture(scope="module")
def small():
    """One process, few pools, few queries."""

    def with_small_budget(options, models=MODELS):
        return {model: replace(setting, budget_per_hour=BUDGET) for model, setting in settings(options, models).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
        for study in KAIROS.values():
            patch.setattr(study, "settings", with_small_budget)
        patch.setattr(kairos_homogeneous, "EFFORTS", [(120, 2, 100, 0)] * 3)
        patch.setattr(kairos_distribution, "EFFORTS", [kairos_distribution._Effort(MODELS, 100, 100, 1, 100)] * 3)
        patch.setattr(kairos_distribution, "FIG3_POOLS", ((1, 0, 3, 0), (2, 0, 0, 0)))
        patch.setattr(kairos_bounds, "EFFORTS", [kairos_bounds._Effort(MODELS, 10, 2, 100, 1, 2, 100)] * 3)
        patch.setattr(kairos_robustness, "EFFORTS", [kairos_robustness._Effort(("rm2",), 120, 1, 100, 0)] * 3)
        changes = {**kairos_robustness.CHANGES, "budget": ("twice the budget", {"budget_per_hour": 2 * BUDGET})}
        patch.setattr(kairos_robustness, "CHANGES", changes)
        searches = tuple(kairos_search.SEARCHES)
        effort = kairos_search._Effort(("rm2",), 100, 1, 3, kairos_search.SCHEMES, searches)
        patch.setattr(kairos_search, "EFFORTS", [effort] * 3)
        patch.setattr(kairos_shift, "EFFORTS", [kairos_shift._Effort(("rm2",), 100, 1, 100, 100)] * 3)
        patch.setattr(kairos_shift, "TRIALS", 3)
        yield


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Measurements of two models."""
    folder = tmp_path_factory.mktemp("measured")
    write_measurements(folder, MODELS)
    return StudyOptions(quick=True, data=folder)


@pytest.fixture(scope="module")
def result_of(small, options):  # noqa: ARG001
    """A study's result; each runs once."""
    return cache(lambda name: KAIROS[name].run(options, PROGRESS))


@pytest.mark.parametrize("name", KAIROS)
def test_a_study_tells_what_it_measured(name, result_of):
    result: StudyResult = result_of(name)
    assert name in STUDIES
    assert all(table.rows for table in result.tables)
    assert all(figure.name.startswith("kairos.fig") for figure in result.figures)
    assert any(figure.paper is not None for figure in result.figures)
    assert any(isinstance(block, Picture) for block in result.content)
    assert "all measurements" in "".join(block for block in result.content if isinstance(block, str))
    file = FigureFile.here(name, "hebe study", 1.0, True, result.figures)
    page = study_page(KAIROS[name].DESCRIPTION, file, result).render()
    assert page.count("<svg") == sum(isinstance(block, Picture) for block in result.content)


def test_two_runs_agree_to_the_bit(result_of, options):
    assert kairos_homogeneous.run(options, PROGRESS).figures == result_of("kairos-homogeneous").figures


def test_homogeneous_rows_add_up(result_of):
    result = result_of("kairos-homogeneous")
    kairos, hebe, changed = result.tables
    for row, other in zip(kairos.rows, hebe.rows, strict=True):
        cell = dict(zip(kairos.columns, row, strict=True)) | {"Hebe's pool": other[1]}
        assert cell["QoS (ms)"] == SLA_MS[cell["model"]]
        assert float(cell["over homogeneous"]) == pytest.approx(cell["Kairos"] / cell["homogeneous, scaled"], rel=0.1)
        for pool in (cell["Kairos' pool"], cell["Hebe's pool"]):
            assert np.dot(counts(pool), list(PRICES.values())) <= BUDGET * (1 + 1e-9)
    for row in changed.rows:
        assert np.dot(counts(row[5]), list(PRICES.values())) <= BUDGET * (1 + 1e-9)
        assert all(float(cell) > 0 for cell in (row[1], row[3], row[6]))


def test_distribution_gives_every_scheme_a_pool_within_the_budget(result_of):
    result = result_of("kairos-distribution")
    throughput, pools = result.tables[1], result.tables[3]
    assert [row[0] for row in throughput.rows] == list(MODELS)
    assert all(value > 0 for row in throughput.rows for value in row[1:])
    for row in pools.rows:
        for pool in row[1:]:
            assert np.dot(counts(pool.split(":")[0]), list(PRICES.values())) <= BUDGET * (1 + 1e-9)


def test_bounds_fall_along_the_ranking_and_the_best_is_at_least_the_pick(result_of):
    result = result_of("kairos-bounds")
    bounds = [row[1] for row in result.tables[1].rows]
    assert bounds == sorted(bounds, reverse=True)
    over = [figure.value for figure in result.figures if ".pick_over_best." in figure.name]
    assert len(over) == len(MODELS)
    assert all(0 < value <= 1 for value in over)
    for figure in result.figures:
        if ".share_of_bound." in figure.name:
            assert figure.runs == 2
            assert figure.low < figure.value < figure.high


def test_searches_count_pools_of_the_budget(result_of):
    result = result_of("kairos-search")
    by_policy, by_search = result.tables
    assert len(by_policy.rows) == len(kairos_search.SCHEMES)
    for row in by_policy.rows:
        assert np.dot(counts(row[6]), list(PRICES.values())) <= BUDGET * (1 + 1e-9)
        assert 1 <= row[2] < 200
    assert all(float(cell) >= 1 for row in by_search.rows for cell in row[1:])


def test_robustness_has_every_change(result_of):
    result = result_of("kairos-robustness")
    assert len(result.figures) == 2 * len(kairos_robustness.CHANGES)
    assert [table.title for table in result.tables] == [title for title, _ in kairos_robustness.CHANGES.values()]


def test_the_shift_is_noticed_and_planned_for(result_of):
    result = result_of("kairos-shift")
    plans, courses, learning = result.tables
    assert [row[0] for row in learning.rows] == [50, 100, 200]
    noticed = next(figure for figure in result.figures if figure.name.endswith("queries_until_noticed.rm2"))
    assert 0 < noticed.value < 5_000
    assert plans.rows[0][0] == "the plan before"
    after = [int(row[0].replace(",", "")) for row in plans.rows[1:]]
    assert after == sorted(after)
    assert after[0] == noticed.value
    for row in (*plans.rows, *([None, row[6], None, row[6]] for row in courses.rows)):
        for pool in (row[1], row[3]):
            assert np.dot(counts(pool), list(PRICES.values())) <= BUDGET * (1 + 1e-9)


def counts(pool):
    """The counts in "(1, 0, 2, 0)"."""
    return [int(count) for count in pool.strip("()").split(",")]
