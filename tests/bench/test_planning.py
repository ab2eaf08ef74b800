"""What `hebe bench planning` checks before it measures for minutes."""

from pathlib import Path

import pytest
from rich.progress import Progress

from hebe.bench import planning
from hebe.studies.study import StudyError

from ..studies.kairos_measurements import write_measurements


def test_measurements_that_lack_something_are_told_before_anything_is_measured(tmp_path: Path, monkeypatch):
    def measured(*_given: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(planning, "solver_figures", measured)
    with pytest.raises(StudyError, match=r"exec_ms\.csv: there is no such file"), Progress(disable=True) as progress:
        planning.run(True, progress, tmp_path)
    write_measurements(tmp_path, ("ncf",))
    with pytest.raises(StudyError, match="no measurements of model rm2"), Progress(disable=True) as progress:
        planning.run(False, progress, tmp_path / "kairos")
