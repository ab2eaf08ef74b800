import subprocess
import sys
from pathlib import Path

import pytest
from rich.progress import Progress

from hebe.report.description import module_description
from hebe.report.figures import FigureFile
from hebe.studies import STUDIES
from hebe.studies.runner import run_study, study_descriptions
from hebe.studies.study import StudyError, StudyOptions

BLOCKED = """import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in ('torch', 'numba', 'llvmlite', 'triton'):
            raise ImportError(f'{name} is blocked')
sys.meta_path.insert(0, Blocked())
"""
"""Importing any of these then fails. (None in `sys.modules` would not do: SciPy takes it for the module.)"""


def quiet():
    return Progress(disable=True)


@pytest.mark.usefixtures("queueing")
def test_descriptions_are_read_without_import():
    del sys.modules["queueing_study"]
    STUDIES["queueing"] = "hebe.studies.study"
    assert study_descriptions() == {"queueing": ""}
    assert module_description("hebe.bench.sparse").startswith("The fused lookup")
    assert module_description("hebe.studies.none") is None


@pytest.mark.usefixtures("queueing")
@pytest.mark.parametrize(
    ("options", "words"),
    [(StudyOptions(quick=True), " --quick"), (StudyOptions(), ""), (StudyOptions(full=True), " --full")],
)
def test_a_run_says_how_it_was_made(options, words):
    run = run_study("queueing", options, quiet())
    assert run.file.command == f"hebe study queueing{words}"
    assert run.file.quick is options.quick
    assert run.file.seconds > 0
    assert run.result.tables[0].rows[0][4] == options.pick(2_000, 20_000, 200_000)


@pytest.mark.usefixtures("queueing")
def test_a_run_on_data_names_no_folder_of_this_machine(tmp_path):
    (tmp_path / "note.txt").write_text("measured")
    run = run_study("queueing", StudyOptions(data=tmp_path), quiet())
    assert run.file.command == "hebe study queueing --data DIR"
    assert run.file.figures[0].note == "measured"
    assert str(tmp_path) not in str(run.to_dict())
    with pytest.raises(StudyError, match=r"note\.txt: there is no such file"):
        run_study("queueing", StudyOptions(data=tmp_path / "none"), quiet())


@pytest.mark.usefixtures("queueing")
def test_what_is_written(tmp_path):
    run = run_study("queueing", StudyOptions(quick=True), quiet())
    figures, page = run.write(tmp_path / "out")
    assert (figures, page) == (tmp_path / "out/figures/queueing.json", tmp_path / "out/studies/queueing.html")
    assert FigureFile.read(figures).figures == run.file.figures
    assert page.read_text().startswith("<!doctype html>")


def test_a_study_runs_without_torch(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{BLOCKED}sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from hebe.studies import STUDIES\n"
            "STUDIES['queueing'] = 'queueing_study'\n"
            "from hebe.cli.main import main\n"
            f"main(['study', 'queueing', '--quick', '--out', {str(tmp_path)!r}])",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Mean wait" in done.stdout
    assert (tmp_path / "studies" / "queueing.html").is_file()


def test_every_study_is_described_and_imports_without_torch():
    for name, description in study_descriptions().items():
        assert name not in ("all", "list")
        assert 0 < len(description) <= 120, name
        assert "\n" not in description, name
    check = (
        f"{BLOCKED}from importlib import import_module\nfor name in {list(STUDIES.values())}: import_module(name).run"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
