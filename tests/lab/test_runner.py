import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from rich.progress import Progress

from hebe.report.figures import FigureFile
from hebe_lab import runner
from hebe_lab.description import module_description
from hebe_lab.runner import keeping_parts, run_study, study_descriptions
from hebe_lab.studies import STUDIES
from hebe_lab.study import StudyError, StudyOptions
from tests.places import DOCS

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
    STUDIES["queueing"] = "hebe_lab.study"
    assert study_descriptions() == {"queueing": ""}
    assert module_description("hebe_lab.bench.embeddings.sparse").startswith("The fused lookup")
    assert module_description("hebe_lab.studies.none") is None


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
    assert str(tmp_path) not in str(run.document.data)
    with pytest.raises(StudyError, match=r"note\.txt: there is no such file"):
        run_study("queueing", StudyOptions(data=tmp_path / "none"), quiet())


@pytest.mark.parametrize("quick", [True, False])
def test_a_study_that_reads_no_data_is_given_none_and_claims_none(monkeypatch, tmp_path, queueing, quick):
    monkeypatch.delattr(queueing, "DATA")
    monkeypatch.setattr(runner, "current_commit", lambda: "c0ffee")
    options = StudyOptions(quick=quick, data=tmp_path)
    run = run_study("queueing", options, quiet())
    assert run.file.command == f"hebe study queueing{' --quick' if quick else ''}"
    assert run.file.figures[0].note == "one seed"
    parts = keeping_parts("queueing", options, tmp_path, quiet()).parts
    assert (parts.of["command"], parts.of["data"]) == (run.file.command, None)


def test_the_documentation_says_which_data_each_study_reads():
    told = {}
    for line in (DOCS / "studies.md").read_text().splitlines():
        if line.startswith("| `") and (name := line.split("`")[1]) in STUDIES:
            told[name] = line.split("|")[3].strip().strip("`")
    reads = {name: getattr(import_module(module), "DATA", "-") for name, module in STUDIES.items()}
    assert told == reads


@pytest.mark.parametrize(("commit", "kept"), [("c0ffee", True), ("unknown", True), ("c0ffee+changes", False)])
def test_parts_are_kept_beside_the_page_where_one_can_tell_what_they_were_measured_with(
    monkeypatch, tmp_path, commit, kept
):
    monkeypatch.setattr(runner, "current_commit", lambda: commit)
    parts = keeping_parts("queueing", StudyOptions(full=True), tmp_path, quiet()).parts
    assert parts.directory == (tmp_path / "studies" / "queueing.parts" if kept else None)
    if kept:
        assert (parts.of["commit"], parts.of["command"]) == (commit, "hebe study queueing --full")


@dataclass(frozen=True)
class Waits:
    seconds: float


def test_a_run_that_was_ended_goes_on_where_it_was(monkeypatch, tmp_path, queueing):
    monkeypatch.setattr(runner, "current_commit", lambda: "c0ffee")
    whole, measured = queueing.run, []

    def run(options, progress):
        def measure():
            time.sleep(0.05)
            measured.append(name)
            return Waits(1.0)

        for name in ("a", "b"):
            options.parts.part(name, measure, lambda data: Waits(**data))
            if len(measured) == 1 and name == "a":
                raise KeyboardInterrupt
        return whole(options, progress)

    monkeypatch.setattr(queueing, "run", run)
    with pytest.raises(KeyboardInterrupt):
        run_study("queueing", keeping_parts("queueing", StudyOptions(quick=True), tmp_path, quiet()), quiet())
    options = keeping_parts("queueing", StudyOptions(quick=True), tmp_path, quiet())
    measured.append("")
    done = run_study("queueing", options, quiet())
    assert measured == ["a", "", "b"]
    assert options.parts.earlier_s >= 0.05
    assert done.file.seconds > 0.1
    assert not options.parts.directory.exists(), "a run at its end leaves nothing that the next would use"


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
            "from hebe_lab.studies import STUDIES\n"
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


MEASURING = {
    "hercules-accelerator", "hercules-cpu", "hercules-idle", "hercules-server", "hercules-servers", "hps-accuracy",
    "hps-insertion", "hps-latency", "hps-refresh", "hps-tiers", "hps-warmup",
}  # fmt: skip
"""Studies of Hebe's own parts, and one that uses what they model."""


def test_every_study_is_described_and_imports_without_torch_unless_it_measures():
    for name, description in study_descriptions().items():
        assert name not in ("all", "list")
        assert 0 < len(description) <= 120, name
        assert "\n" not in description, name
    check = (
        f"{BLOCKED}from importlib import import_module\n"
        f"for name in {[STUDIES[name] for name in STUDIES if name not in MEASURING]}: import_module(name).run"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
