import json

import pytest

from hebe.cli.main import main
from hebe.report.figures import Figure, FigureFile


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working directory with one figure file in each of the two places."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    figures = (
        Figure("serve.ratio", 0.93, "ratio", low=0.91, high=0.95, runs=7, target=">= 0.90", paper=0.5),
        Figure("serve.rate", 3330, "queries/s"),
    )
    FigureFile("serve", "hebe bench serve", "a", {}, 1.0, True, figures).write(tmp_path / "out" / "figures")
    missed = (Figure("sparse.ratio", 1.1, "ratio", target=">= 1.25"),)
    FigureFile("sparse", "hebe bench sparse", "a", {}, 1.0, False, missed).write(tmp_path / "docs" / "figures")
    return tmp_path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["figures", *arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_a_table_for_each_file_of_both_places(capsys, work):  # noqa: ARG001
    code, out, _ = run(capsys)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        ["out/figures/serve.json", "(quick)"],
        ["figure", "value", "spread", "unit", "target", "met", "paper"],
        ["serve.ratio", "0.93", "0.91", "to", "0.95", "ratio", ">=", "0.90", "met", "0.5"],
        ["serve.rate", "3,330", "queries/s"],
        [],
        ["docs/figures/sparse.json"],
        ["figure", "value", "unit", "target", "met"],
        ["sparse.ratio", "1.1", "ratio", ">=", "1.25", "missed"],
    ]


def test_json(capsys, work):
    code, out, err = run(capsys, str(work / "docs" / "figures"), "--json")
    assert code == 0
    (figure,) = json.loads(out)["figures"]
    assert figure["name"] == "sparse.ratio"
    assert figure["met"] is False
    assert figure["quick"] is False
    assert figure["file"] == str(work / "docs" / "figures" / "sparse.json")
    assert "sparse.ratio" in err


def test_nothing_measured_yet_says_what_to_do(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys)
    assert code == 0
    assert "hebe bench" in out


def test_a_missing_directory_is_named(capsys, tmp_path):
    code, _, err = run(capsys, str(tmp_path / "none"))
    assert code == 2
    assert "none" in err


def test_a_broken_file_is_named(capsys, work):
    """And the others are shown."""
    broken = work / "out" / "figures" / "broken.json"
    broken.write_text('{"figures": 3}')
    code, out, err = run(capsys)
    assert code == 1
    assert err.startswith(f"error: {broken}: not a figure file: ")
    assert "serve.ratio" in out
    assert "sparse.ratio" in out
    code, out, _ = run(capsys, "--json")
    told = json.loads(out)
    assert (code, len(told["figures"])) == (1, 3)
    assert told["error"].startswith(f"{broken}: not a figure file: ")


def test_a_broken_file_alone_is_all_that_is_told(capsys, tmp_path):
    (tmp_path / "broken.json").write_text("{}")
    code, out, err = run(capsys, str(tmp_path))
    assert (code, out) == (1, "")
    assert err.count("error: ") == 1
