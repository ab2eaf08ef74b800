from pathlib import Path

import pytest
import typer

from hebe.cli.terminal.output import check_result_file, draw_result


def test_a_file_that_can_be_written_passes_and_is_not_there_yet(tmp_path):
    path = tmp_path / "new" / "result.json"
    check_result_file("--output", path)
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_wrong_usage_that_names_what_is_in_the_way(tmp_path):
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(typer.BadParameter, match=r"taken\.json \(Is a directory\)") as told:
        check_result_file("--output", tmp_path / "taken.json")
    assert told.value.param_hint == "--output"
    with pytest.raises(typer.BadParameter, match=r"x\.json: nothing can be written to /dev/null \(Not a directory\)"):
        check_result_file("--output", Path("/dev/null/x.json"))


def failing(fault):
    def draw(_path):
        raise fault

    return draw


def test_a_picture_is_drawn_where_one_is_wanted(tmp_path):
    drawn = []
    assert draw_result(tmp_path / "a.svg", drawn.append) == ""
    assert draw_result(None, failing(ValueError("nobody asked"))) == ""
    assert drawn == [tmp_path / "a.svg"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (ValueError("no such font"), "no such font"),
        (PermissionError(13, "Permission denied", "/elsewhere"), "Permission denied"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_picture_that_fails_says_why_and_raises_nothing(tmp_path, fault, why):
    path = tmp_path / "a.svg"
    assert draw_result(path, failing(fault)) == f"{path}: {why}"


def test_who_debugs_gets_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("hebe.cli.terminal.output.debugging", lambda: True)
    with pytest.raises(ValueError, match="no such font"):
        draw_result(tmp_path / "a.svg", failing(ValueError("no such font")))
