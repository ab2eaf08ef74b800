import json
import sys
from importlib.util import spec_from_file_location
from types import ModuleType

import pytest

from hebe.cli.main import main
from hebe.report.document import Picture, Table
from hebe.report.figures import Figure, FigureFile
from hebe.report.plots.latency import grouped_bars
from hebe_lab.studies import STUDIES
from hebe_lab.study import StudyError, StudyResult


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Two studies, `fast` and `slow`, that only count; the options that they were run with. The slow one reads data."""
    ran = []
    for name in list(STUDIES):
        monkeypatch.delitem(STUDIES, name)
    for name in ("slow", "fast"):
        module = ModuleType(f"{name}_study")

        def run(options, progress, name=name):
            progress.add_task("counting", total=1)
            ran.append((name, options))
            if options.full:
                raise StudyError("tables.csv, line 3: price is -1: must be positive")
            return StudyResult(
                [Figure(f"{name}.x", 3, "ms", target="< 2", paper=2.5)],
                [Picture(grouped_bars({"1": {"a": 1.0}}, "ms", "x")), Table(f"Fig. 8 of {name} [x]", ["model", "ours"],
                 [["rm2", 1234], ["ncf", None]], "a note")],
            )  # fmt: skip

        module.DESCRIPTION, module.run = f"is [{name}]", run
        if name == "slow":
            module.DATA = "x/"
        source = tmp_path / "sources" / f"{name}_study.py"
        source.parent.mkdir(exist_ok=True)
        source.write_text(f"DESCRIPTION = 'is [{name}]'\n")
        monkeypatch.setitem(STUDIES, name, f"{name}_study")
        monkeypatch.setitem(sys.modules, f"{name}_study", module)
        module.__spec__ = spec_from_file_location(f"{name}_study", source)
    monkeypatch.setenv("COLUMNS", "160")
    return ran


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["study", *arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_help_names_the_studies_that_need_torch(capsys):
    text = " ".join(run(capsys, "--help")[1].replace("│", " ").split())
    assert "those of HPS Hebe's own tiers, those of Hercules' single server its own workers, both with torch" in text


@pytest.mark.parametrize("words", [[], ["list"]])
def test_lists_them(capsys, ran, words):
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert [line.split(None, 1) for line in out.splitlines()] == [["fast", "is [fast]"], ["slow", "is [slow]"]]
    assert ran == []


def test_the_list_as_json(capsys, ran):  # noqa: ARG001
    code, out, err = run(capsys, "list", "--json")
    assert (code, json.loads(out)) == (0, {"studies": {"fast": "is [fast]", "slow": "is [slow]"}})
    assert "is [slow]" in err


def test_a_run_prints_its_tables_and_writes_its_files(capsys, ran, tmp_path):
    code, out, _ = run(capsys, "fast", "--quick", "--out", str(tmp_path / "o"))
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[:6] == [
        ["Fig.", "8", "of", "fast", "[x]"], ["model", "ours"], ["rm2", "1,234"], ["ncf"], ["a", "note"], [],
    ]  # fmt: skip
    assert ["fast.x", "3", "ms", "<", "2", "missed", "2.5"] in lines
    assert lines[-1][-1] == str(tmp_path / "o" / "studies" / "fast.html")
    file = FigureFile.read(tmp_path / "o" / "figures" / "fast.json")
    assert (file.quick, file.command) == (True, "hebe study fast --quick")
    assert "Fig. 8 of fast [x]" in (tmp_path / "o" / "studies" / "fast.html").read_text()
    ((name, options),) = ran
    assert (name, options.quick, options.full, options.data) == ("fast", True, False, None)


def test_json_is_the_only_thing_on_stdout(capsys, ran, tmp_path):
    code, out, err = run(capsys, "slow", "--json", "--data", str(tmp_path), "--out", str(tmp_path / "o"))
    assert code == 0
    (file,) = json.loads(out)["files"]
    assert (file["name"], file["figures"][0]["paper"], file["quick"]) == ("slow", 2.5, False)
    assert file["tables"] == [
        {
            "title": "Fig. 8 of slow [x]",
            "columns": ["model", "ours"],
            "rows": [["rm2", 1234], ["ncf", None]],
            "note": "a note",
        }
    ]
    assert file["page"] == str(tmp_path / "o" / "studies" / "slow.html")
    assert "Fig. 8 of slow" in err
    assert ran[0][1].data == tmp_path


def test_all_runs_each_once(capsys, ran, tmp_path):
    assert run(capsys, "all", "--out", str(tmp_path / "o"))[0] == 0
    assert [name for name, _ in ran] == ["fast", "slow"]
    assert sorted(path.name for path in (tmp_path / "o" / "studies").iterdir()) == ["fast.html", "slow.html"]


def test_a_study_that_reads_no_data_says_so(capsys, ran, tmp_path):
    code, out, _ = run(capsys, "all", "--data", str(tmp_path), "--out", str(tmp_path / "o"))
    assert code == 0
    assert "fast reads no data: it goes without --data." in out
    assert "slow reads no data" not in out
    assert [options.data for _, options in ran] == [None, tmp_path]
    files = [FigureFile.read(tmp_path / "o" / "figures" / f"{name}.json") for name in ("fast", "slow")]
    assert [file.command for file in files] == ["hebe study fast", "hebe study slow --data DIR"]


def test_models_are_chosen_where_the_study_lets_choose(capsys, ran, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["slow_study"], "MODELS_HERE", ("RMC1", "DIN"), raising=False)
    code, _, _ = run(capsys, "slow", "--models", "din, rmc1,DIN", "--out", str(tmp_path))
    assert code == 0
    assert ran[0][1].models == ("DIN", "RMC1")
    assert FigureFile.read(tmp_path / "figures" / "slow.json").command == "hebe study slow --models DIN,RMC1"
    for name, message in (("slow", "'rmc9': choose of RMC1, DIN"), ("fast", "is for one study"), ("all", "is for one")):
        code, _, err = run(capsys, name, "--models", "rmc9")
        assert code == 2
        assert message in " ".join(err.split())


def test_an_unknown_study_names_the_known_ones(capsys, ran):
    code, _, err = run(capsys, "kairo")
    assert code == 2
    assert "no study kairo: there are fast, slow, all" in " ".join(err.split())
    assert ran == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--data", "nowhere"], "nowhere is not a directory"), (["--quick", "--full"], "choose one of them")],
)
def test_wrong_usage_is_named(capsys, ran, words, message):
    code, _, err = run(capsys, "fast", *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert ran == []


def test_bad_data_is_one_line_and_exit_code_1(capsys, ran, tmp_path):  # noqa: ARG001
    code, out, err = run(capsys, "fast", "--full", "--json", "--out", str(tmp_path / "o"))
    message = "tables.csv, line 3: price is -1: must be positive"
    assert (code, json.loads(out)) == (1, {"error": message})
    assert err == f"error: {message}\n"
    assert not (tmp_path / "o").exists()


def test_without_studies_it_says_so(capsys, monkeypatch):
    for name in list(STUDIES):
        monkeypatch.delitem(STUDIES, name)
    assert run(capsys)[:2] == (0, "There are no studies.\n")
