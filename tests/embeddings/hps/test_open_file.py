import gc
import os
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.hps.hugectr_files import OpenFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the numbers from 0 to 99."""
    np.arange(100, dtype="<f4").tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


def test_numbers_and_rows_are_those_of_the_file(path: Path) -> None:
    file, rows = OpenFile(path), np.arange(100, dtype=np.float32).reshape(25, 4)
    assert file.numbers("<f4", 10, 3).tolist() == [10, 11, 12]
    assert file.numbers("<f4", 100, 0).size == 0
    for places in ([], [24], [3, 4, 5], [7, 6, 8, 9, 0, 0, 1], list(range(25))):
        found = file.rows("<f4", 4, np.array(places, np.intp))
        assert (found.dtype, found.shape) == (np.float32, (len(places), 4))
        assert np.array_equal(found, rows[places])


def test_a_read_that_is_answered_in_pieces(path: Path, monkeypatch) -> None:
    file, whole = OpenFile(path), os.preadv
    monkeypatch.setattr(os, "preadv", lambda number, targets, place: whole(number, [targets[0][:7]], place))
    assert np.array_equal(file.numbers("<f4", 0, 100), np.arange(100))


def test_a_file_that_has_become_shorter_is_an_error(path: Path) -> None:
    file = OpenFile(path)
    before = file.mark()
    os.truncate(path, 398)
    assert file.mark() != before
    assert np.array_equal(file.numbers("<f4", 0, 99), np.arange(99))
    with pytest.raises(OSError, match="it has become shorter"):
        file.numbers("<f4", 0, 100)
    os.truncate(path, 0)
    with pytest.raises(OSError, match="it has become shorter"):
        file.rows("<f4", 4, np.array([2, 0]))


def test_it_is_the_file_that_was_there_first(path: Path) -> None:
    file = OpenFile(path)
    number = file.mark()[3:]
    np.zeros(100, "<f4").tofile(path.with_name("new"))
    path.with_name("new").rename(path)
    assert file.numbers("<f4", 99, 1).tolist() == [99]
    assert file.mark()[3:] == number != OpenFile(path).mark()[3:]


def test_it_is_closed_when_nobody_has_it_any_more(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    files = [OpenFile(path) for _ in range(9)]
    assert len(os.listdir("/proc/self/fd")) == before + 9
    del files
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
