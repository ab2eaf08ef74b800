"""How far the analytic servers are from Kairos' measurements: the bounds that docs/analytic-servers.md states."""

from dataclasses import replace
from functools import cache

import pytest
from rich.progress import Progress

from hebe.report.document import Table
from hebe.simulation.analytic.server_types import EC2
from hebe_lab.runner import run_study
from hebe_lab.studies import analytic_error
from hebe_lab.studies.analytic_error import EXECUTION_MS, ITEMS, points_of, typical_factor
from hebe_lab.study import StudyError, StudyOptions
from tests.examples.kairos_measurements import write_measurements
from tests.places import SHARED_DATA

HOSTS = ("c5n.2xlarge", "r5n.large")


@cache
def points():
    return points_of(EXECUTION_MS)


@cache
def result():
    return analytic_error.run(StudyOptions(), Progress(disable=True))


def figures():
    return {figure.name: figure for figure in result().figures}


def ratios(server_type, *models):
    return [p.ratio for p in points() if p.server_type == server_type and p.model in (models or EXECUTION_MS)]


def test_the_stated_bounds_hold():
    assert len(points()) == len(EXECUTION_MS) * len(EC2) * len(ITEMS)
    assert typical_factor(points()) < 1.65
    assert all(0.3 < point.ratio < 2.6 for point in points())
    within = sum(0.5 <= point.ratio <= 2.0 for point in points())
    assert within / len(points()) >= 0.75


@pytest.mark.parametrize("server_type", HOSTS)
def test_plain_hosts_are_off_by_less_than_two_but_for_dien_and_the_smallest_model(server_type):
    assert all(0.75 < ratio < 1.85 for ratio in ratios(server_type, "rm2", "wnd", "mtwnd"))
    assert all(0.45 < ratio < 0.8 for ratio in ratios(server_type, "ncf"))


def test_a_vcpu_that_counts_as_a_core_is_farther_off():
    assert all(spec.cores in (1, 2, 4) for spec in EC2.values())
    before = points_of(
        EXECUTION_MS,
        HOSTS,
        server=lambda spec: replace(spec, cores=2 * spec.cores, flops_per_cycle_per_core=16.0),
    )
    assert typical_factor(before) > 1.4 * typical_factor([p for p in points() if p.server_type in HOSTS])


def test_figures_tell_the_same():
    told = figures()
    assert told["analytic_error.typical"].value == pytest.approx(typical_factor(points()))
    assert told["analytic_error.r5n"].low == pytest.approx(min(ratios("r5n.large")))
    assert told["analytic_error.r5n"].high == pytest.approx(max(ratios("r5n.large")))
    assert told["analytic_error.between_hosts"].value < 1.5
    assert told["analytic_error.between_hosts_and_accelerator"].value < 1.9
    assert 0.5 < told["analytic_error.order_held.hosts"].value < 0.7
    assert told["analytic_error.order_held.hosts_and_accelerator"].value > 0.9
    assert 15 < told["analytic_error.copy_us"].value < 25


def quiet():
    return Progress(disable=True)


def test_it_runs_by_its_name_and_writes_its_page(tmp_path):
    run = run_study("analytic-error", StudyOptions(quick=True), quiet())
    _, page = run.write(tmp_path)
    assert run.file.seconds < 30
    assert "t3.xlarge" in page.read_text()


def test_the_table_has_a_row_for_each_model_and_type():
    table = next(block for block in result().content if isinstance(block, Table))
    assert len(table.rows) == len(EXECUTION_MS) * len(EC2)
    assert all(len(row) == 2 + len(ITEMS) for row in table.rows)


def test_measurements_can_be_given(tmp_path):
    write_measurements(tmp_path, list(EXECUTION_MS))
    given = analytic_error.run(StudyOptions(data=tmp_path), quiet())
    row = next(block for block in given.content if isinstance(block, Table)).rows[-1]
    assert row[:2] == ["dien", "t3.xlarge"]
    assert row[2].startswith("1.54 / ")  # 10 items of 0.15 ms, the middle one of what is kept


@pytest.mark.parametrize(
    ("models", "message"), [(("rm2",), "must hold ncf, rm2"), ((), "exec_ms.csv: there is no such file")]
)
def test_measurements_that_lack_something_are_refused(tmp_path, models, message):
    if models:
        write_measurements(tmp_path, models)
    with pytest.raises(StudyError, match=message):
        analytic_error.run(StudyOptions(data=tmp_path), quiet())


@pytest.mark.skipif(not (SHARED_DATA / "kairos").is_dir(), reason="the artifact's measurements are not here")
def test_the_built_in_figures_are_the_artifacts():
    recorded = analytic_error._measured(StudyOptions(data=SHARED_DATA))
    for model, by_type in EXECUTION_MS.items():
        for kind, medians_ms in by_type.items():
            assert recorded[model][kind] == pytest.approx(medians_ms, rel=1e-3)
