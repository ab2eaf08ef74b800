"""What every command of `hebe plan` ends in."""

import json
import tomllib
from pathlib import Path

import pytest
import typer

from hebe.cli.plan.result import checked_page
from hebe.cli.terminal.output import hand_over
from hebe.report.document import Document, Text


def handed(tmp_path, *, plan=None, page=None, as_json=True, content=None):
    plan, page = plan or tmp_path / "plan.toml", page or tmp_path / "plan.html"
    document = Document("A plan", [Text("first"), Text("second")], "of nothing", "made up", {"servers": 3})
    hand_over(document, page, as_json=as_json, plan=(plan, {"kind": "pool"} if content is None else content))


def test_files_are_written_and_told_after_the_document(tmp_path, capsys):
    handed(tmp_path, as_json=False)
    assert tomllib.loads((tmp_path / "plan.toml").read_text()) == {"kind": "pool"}
    assert "A plan" in (tmp_path / "plan.html").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["first", "second", f"Plan: {tmp_path}/plan.toml", f"Page: {tmp_path}/plan.html"]


def test_paths_are_told_as_they_are(tmp_path, capsys):
    plan, page = tmp_path / "plan[draft].toml", tmp_path / "pages[" / "b] :fire:.html"
    handed(tmp_path, plan=plan, page=page)
    out, err = capsys.readouterr()
    assert err.splitlines()[-2:] == [f"Plan: {plan}", f"Page: {page}"]
    assert json.loads(out)["page"] == str(page)


def test_json_is_one_line_with_the_figures_and_the_files(tmp_path, capsys):
    handed(tmp_path)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"servers": 3, "plan": f"{tmp_path}/plan.toml", "page": f"{tmp_path}/plan.html"}
    assert "first" in err


def test_of_a_link_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plan.toml").symlink_to(tmp_path / "plans" / "today.toml")
    handed(tmp_path)
    assert (tmp_path / "plan.toml").is_symlink()
    assert tomllib.loads((tmp_path / "plans" / "today.toml").read_text()) == {"kind": "pool"}


def test_what_cannot_be_written_is_seen_nevertheless_and_the_plan_of_before_stays(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text("before = 1")
    with pytest.raises(TypeError):
        handed(tmp_path, content={"unknown": None})
    assert (tmp_path / "plan.toml").read_text() == "before = 1"
    assert "second" in capsys.readouterr().err


def test_a_page_stands_beside_its_plan_and_nothing_is_made_yet(tmp_path):
    plan = tmp_path / "new" / "plan.toml"
    assert checked_page(plan, None, []) == tmp_path / "new" / "plan.html"
    assert checked_page(plan, tmp_path / "other.html", []) == tmp_path / "other.html"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("plan", "page", "message"),
    [
        ("/proc/x.toml", None, "/proc/x.toml: nothing can be written to /proc ("),
        (".", None, ".: nothing can be written to . (Is a directory)"),
        ("/", None, "/: nothing can be written to / (Is a directory)"),
        ("p.toml", "file/x.html", "file/x.html: nothing can be written to "),
        ("p.toml", "file", "file is read: write to another file"),
        ("p.html", None, "p.html is written by --plan too"),
    ],
)
def test_what_cannot_be_written_is_told_by_its_path(tmp_path, monkeypatch, plan, page, message):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(typer.BadParameter) as caught:
        checked_page(Path(plan), page and Path(page), [Path("file")])
    assert message in caught.value.message
