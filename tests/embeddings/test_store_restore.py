"""Checkpoints of a store in use, and stores made of them."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings import store_copy
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.store_directory import read_record, remove
from hebe.embeddings.store_restore import restore
from hebe.spec import EmbeddingTableSpec

SPECS = [EmbeddingTableSpec("users", 300, 4), EmbeddingTableSpec("items", 5, 1)]
ROWS = {table.name: np.zeros((table.rows, table.dim), np.float32) for table in SPECS}
EVERY = np.arange(300)


@pytest.fixture
def store(tmp_path: Path):
    with contextlib.closing(RocksDbStore.load(tmp_path / "store", SPECS, ROWS, "first", read_only=False)) as store:
        yield store


def apply(store: RocksDbStore, offset: int) -> None:
    assert store.apply("users", EVERY, np.full((300, 4), offset, np.float32), ("log", offset))


def stamp_of(store: RocksDbStore) -> float:
    """The offset that all rows of users carry."""
    rows, found = np.zeros((300, 4), np.float32), np.zeros(300, np.bool_)
    assert store.query("users", EVERY, rows, found) == 300
    assert (rows == rows[0, 0]).all()
    return float(rows[0, 0])


def check(path: Path, offset: int) -> None:
    with contextlib.closing(RocksDbStore.load(path, SPECS, {}, "first")) as made:
        assert made.positions() == {"log": offset}
        assert stamp_of(made) == offset
        assert made.verify() == {"users": 300, "items": 5}


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_checkpoint_is_the_store_of_its_moment(store: RocksDbStore, tmp_path: Path):
    apply(store, 1)
    store.checkpoint(tmp_path / "one")
    apply(store, 2)
    store.checkpoint(tmp_path / "deeper" / "two")
    apply(store, 3)
    check(tmp_path / "one", 1)
    check(tmp_path / "deeper" / "two", 2)
    assert stamp_of(store) == 3
    remove(tmp_path / "one")
    assert store.verify() == {"users": 300, "items": 5}


def test_a_checkpoint_and_its_store_share_files_and_go_their_own_ways(store: RocksDbStore, tmp_path: Path):
    store.checkpoint(tmp_path / "one")
    shared = [file for file in (tmp_path / "one" / "rows").glob("*.sst") if file.stat().st_nlink > 1]
    assert shared
    with contextlib.closing(RocksDbStore(tmp_path / "one")) as other:
        assert other.apply("users", EVERY, np.full((300, 4), 77, np.float32), ("log", 77))
        apply(store, 5)
        assert stamp_of(other) == 77
    assert stamp_of(store) == 5


def test_checkpoints_are_whole_while_rows_are_written(store: RocksDbStore, tmp_path: Path):
    apply(store, 0)
    stop = threading.Event()

    def write() -> None:
        offset = 1
        while not stop.is_set():
            apply(store, offset)
            offset += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            store.checkpoint(tmp_path / str(number))
    finally:
        stop.set()
        writer.join()
    offsets = []
    for number in range(5):
        with contextlib.closing(RocksDbStore(tmp_path / str(number), read_only=True)) as made:
            assert stamp_of(made) == made.positions()["log"]
            offsets.append(made.positions()["log"])
    assert offsets == sorted(offsets)


def test_a_store_in_use_by_readers_is_copied(store: RocksDbStore, tmp_path: Path):
    apply(store, 4)
    store.close()
    with contextlib.closing(RocksDbStore(tmp_path / "store", read_only=True)) as reader:
        reader.checkpoint(tmp_path / "one")
        restore(tmp_path / "store", tmp_path / "two")
    for name in ("one", "two"):
        check(tmp_path / name, 4)


def test_what_a_killed_writer_left_is_copied_with_its_log(store: RocksDbStore, tmp_path: Path):
    apply(store, 4)
    store_copy.copy_files(tmp_path / "store" / "rows", tmp_path / "rows")  # while it runs: nothing writes just now
    record = read_record(tmp_path / "store")
    assert record is not None
    assert record.seal is None
    with store_copy.new_store(tmp_path / "killed", record) as rows:
        (tmp_path / "rows").rename(rows)
    assert any(log.stat().st_size for log in (tmp_path / "killed" / "rows").glob("*.log"))
    calls: list[tuple[int, int]] = []
    restore(tmp_path / "killed", tmp_path / "restored", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (305, 305)
    check(tmp_path / "restored", 4)


def test_a_store_is_replaced_only_if_that_is_asked_for(store: RocksDbStore, tmp_path: Path):
    apply(store, 1)
    store.checkpoint(tmp_path / "one")
    apply(store, 2)
    with pytest.raises(StoreError, match=f"{tmp_path}/one: there is a store already"):
        store.checkpoint(tmp_path / "one")
    check(tmp_path / "one", 1)
    store.close()
    before = files(tmp_path / "store")
    with pytest.raises(StoreError, match=f"{tmp_path}/store: there is a store already"):
        restore(tmp_path / "one", tmp_path / "store")
    assert files(tmp_path / "store") == before
    restore(tmp_path / "one", tmp_path / "store", replace=True)
    check(tmp_path / "store", 1)


def test_a_store_in_use_is_not_replaced(store: RocksDbStore, tmp_path: Path):
    store.checkpoint(tmp_path / "one")
    with pytest.raises(StoreError, match=f"{tmp_path}/store: is in use"):
        restore(tmp_path / "one", tmp_path / "store", replace=True)
    apply(store, 8)
    assert stamp_of(store) == 8


def test_a_damaged_checkpoint_is_not_restored(store: RocksDbStore, tmp_path: Path):
    store.checkpoint(tmp_path / "one")
    apply(store, 3)
    store.close()
    file = max((tmp_path / "one" / "rows").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[100] ^= 0xFF
    file.unlink()  # the store has a link to it
    file.write_bytes(data)
    for into in ("store", "new"):
        with pytest.raises(StoreError, match=rf"{tmp_path}/one: cannot read table users: Corruption"):
            restore(tmp_path / "one", tmp_path / into, replace=True)
    assert not (tmp_path / "new").exists()
    check(tmp_path / "store", 3)


@pytest.mark.parametrize("when", ["copying", "at the end"])
def test_a_copy_that_fails_leaves_what_was_there(store: RocksDbStore, tmp_path: Path, monkeypatch, when: str):
    apply(store, 1)
    store.checkpoint(tmp_path / "one")
    apply(store, 2)
    store.close()

    def fails(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        if when == "copying":
            patch.setattr(store_copy.shutil, "copyfile", fails)
        else:
            patch.setattr(store_copy, "_seal", fails)
        for into in ("store", "new"):
            with pytest.raises(StoreError, match=rf"{tmp_path}/{into}: cannot be written: .*free some disk space"):
                restore(tmp_path / "one", tmp_path / into, replace=True)
    assert not (tmp_path / "new").exists()
    assert {file.name for file in (tmp_path / "store").iterdir()} == {"rows", "store.json", "store.lock"}
    check(tmp_path / "store", 2)


def test_a_copy_that_was_killed_is_no_store_and_can_be_made_again(store: RocksDbStore, tmp_path: Path):
    apply(store, 1)
    place = tmp_path / "one"
    (place / "rows.tmp.tmp").mkdir(parents=True)  # as RocksDB begins
    (place / "rows.tmp.tmp" / "000009.sst").write_text("half")
    (place / "rows.tmp").mkdir()
    (place / "store.lock").touch()
    with pytest.raises(StoreError, match="there is none"):
        RocksDbStore(place, read_only=True)
    store.checkpoint(place)
    check(place, 1)
    assert not (place / "rows.tmp.tmp").exists()


def test_somebody_elses_directory_stays(store: RocksDbStore, tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="is not empty and holds no store"):
        store.checkpoint(tmp_path / "theirs", replace=True)
    assert (tmp_path / "theirs" / "thesis.txt").exists()
    with pytest.raises(StoreError, match="there is none"):
        restore(tmp_path / "nowhere", tmp_path / "new")


def test_files_are_copied_where_there_can_be_no_links(store: RocksDbStore, tmp_path: Path, monkeypatch):
    apply(store, 1)
    store.close()

    def fails(*_: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(store_copy.os, "link", fails)
    restore(tmp_path / "store", tmp_path / "new")
    assert all(file.stat().st_nlink == 1 for file in (tmp_path / "new" / "rows").iterdir())
    check(tmp_path / "new", 1)
