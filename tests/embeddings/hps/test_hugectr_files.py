import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.hps import hugectr_files
from hebe.embeddings.hps.hugectr_files import OpenFile, SparseFiles
from hebe.embeddings.memory.model_rows import KeyedRows
from hebe.embeddings.store import StoreError
from tests.examples.sparse_models import any_keys, write_sparse_model


def all_rows(files: SparseFiles) -> tuple[np.ndarray, np.ndarray]:
    parts = list(files.chunks())
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 6), st.sampled_from([-(2**63), -1, 2**63 - 1])), min_size=1, max_size=12),
    st.integers(1, 3),
    st.booleans(),
)
def test_it_is_the_dict_that_its_files_are(tmp_path_factory, keys: list[int], dim: int, ascending: bool) -> None:
    if ascending:
        keys = sorted(set(keys))
    rows = np.arange(len(keys) * dim, dtype=np.float32).reshape(-1, dim)
    files = SparseFiles(write_sparse_model(tmp_path_factory.mktemp("model"), np.array(keys, np.int64), rows), dim)
    expected = dict(zip(keys, rows.tolist(), strict=True))  # the last of repeated keys
    found_keys, found_rows = all_rows(files)
    assert found_keys.tolist() == sorted(expected)
    assert dict(zip(found_keys.tolist(), found_rows.tolist(), strict=True)) == expected
    assert (files.rows, files.stored_rows, files.duplicates) == (len(expected), len(keys), len(keys) - len(expected))
    assert isinstance(files, KeyedRows)
    for count in range(len(keys) + 2):
        first = files.first_keys(count).tolist()
        assert first == list(dict.fromkeys(keys))[:count], "in order of the file"


def test_many_rows_come_in_pieces(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    keys, rows = any_keys(rng, 1000), rng.standard_normal((1000, 4), np.float32)
    monkeypatch.setattr(hugectr_files, "CHUNK_BYTES", 16 * 64)
    monkeypatch.setattr(hugectr_files, "_COMPARED_KEYS", 100)
    for order in (np.arange(1000), np.argsort(keys)):
        files = SparseFiles(write_sparse_model(tmp_path / "model", keys[order], rows[order]), 4)
        assert max(len(part) for part, _ in files.chunks()) == 64
        found_keys, found_rows = all_rows(files)
        assert np.array_equal(found_keys, np.sort(keys))
        assert np.array_equal(found_rows, rows[np.argsort(keys)])
    swapped = np.sort(keys)
    swapped[[99, 100]] = swapped[[100, 99]]  # where one piece of comparisons ends and the next begins
    files = SparseFiles(write_sparse_model(tmp_path / "model", swapped, rows), 4)
    assert np.array_equal(all_rows(files)[0], np.sort(keys))


def test_the_hottest_come_first_where_meta_tells(tmp_path) -> None:
    keys, seen = np.array([10, 11, 12, 13]), np.array([5, 100, 1, 50])
    path = write_sparse_model(tmp_path / "model", keys, np.zeros((4, 2)), meta=seen)
    files = SparseFiles(path, 2)
    assert files.first_keys(2).tolist() == [11, 13]
    assert files.first_keys(9).tolist() == [11, 13, 10, 12]
    write_sparse_model(path, keys, np.zeros((4, 2)), meta=seen[:3])
    with pytest.raises(StoreError, match=r"meta has 24 bytes: must have 8 for each"):
        files.first_keys(2)


def test_cold_keys_that_are_repeated_do_not_displace_the_hottest(tmp_path) -> None:
    """As of a file of 20,000 keys, 5,000 of which come once more."""
    rng = np.random.default_rng(4)
    keys = np.concatenate([np.arange(20_000), np.arange(15_000, 20_000)])
    seen = np.concatenate([20_000 - np.arange(20_000), np.ones(5_000, np.int64)])
    order = rng.permutation(keys.size)
    path = write_sparse_model(tmp_path / "model", keys[order], np.zeros((keys.size, 1)), meta=seen[order])
    files = SparseFiles(path, 1)
    assert files.duplicates == 5_000
    for count in (1, 1_000, 15_000):
        assert np.array_equal(files.first_keys(count), np.arange(count))


def test_keys_of_32_bits(tmp_path) -> None:
    keys = np.array([2**32 - 1, 0, 7])
    for narrow in (False, True):
        path = write_sparse_model(tmp_path / f"{narrow}", keys, np.zeros((3, 2)), narrow=narrow)
        assert all_rows(SparseFiles(path, 2, wide_keys=False))[0].tolist() == [0, 7, 2**32 - 1]
    with pytest.raises(StoreError, match=r"key has 12 bytes, 3 int64 keys have 24"):
        SparseFiles(tmp_path / "True", 2)
    for key in (-1, 2**32):
        path = write_sparse_model(tmp_path / "wide", np.array([3, key]), np.zeros((2, 2)))
        with pytest.raises(StoreError, match="keys that 32 bits cannot hold, and supportlonglong is false"):
            SparseFiles(path, 2, wide_keys=False)


def test_files_that_are_none(tmp_path) -> None:
    path = write_sparse_model(tmp_path / "model", np.arange(6), np.zeros((6, 4)))
    with pytest.raises(StoreError, match=r"model/emb_vector has 96 bytes, which are no whole rows of 5 float32"):
        SparseFiles(path, 5)
    with pytest.raises(StoreError, match=r"model/key has 48 bytes, 12 int64 keys have 96: one of .* or the embedding"):
        SparseFiles(path, 2)
    os.truncate(path / "emb_vector", 80)
    with pytest.raises(StoreError, match=r"model/key has 48 bytes, 5 int64 keys have 40: one of"):
        SparseFiles(path, 4)
    os.truncate(path / "emb_vector", 79)
    with pytest.raises(StoreError, match=r"emb_vector has 79 bytes"):
        SparseFiles(path, 4)
    os.truncate(path / "emb_vector", 0)
    with pytest.raises(StoreError, match=r"emb_vector is empty"):
        SparseFiles(path, 4)
    (path / "key").unlink()
    with pytest.raises(StoreError, match=r"model/key cannot be read: No such file") as fault:
        SparseFiles(path, 4)
    assert str(tmp_path) not in fault.value.client_message


def test_the_checksum_is_of_the_content(tmp_path, monkeypatch) -> None:
    keys, rows = np.arange(600), np.zeros((600, 4))
    path = write_sparse_model(tmp_path / "model", keys, rows)
    files, told = SparseFiles(path, 4), []
    before = files.checksum(told.append)
    assert sum(told) == files.size_bytes == 600 * (8 + 16)
    monkeypatch.setattr(hugectr_files, "CHUNK_BYTES", 1024)
    assert SparseFiles(path, 4).checksum() == before, "however it is read"
    os.utime(path / "key", ns=(1, 1))
    assert SparseFiles(path, 4).checksum() == before, "whenever it was written"
    assert SparseFiles(path, 4).marks["key"][:2] == (4800, 1)
    rows[300, 3] = 1e-30
    write_sparse_model(path, keys, rows)
    after = SparseFiles(path, 4).checksum()
    keys[0] = -1
    write_sparse_model(path, keys, rows)
    assert len({before, after, SparseFiles(path, 4).checksum()}) == 3


@pytest.fixture(params=["ascending", "in no order"])
def many(request, tmp_path, monkeypatch) -> Path:
    """A model of 1,000 rows, 64 a piece."""
    monkeypatch.setattr(hugectr_files, "CHUNK_BYTES", 16 * 64)
    keys = np.arange(1000)
    if request.param == "in no order":
        keys = np.random.default_rng(3).permutation(keys)
    return write_sparse_model(tmp_path / "model", keys, np.repeat(keys[:, None], 4, axis=1))


@pytest.mark.parametrize("name", ["key", "emb_vector"])
def test_files_that_are_written_into_are_not_read_on(many: Path, name: str) -> None:
    files = SparseFiles(many, 4)
    files.checksum()
    pieces = files.chunks()
    next(pieces)
    content = (many / name).read_bytes()
    with open(many / name, "r+b") as file:
        file.write(content[::-1])
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"model/{name} has changed since it was loaded: load it anew") as fault:
            list(pieces)
        assert str(many) not in fault.value.client_message
        pieces = files.chunks()
    with open(many / name, "r+b") as file:
        file.write(content)
    assert all_rows(files)[0].tolist() == list(range(1000)), "what was there is there again"


@pytest.mark.parametrize("name", ["key", "emb_vector"])
@pytest.mark.parametrize("size", [0, 3000])
def test_files_that_are_cut_short_are_an_error_and_not_the_end_of_the_process(many: Path, name: str, size: int) -> None:
    files = SparseFiles(many, 4)
    files.checksum()
    pieces = files.chunks()
    next(pieces)
    os.truncate(many / name, size)
    with pytest.raises(StoreError, match=rf"model/{name} (has changed|cannot be read: it has become shorter)"):
        list(pieces)
    with pytest.raises(StoreError, match=rf"model/{name} has changed since it was loaded"):
        next(files.chunks())
    for read in (files.checksum, lambda: files.first_keys(1000)):
        if read == files.checksum or name == "key":
            with pytest.raises(StoreError, match=rf"model/{name} cannot be read: it has become shorter"):
                read()


def test_files_whose_content_is_the_same_are_read_on_whatever_else_has_changed(many: Path) -> None:
    files = SparseFiles(many, 4)
    files.checksum()
    os.utime(many / "key", ns=(1, 1))
    os.link(many / "emb_vector", many / "backup")
    assert all_rows(files)[0].tolist() == list(range(1000))
    write_sparse_model(many.with_name("new"), np.arange(9), np.zeros((9, 4)))
    for name in ("key", "emb_vector"):
        (many.with_name("new") / name).rename(many / name)  # as new files should come
    found = all_rows(files)
    assert found[0].tolist() == found[1][:, 3].tolist() == list(range(1000)), "those of before"


def test_without_a_checksum_of_what_was_read_a_change_is_one(many: Path) -> None:
    files = SparseFiles(many, 4)
    os.utime(many / "key", ns=(1, 1))
    for _ in range(2):
        with pytest.raises(StoreError, match="model/key has changed since it was loaded"):
            next(files.chunks())
        files.checksum()  # may be of other content than the order of the keys


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
