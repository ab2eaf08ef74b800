from __future__ import annotations

import csv
import os

import pytest

from hebe.workload import text_errors as text_faults
from hebe.workload.text_errors import FIGURE_LIMITS, is_figure, why_no_commas, why_unreadable

LATIN = "gr\xf6\xdfe".encode("latin-1")


def decoded(content: bytes) -> UnicodeDecodeError:
    with pytest.raises(UnicodeDecodeError) as raised:
        content.decode("utf-8")
    return raised.value


@pytest.mark.parametrize("piece", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("before", ["", "a,b\n", "ä,ö\n" * 5, "\n\n", "€€€€€\r\n"])
def test_the_line_is_named(tmp_path, monkeypatch, before, piece):
    monkeypatch.setattr(text_faults, "_READ_BYTES", piece)
    path, content = tmp_path / "times.csv", before.encode() + LATIN + b"\nmore\n" + LATIN
    path.write_bytes(content)
    line = before.count("\n") + 1
    assert why_unreadable(path, decoded(content)) == f"line {line}: byte 0xf6 is not UTF-8: save the file as UTF-8"


def test_a_character_that_is_cut_off_at_the_end_is_found(tmp_path):
    path, content = tmp_path / "times.csv", b"a\nb\n" + "€".encode()[:2]
    path.write_bytes(content)
    assert why_unreadable(path, decoded(content)).startswith("line 3: byte 0xe2 ")


def test_what_cannot_be_read_twice_is_told_without_its_line(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert why_unreadable(path, decoded(LATIN)) == "byte 0xf6 is not UTF-8: save the file as UTF-8"
    path.unlink()
    path.write_bytes(b"mended meanwhile\n")
    assert why_unreadable(path, decoded(LATIN)).startswith("byte 0xf6 ")


def test_other_faults_are_told_without_the_path_which_the_reader_names(tmp_path):
    path = tmp_path / "none.csv"
    with pytest.raises(FileNotFoundError) as raised:
        path.read_bytes()
    assert why_unreadable(path, raised.value) == "cannot be read: No such file or directory"
    assert why_unreadable(path, csv.Error("unexpected end of data")) == "cannot be read: unexpected end of data"


def test_a_figure_is_none_of_a_mistaken_unit():
    assert all(map(is_figure, (0.0, 1e-15, 1.0, 1e15)))
    assert not any(map(is_figure, (9e-16, 1.1e15)))
    assert FIGURE_LIMITS == "between 1e-15 and 1e+15: check the unit"


@pytest.mark.parametrize(
    ("names", "called"), [(["a;b"], "semicolons"), (["a\tb"], "tabs"), (["a", "b;c"], ""), (["a"], ""), ([], "")]
)
def test_what_parts_columns_in_place_of_commas_is_told(names, called):
    assert why_no_commas(names) == (f"has {called}: must have commas between the columns" if called else None)
