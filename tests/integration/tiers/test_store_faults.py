"""Disks that are full or cannot be written, under a persistent store in use."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb import database as rocksdb_database
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec

DIM = 64
SPECS = [EmbeddingTableSpec("users", 2000, DIM)]
ROWS = {"users": np.random.default_rng(0).standard_normal((2000, DIM)).astype(np.float32)}
BATCH = 1000
"""256 KB of rows."""


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        advice = "run these in `unshare --user --map-root-user --mount`, where it may"
        pytest.skip(f"this user cannot mount, {advice}: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def query(store: RocksDbStore, keys: np.ndarray) -> np.ndarray:
    rows, found = np.zeros((len(keys), DIM), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query("users", keys, rows, found) == len(keys)
    return rows


def apply(store: RocksDbStore, offset: int) -> None:
    rows = np.full((BATCH, DIM), offset, np.float32)
    assert store.apply("users", np.arange(BATCH) + 10_000 + offset, rows, ("log", offset))


def apply_all(store: RocksDbStore, first: int, count: int) -> None:
    for offset in range(first, first + count):
        apply(store, offset)


def fill(store: RocksDbStore, first: int) -> int:
    """Apply batches until the disk is full; returns the offset that was refused."""
    with pytest.raises(StoreError, match=rf"{store.path}: .*free some disk space") as failure:
        apply_all(store, first, 1000)
    assert "/" not in failure.value.client_message
    return store.positions()["log"] + 1


def check(store: RocksDbStore, refused: int) -> None:
    """Rows and positions of every batch before the refused one, and nothing of that one."""
    assert store.positions() == {"log": refused - 1}
    assert np.array_equal(query(store, np.arange(2000)), ROWS["users"])
    last = query(store, np.arange(BATCH) + 10_000 + refused - 1)
    assert (last == refused - 1).all()
    assert store.size("users") == 2000 + BATCH + refused - 1
    rows, found = np.zeros((1, DIM), np.float32), np.zeros(1, np.bool_)
    assert not store.query("users", np.array([10_000 + refused + BATCH - 1]), rows, found)


def test_a_full_disk_refuses_writes_and_serves_on_and_takes_them_again_when_there_is_room(disk: Path):
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    store = RocksDbStore.load(disk / "store", SPECS, ROWS, "first", read_only=False)
    refused = fill(store, 0)
    assert refused > 4
    for _ in range(3):  # it stays so, and nothing is lost by trying
        assert fill(store, refused) == refused
        check(store, refused)
    ballast.unlink()
    mount("-o", "remount,size=64m", str(disk))
    apply_all(store, refused, 20)
    check(store, refused + 20)
    assert store.verify() == {"users": store.size("users")}
    store.close()
    with contextlib.closing(RocksDbStore.load(disk / "store", SPECS, {}, "first")) as again:
        check(again, refused + 20)


def test_a_disk_too_full_to_open_the_database_again_is_read_on(disk: Path, monkeypatch: pytest.MonkeyPatch):
    """The room that opening needs is an estimate: where it was too little, the files are read as they lie."""
    store = RocksDbStore.load(disk / "store", SPECS, ROWS, "first", read_only=False)
    refused = fill(store, 0)
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
    with monkeypatch.context() as patch:
        patch.setattr(rocksdb_database, "_check_room", lambda *_: None)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"cannot be opened: .*free some disk space"):
                store.apply("users", np.array([1]), np.zeros((1, DIM), np.float32), ("log", refused))
            check(store, refused)
    mount("-o", "remount,size=64m", str(disk))
    assert store.apply("users", np.array([70_000]), np.zeros((1, DIM), np.float32), ("another log", 0))
    assert store.positions() == {"log": refused - 1, "another log": 0}
    store.close()


def test_a_store_that_is_closed_on_a_full_disk_opens_with_all_that_it_took(disk: Path):
    store = RocksDbStore.load(disk / "store", SPECS, ROWS, "first", read_only=False)
    refused = fill(store, 0)
    store.close()
    with contextlib.closing(RocksDbStore(disk / "store", read_only=True)) as again:
        check(again, refused)
    mount("-o", "remount,size=64m", str(disk))
    with contextlib.closing(RocksDbStore.load(disk / "store", SPECS, {}, "first", read_only=False)) as again:
        check(again, refused)
        assert again.apply("users", np.array([1]), np.zeros((1, DIM), np.float32), ("log", refused))


def test_a_disk_that_cannot_be_written_is_read_from_and_not_written_to(disk: Path):
    store = RocksDbStore.load(disk / "store", SPECS, ROWS, "first", read_only=False)
    assert store.apply("users", np.array([1]), ROWS["users"][:1], ("log", 3))
    store.close()
    mount("-o", "remount,ro", str(disk))
    with contextlib.closing(RocksDbStore.load(disk / "store", SPECS, {}, "first")) as again:
        assert np.array_equal(query(again, np.array([0, 1])), ROWS["users"][[0, 0]])
        assert again.positions() == {"log": 3}
        with pytest.raises(StoreError, match="it was opened to be read only"):
            again.insert("users", np.array([1]), ROWS["users"][:1])
    with pytest.raises(StoreError, match=f"{disk}/store: cannot be opened: .*Read-only file system"):
        RocksDbStore.load(disk / "store", SPECS, {}, "first", read_only=False)
    with pytest.raises(StoreError, match=f"{disk}/store: cannot be replaced: .*Read-only file system"):
        RocksDbStore.load(disk / "store", SPECS, ROWS, "second")
    with pytest.raises(StoreError, match=f"{disk}/other: cannot be opened: .*Read-only file system"):
        RocksDbStore.load(disk / "other", SPECS, ROWS, "first")
