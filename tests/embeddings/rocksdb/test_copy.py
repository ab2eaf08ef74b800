"""Copies of stores, whole or not at all; and directories of links: whose they are while used, and where they go."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hebe.embeddings.rocksdb import copy as links_directory
from hebe.embeddings.rocksdb import copy as store_copy
from hebe.embeddings.rocksdb.copy import LinksDirectory, remove_left_over
from hebe.embeddings.rocksdb.database import Database
from hebe.embeddings.rocksdb.directory import read_record
from hebe.embeddings.rocksdb.store import RocksDbStore, restore
from hebe.embeddings.store import StoreError
from tests.embeddings.stores.stamped_store import ROWS, SPECS, apply, check, files, stamp_of


@pytest.fixture
def store(tmp_path: Path):
    with contextlib.closing(RocksDbStore.load(tmp_path / "store", SPECS, ROWS, "first", read_only=False)) as store:
        yield store


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


def test_no_copy_is_made_within_a_store(store: RocksDbStore, tmp_path: Path):
    apply(store, 1)
    store.checkpoint(tmp_path / "one")
    (tmp_path / "link").symlink_to(tmp_path / "store" / "rows")
    before = files(tmp_path)
    for name in ("replacement", "backup", "rows.tmp", "rows/deep/er", "../one/backup", "../link/backup"):
        place = tmp_path / "store" / name
        for replace in (False, True):
            with pytest.raises(StoreError, match=rf"{name}: lies in \S+, a store itself: give another path"):
                store.checkpoint(place, replace=replace)
    for place in (tmp_path / "store", tmp_path / "link" / ".."):
        with pytest.raises(StoreError, match="is the store itself: give another path"):
            store.checkpoint(place, replace=True)
    with pytest.raises(StoreError, match=r"lies in .*/store, a store itself: give another path"):
        restore(tmp_path / "one", tmp_path / "store" / "backup")
    assert files(tmp_path) == before
    (tmp_path / "store" / "store.json").unlink()  # of a store that is open all the same
    with pytest.raises(StoreError, match=r"lies in .*/store, a store itself"):
        store.checkpoint(tmp_path / "store" / "backup")
    assert not (tmp_path / "store" / "backup").exists()


HOLDING = (
    "import sys; from hebe.embeddings.rocksdb.copy import LinksDirectory; held = LinksDirectory();"
    "(held.path / 'link').symlink_to('/etc'); print(held.path, flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The directory for temporary files, of this process and of those that it starts."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def holder():
    """A process that has such a directory, and where."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_goes_when_the_next_store_is_opened(holder, temporary, tmp_path):
    process, left = holder
    Database(tmp_path / "store", ["t"], read_only=False, creates=True).close()
    assert (left / "link").is_symlink(), "it is in use"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.is_dir()
    Database(tmp_path / "second", ["t"], read_only=False, creates=True).close()
    assert not list(temporary.iterdir())
    assert Path("/etc").is_dir(), "links are removed, not what they lead to"


def test_one_in_use_in_this_process_stays_until_it_is_closed(temporary):
    held = LinksDirectory()
    remove_left_over()
    assert list(temporary.iterdir()) == [held.path]
    held.close()
    held.close()
    assert not list(temporary.iterdir())


def test_one_that_is_removed_before_it_is_locked_is_made_anew(temporary, monkeypatch):
    lock, late = links_directory._lock, [True]

    def overtaken(path):
        if late.pop() if late else False:
            remove_left_over()
        return lock(path)

    monkeypatch.setattr(links_directory, "_lock", overtaken)
    held = LinksDirectory()
    assert (list(temporary.iterdir()), late) == ([held.path], [])
    held.close()


def test_what_is_another_users_or_no_directory_is_left_alone(temporary, tmp_path, monkeypatch):
    others = temporary / "hebe-store-links-others"
    others.mkdir()
    (temporary / "hebe-store-links-file").touch()
    (temporary / "hebe-store-links-link").symlink_to(tmp_path)
    (temporary / "hebe-store-1").mkdir()
    user = links_directory.os.geteuid()
    monkeypatch.setattr(links_directory.os, "geteuid", lambda: user + 1)
    remove_left_over()
    assert len(list(temporary.iterdir())) == 4
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    remove_left_over()
    assert {path.name for path in temporary.iterdir()} == {
        "hebe-store-1", "hebe-store-links-file", "hebe-store-links-link",
    }  # fmt: skip
    assert tmp_path.is_dir()


def test_where_no_temporary_file_can_be_made_none_is_looked_for(tmp_path, monkeypatch):
    """As where all disks are full: a store is opened all the same."""

    def full():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    remove_left_over()
    Database(tmp_path / "rows", ["t"], read_only=False, creates=True).close()
