import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer

from hebe.cli.terminal.output import (
    check_result_file,
    draw_result,
    make_console,
    make_progress,
    print_error,
    print_json,
)


@dataclass
class Point:
    x: float
    where: Path


def test_json_is_one_line_of_plain_values(capsys):
    print_json({"p": Point(float("nan"), Path("a/b")), 1: (np.float32(0.5), np.arange(2)), "s": {"x"}})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"p": {"x": None, "where": "a/b"}, "1": [0.5, [0, 1]], "s": ["x"]}


def test_console_leaves_stdout_to_json(capsys):
    make_console(as_json=True).print("people")
    make_console().print("result of a:fire:b")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("result of a:fire:b\n", "people\n")


def test_a_pipe_gets_whole_lines(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    sentence = "word " * 200
    make_console().print(sentence)
    assert capsys.readouterr().out == f"{sentence}\n"
    monkeypatch.setenv("COLUMNS", "50")
    make_console().print(sentence)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 50


def test_progress_is_silent_without_a_terminal(capsys):
    with make_progress() as progress:
        progress.advance(progress.add_task("work", total=2))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_error_is_one_line_whatever_its_length_and_markup(capsys):
    message = "field [bold] :fire: " + "long " * 100
    print_error(message)
    assert capsys.readouterr().err == f"error: {message}\n"


def test_what_c_libraries_print_goes_to_stderr():
    program = """
import ctypes, os
from hebe.cli.terminal.output import foreign_lines_to_stderr, print_json
with foreign_lines_to_stderr():
    ctypes.CDLL(None).printf(b"buffered ")
    os.write(1, b"raw ")
print_json({"a": 1})
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == '{"a": 1}\n'
    assert sorted(found.stderr.split()) == ["buffered", "raw"]


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
