"""What `hebe bench planning` checks before it measures for minutes, and how it has its studies run."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench.planning import planning
from hebe_lab.study import StudyError, StudyOptions
from tests.examples.kairos_measurements import write_measurements


def test_measurements_that_lack_something_are_told_before_anything_is_measured(tmp_path: Path, monkeypatch):
    def measured(*_given: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(planning, "solver_figures", measured)
    with pytest.raises(StudyError, match=r"exec_ms\.csv: there is no such file"), Progress(disable=True) as progress:
        planning.run(True, progress, tmp_path)
    write_measurements(tmp_path, ("ncf",))
    with pytest.raises(StudyError, match="no measurements of model rm2"), Progress(disable=True) as progress:
        planning.run(False, progress, tmp_path / "kairos")


def test_a_part_is_measured_alone(monkeypatch):
    for name in ("solver_figures", "simulator_figures", "kairos_figures", "run_study"):
        monkeypatch.setattr(planning, name, lambda *_given, name=name: [Figure(name, 1.0, "share")])
    with Progress(disable=True) as progress:
        assert [figure.name for figure in planning.run(True, progress, only="solvers")] == ["solver_figures"]
        assert [figure.name for figure in planning.run(True, progress, only="simulator")] == ["simulator_figures"]
        assert planning.run(True, progress, only="kairos") == [], "without measurements"


@pytest.mark.parametrize("quick", [True, False])
def test_studies_run_as_thoroughly_as_the_bench_and_on_the_load_it_is_given(tmp_path: Path, monkeypatch, quick):
    asked: list[StudyOptions] = []

    def run_study(name: str, options: StudyOptions, _progress: Progress) -> SimpleNamespace:
        asked.append(options)
        figures = [Figure(f"{beginning}x", 1.0, "share") for beginning in (*planning.STUDY_FIGURES[name], "another.")]
        return SimpleNamespace(file=SimpleNamespace(command=f"hebe study {name}", figures=figures))

    monkeypatch.setattr(planning, "run_study", run_study)
    for name in ("solver_figures", "simulator_figures", "kairos_figures"):
        monkeypatch.setattr(planning, name, lambda *_given: [])
    write_measurements(tmp_path, planning.FULL.models)
    with Progress(disable=True) as progress:
        figures = planning.run(quick, progress, tmp_path)
    assert asked == [StudyOptions(quick=quick)] * 3, "without load/ the built-in day"
    assert {figure.name for figure in figures} == {f"{each}x" for of in planning.STUDY_FIGURES.values() for each in of}
    assert figures[-1].note == "as hebe study hera-emu"
    (tmp_path / "load").mkdir()
    with pytest.raises(StudyError, match=r"nyc_taxi\.csv: there is no such file"), Progress(disable=True) as progress:
        planning.run(quick, progress, tmp_path)
    (tmp_path / "load" / "nyc_taxi.csv").write_text(
        "timestamp,value\n2014-07-01 00:00:00,10\n2014-07-01 00:30:00,20\n2014-07-01 01:00:00,10\n"
    )
    with Progress(disable=True) as progress:
        planning.run(quick, progress, tmp_path)
    assert asked[-3:] == [StudyOptions(quick=quick, data=tmp_path)] * 3
