"""What is removed of a persistent store's directory, and above all what is not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb import directory as store_directory
from hebe.embeddings.rocksdb.directory import read_record, remove, update_member
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec

SPECS = [EmbeddingTableSpec("users", 300, 4)]
ROWS = {"users": np.arange(1200, dtype=np.float32).reshape(300, 4)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The directory of a whole store that nobody uses."""
    RocksDbStore.load(tmp_path / "store", SPECS, ROWS, "first").close()
    RocksDbStore(tmp_path / "store", {"users": 4}).close()  # opened for writing: more kinds of RocksDB's files
    return tmp_path / "store"


def files_below(path: Path) -> set[Path]:
    return set(path.rglob("*"))


def test_a_store_of_ours_is_removed_whole(store: Path):
    assert any((store / "rows").glob("*.sst"))
    remove(store)
    assert not store.exists()


@pytest.mark.parametrize("how", [{"read_only": True}, {"dims": {"users": 4}}])
def test_a_store_in_use_stays(store: Path, how):
    user = RocksDbStore(store, **how)
    before = files_below(store)
    with pytest.raises(StoreError, match=f"{store}: is in use"):
        remove(store)
    assert files_below(store) == before
    user.close()
    remove(store)
    assert not store.exists()


@pytest.mark.parametrize("name", ["thesis.txt", "rows/thesis.txt", "rows/000099.sst/thesis.txt"])
def test_a_store_with_anything_else_among_its_files_stays_whole(store: Path, name: str):
    (store / name).parent.mkdir(exist_ok=True)
    (store / name).write_text("years of work")
    before = files_below(store)
    with pytest.raises(StoreError, match="which is not the store's: move it away"):
        remove(store)
    with pytest.raises(StoreError, match="which is not the store's: move it away"):
        RocksDbStore.load(store, SPECS, ROWS, "second")
    assert files_below(store) == before
    RocksDbStore.load(store, SPECS, {}, "first").close()


def test_links_are_not_followed(store: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(store)
    with pytest.raises(StoreError, match="there is none"):
        remove(tmp_path / "link")
    (store / "rows").rename(tmp_path / "elsewhere")
    (store / "rows").symlink_to(tmp_path / "elsewhere")
    before = files_below(tmp_path)
    with pytest.raises(StoreError, match="holds rows, which is not the store's"):
        remove(store)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("names", [[], ["thesis.txt"], ["rows/000001.sst"], ["store.json"]])
def test_what_is_no_store_stays(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    before = files_below(tmp_path)
    with pytest.raises(StoreError, match=r"there is none|holds no store|is corrupted"):
        remove(tmp_path)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("loaded_again", [False, True])
def test_a_removal_that_is_interrupted_leaves_no_store_and_can_be_finished(store: Path, monkeypatch, loaded_again):
    def interrupted(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_directory.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove(store)
    assert (store / "rows").exists()
    assert read_record(store) is None
    if loaded_again:
        with contextlib.closing(RocksDbStore.load(store, SPECS, ROWS, "first")) as again:
            assert again.size("users") == 300
    else:
        remove(store)
        assert not store.exists()


def test_a_lock_on_what_was_removed_meanwhile_is_refused(store: Path, monkeypatch):
    """Between opening the lock's file and locking it, somebody else removes the store and begins a new one."""
    flock = store_directory.fcntl.flock

    def late(lock, how):
        monkeypatch.setattr(store_directory.fcntl, "flock", flock)
        remove(store)
        RocksDbStore(store, {"users": 4}).close()
        flock(lock, how)

    monkeypatch.setattr(store_directory.fcntl, "flock", late)
    with pytest.raises(StoreError, match="is in use"):
        RocksDbStore(store, read_only=True)


def test_a_store_keeps_the_name_that_it_has_in_logs_of_updates_until_it_is_replaced(store: Path):
    name = update_member(store)
    RocksDbStore.load(store, SPECS, ROWS, "first").close()
    assert update_member(store) == name
    (store / "update_member").write_bytes(b"\xff")
    other = update_member(store)
    assert other == update_member(store) != name
    RocksDbStore.load(store, SPECS, ROWS, "second").close()
    assert update_member(store) not in (name, other)
    remove(store)
    assert not store.exists()
