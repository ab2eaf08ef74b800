import itertools
import mmap

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.store import StoreError
from hebe.models.repository import table_file
from hebe.models.repository.stored_file import RepositoryError, check_sha256
from hebe.models.repository.table_file import (
    CheckedRows,
    DamagedRows,
    check_table_header,
    file_size_bytes,
    map_table,
    write_table,
)
from hebe.spec import EmbeddingTableSpec

TABLE = EmbeddingTableSpec("items", 10, 3)
ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "items.safetensors"
    write_table(path, TABLE, ROWS)
    return path


def test_rows_begin_on_a_page_and_the_length_is_known_before(stored):
    assert stored.stat().st_size == file_size_bytes(TABLE)
    start = stored.stat().st_size - ROWS.nbytes
    assert start % mmap.PAGESIZE == 0
    assert stored.read_bytes()[start:] == ROWS.tobytes()
    assert int.from_bytes(stored.read_bytes()[:8], "little") == start - 8


def test_the_safetensors_library_reads_it(stored):
    tensors = safetensors.numpy.load_file(stored)
    assert list(tensors) == ["weight"]
    np.testing.assert_array_equal(tensors["weight"], ROWS)


@pytest.mark.parametrize("rows", [ROWS.copy("F"), np.repeat(ROWS, 2, 0)[::2]])
def test_rows_are_written_in_order_however_they_lie_in_memory(tmp_path, rows):
    record = write_table(tmp_path / "file", TABLE, rows)
    check_sha256(tmp_path / "file", record)
    np.testing.assert_array_equal(map_table(tmp_path / "file", TABLE), ROWS)


@given(sizes=st.lists(st.integers(0, 8), max_size=6), order=st.sampled_from("CF"))
@settings(max_examples=15, deadline=None)
def test_chunks_are_the_same_as_the_whole(tmp_path_factory, sizes, order):
    directory = tmp_path_factory.mktemp("tables")
    cuts = [*np.cumsum([0, *sizes]).clip(max=10).tolist(), 10]
    chunks = (np.array(ROWS[a:b], order=order) for a, b in itertools.pairwise(cuts))
    assert write_table(directory / "chunks", TABLE, chunks) == write_table(directory / "whole", TABLE, ROWS)


def test_a_large_array_is_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "_CHUNK_BYTES", 2 * 3 * 4 + 1)
    steps = []
    write_table(tmp_path / "file", TABLE, ROWS, steps.append)
    assert steps[1:] == [2 * 3 * 4] * 5, "the header, then two rows at a time"
    np.testing.assert_array_equal(map_table(tmp_path / "file", TABLE), ROWS)


@pytest.mark.parametrize("chunk_bytes", [1, 2 * 3 * 4, 1 << 20])
def test_checked_rows_are_those_of_the_file_as_often_as_they_are_asked_for(tmp_path, monkeypatch, chunk_bytes):
    path = tmp_path / "items.safetensors"
    rows = CheckedRows(path, TABLE, write_table(path, TABLE, ROWS))
    monkeypatch.setattr(table_file, "_CHUNK_BYTES", chunk_bytes)
    for _ in range(2):
        pieces = list(rows)
        assert len(pieces) == -(-10 // max(1, chunk_bytes // 12))
        np.testing.assert_array_equal(np.concatenate(pieces), ROWS)


@pytest.mark.parametrize("row", [0, 4, 9])
def test_of_a_file_with_a_damaged_row_the_last_rows_are_never_given(tmp_path, monkeypatch, row):
    """So that whoever wants all rows hears of it, also where they are told together with other faults of a store."""
    path = tmp_path / "items.safetensors"
    record = write_table(path, TABLE, ROWS)
    content = bytearray(path.read_bytes())
    content[len(content) - 12 * (10 - row)] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(table_file, "_CHUNK_BYTES", 2 * 3 * 4)
    given: list[np.ndarray] = []
    for kind in (DamagedRows, RepositoryError, StoreError):
        with pytest.raises(kind, match=f"{path}: checksum differs: .* damaged or edited: restore it from a backup"):
            given.extend(CheckedRows(path, TABLE, record))
    assert not any(piece[-1, -1] == ROWS[-1, -1] for piece in given)


def test_a_file_of_another_length_is_no_checked_rows(tmp_path):
    path = tmp_path / "items.safetensors"
    record = write_table(path, TABLE, ROWS)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RepositoryError, match="truncated"):
        CheckedRows(path, TABLE, record)


def test_mapped_rows_cannot_be_changed(stored):
    rows = map_table(stored, TABLE)
    assert rows.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1


def too_many():
    while True:  # a generator that never ends is given up at the first row too many
        yield ROWS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS.astype(np.float64), "rows are float64: must be a float32 array"),
        ([ROWS.tolist()], "rows are list: must be a float32 array"),
        (ROWS[:, :2], r"rows have shape \[10, 2\]: must be \[any, 3\]"),
        (ROWS.ravel(), r"rows have shape \[30\]: must be \[any, 3\]"),
        (ROWS[:9], "9 rows were given: must be 10"),
        (iter(()), "0 rows were given: must be 10"),
        (too_many(), "more than 10 rows were given: must be 10"),
    ],
)
def test_other_rows_than_the_tables_are_refused(tmp_path, rows, message):
    with pytest.raises(RepositoryError, match=f"table items: {message}"):
        write_table(tmp_path / "file", TABLE, rows)


@pytest.mark.parametrize("other", [EmbeddingTableSpec("items", 3, 10), EmbeddingTableSpec("items", 9, 3)])
@pytest.mark.parametrize("read", [map_table, check_table_header])
def test_a_table_of_another_shape_is_an_error_that_says_both(stored, other, read):
    with pytest.raises(
        RepositoryError, match=rf"F32 of shape \[10, 3\]\) .* F32 of shape \[{other.rows}, {other.dim}\]"
    ):
        read(stored, other)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 5000, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{}" * 4000]
)
@pytest.mark.parametrize("read", [map_table, check_table_header])
def test_what_is_no_table_file_is_an_error(stored, content, read):
    stored.write_bytes(content)
    with pytest.raises(RepositoryError, match=r"not a safetensors header|the file is empty"):
        read(stored, TABLE)


@pytest.mark.parametrize("change", [lambda content: content[:-4], lambda content: content + bytes(4)])
def test_rows_that_are_missing_or_too_many_are_an_error(stored, change):
    stored.write_bytes(change(stored.read_bytes()))
    check_table_header(stored, TABLE)
    with pytest.raises(RepositoryError, match=f"bytes, expected {file_size_bytes(TABLE)}; write the model again"):
        map_table(stored, TABLE)


@pytest.mark.parametrize("read", [map_table, check_table_header])
def test_a_file_that_is_not_there_is_an_error(tmp_path, read):
    with pytest.raises(RepositoryError, match=r"file: cannot be (mapped|read): No such file"):
        read(tmp_path / "file", TABLE)
