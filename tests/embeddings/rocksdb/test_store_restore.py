"""Checkpoints of a store in use, and stores made of them."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb.directory import remove
from hebe.embeddings.rocksdb.store import RocksDbStore, restore
from hebe.embeddings.store import StoreError
from tests.embeddings.stores.stamped_store import EVERY, ROWS, SPECS, apply, check, stamp_of


@pytest.fixture
def store(tmp_path: Path):
    with contextlib.closing(RocksDbStore.load(tmp_path / "store", SPECS, ROWS, "first", read_only=False)) as store:
        yield store


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
