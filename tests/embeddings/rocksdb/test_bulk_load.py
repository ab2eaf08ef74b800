"""A store that was loaded with other tables than are wanted now: what it has stays, what it lacks comes, and a load
that does not finish leaves no table that is believed to be there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.rocksdb import bulk_load as rocksdb_load
from hebe.embeddings.rocksdb import store as rocksdb_store
from hebe.embeddings.rocksdb.directory import read_record, update_member
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec
from tests.places import ROOT

USERS, ITEMS, ADS = SPECS = [
    EmbeddingTableSpec("users", 3000, 8),
    EmbeddingTableSpec("items", 2000, 4),
    EmbeddingTableSpec("ads", 9, 2),
]
POSITIONS = {"log/users": 7, "log/items": 3}


def rows_of(table: EmbeddingTableSpec) -> np.ndarray:
    return (np.arange(table.rows)[:, None] + np.arange(table.dim) / 8).astype(np.float32)


SOURCES = {table.name: rows_of(table) for table in SPECS}


def load(path: Path, *tables: EmbeddingTableSpec, read_only: bool = True, progress=None) -> RocksDbStore:
    """With sources of these tables alone."""
    return RocksDbStore.load(
        path, tables, {table.name: SOURCES[table.name] for table in tables}, "first", progress, read_only=read_only
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a store that was loaded with users and items, and has had updates: key 5 of both."""
    with contextlib.closing(load(tmp_path / "store", USERS, ITEMS, read_only=False)) as store:
        store.apply("users", np.array([5, 9999]), np.full((2, 8), -1, np.float32), ("log/users", 7))
        store.apply("items", np.array([5]), np.full((1, 4), -1, np.float32), ("log/items", 3))
    return tmp_path / "store"


def check(store: RocksDbStore, *tables: EmbeddingTableSpec) -> None:
    """It has exactly these tables, whole, and the updates of `path`."""
    assert store.dims == {table.name: table.dim for table in tables}
    assert store.positions() == POSITIONS
    assert store.verify() == {table.name: table.rows + (table is USERS) for table in tables}
    for table in tables:
        rows, found = np.zeros((table.rows, table.dim), np.float32), np.zeros(table.rows, np.bool_)
        assert store.query(table.name, np.arange(table.rows), rows, found) == table.rows
        expected = SOURCES[table.name].copy()
        if table is not ADS:
            expected[5] = -1
        assert np.array_equal(rows, expected)


def refuse_load(*_: object) -> None:
    pytest.fail("loaded")


@pytest.mark.parametrize("wanted", [[USERS], [ITEMS], [ITEMS, USERS]])
def test_a_store_of_more_tables_than_are_wanted_is_taken_as_it_is(path: Path, tmp_path: Path, wanted):
    with contextlib.closing(RocksDbStore.load(path, wanted, {}, "first", refuse_load)) as store:
        check(store, USERS, ITEMS)
        store.checkpoint(tmp_path / "checkpoint")
    with contextlib.closing(RocksDbStore(tmp_path / "checkpoint", read_only=True)) as store:
        check(store, USERS, ITEMS)
    with contextlib.closing(load(path, *wanted, read_only=False)) as store:
        assert not store.apply("items", np.array([6]), np.zeros((1, 4), np.float32), ("log/items", 3))
        check(store, USERS, ITEMS)


def test_tables_that_a_store_lacks_are_loaded_into_it(path: Path):
    done = []
    with contextlib.closing(load(path, USERS, ADS, progress=lambda *done_and_all: done.append(done_and_all))) as store:
        check(store, USERS, ITEMS, ADS)
    assert done == [(72, 72)]
    with contextlib.closing(RocksDbStore.load(path, SPECS, {}, "first", refuse_load, read_only=False)) as store:
        assert store.apply("ads", np.array([50]), np.zeros((1, 2), np.float32), ("log/ads", 0))
        assert store.size("ads") == store.verify()["ads"] == 10


def test_another_identity_or_dim_replaces_all_tables(path: Path):
    for identity, table in (("second", ITEMS), ("second", EmbeddingTableSpec("items", 5, 3))):
        source = {"items": np.zeros((table.rows, table.dim), np.float32)}
        with contextlib.closing(RocksDbStore.load(path, [table], source, identity)) as store:
            assert store.dims == {"items": table.dim}
            assert store.positions() == {}


class TestReplacement:
    """A load under another identity: a wrong repository, or one whose files were written anew."""

    def replace(self, path: Path, source, **how) -> RocksDbStore:
        return RocksDbStore.load(path, [ITEMS], {"items": source}, "second", **how)

    def test_the_store_stays_as_it_was_if_the_load_fails(self, path: Path):
        name = update_member(path)

        def breaks_off():
            with contextlib.closing(RocksDbStore(path, read_only=True)) as store:
                check(store, USERS, ITEMS)
            yield SOURCES["items"][:1000]
            raise StoreError("a row is damaged")

        with pytest.raises(StoreError, match="a row is damaged"):
            self.replace(path, breaks_off())
        with contextlib.closing(RocksDbStore(path)) as store:
            check(store, USERS, ITEMS)
        assert update_member(path) == name
        assert not (path / "replacement").exists()

    @pytest.mark.parametrize("opens", [RocksDbStore, lambda path: load(path, USERS, ADS)])
    def test_the_store_stays_as_it_was_if_the_load_is_killed(self, path: Path, opens):
        code = (
            "import os, sys; from pathlib import Path; from hebe.embeddings.rocksdb.store import RocksDbStore;"
            "from tests.embeddings.rocksdb.test_bulk_load import ITEMS, SOURCES;"
            "RocksDbStore.load(Path(sys.argv[1]), [ITEMS], SOURCES, 'second', lambda *_: os._exit(9))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert run.returncode == 9
        assert (path / "replacement").exists()
        with contextlib.closing(RocksDbStore(path, read_only=True)) as store:
            check(store, USERS, ITEMS)
        opens(path).close()
        assert not (path / "replacement").exists(), "whoever writes the store removes it"
        with contextlib.closing(self.replace(path, SOURCES["items"])) as store:
            assert store.verify() == {"items": 2000}

    def test_a_replacement_that_is_being_filled_is_left_to_who_fills_it(self, path: Path):
        def opened_meanwhile():
            yield SOURCES["items"][:1000]
            RocksDbStore(path).close()
            with pytest.raises(StoreError, match="replacement: is in use"):
                self.replace(path, SOURCES["items"])
            yield SOURCES["items"][1000:]

        with contextlib.closing(self.replace(path, opened_meanwhile())) as store:
            assert store.verify() == {"items": 2000}

    def test_it_is_told_once_and_leaves_nothing_behind(self, path: Path, caplog):
        (path / "cache_keys.safetensors").write_bytes(b"")
        name = update_member(path)
        self.replace(path, SOURCES["items"]).close()
        self.replace(path, SOURCES["items"]).close()
        [line] = caplog.messages
        assert line == (
            f"persistent store {path} is of other files: it goes with its updates, when the new one is complete"
        )
        assert {file.name for file in path.iterdir()} == {"store.json", "store.lock", "rows"}
        assert update_member(path) != name
        assert read_record(path).seal is not None

    def test_a_disk_without_room_for_both(self, path: Path, monkeypatch, caplog):
        held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        free = rocksdb_load.disk_bytes([ITEMS]) - held - 1

        def disk_usage(at: Path) -> SimpleNamespace:
            return SimpleNamespace(free=free if read_record(at).holds_rows else free + held)

        def after_the_old_one():
            assert not read_record(path).holds_rows
            yield SOURCES["items"]

        monkeypatch.setattr(rocksdb_store.shutil, "disk_usage", disk_usage)
        with pytest.raises(StoreError, match=f"cannot be replaced: that needs 1,113,076 bytes of disk, {free:,} are"):
            self.replace(path, SOURCES["items"])
        with contextlib.closing(RocksDbStore(path, read_only=True)) as store:
            check(store, USERS, ITEMS)
        free += 1
        with contextlib.closing(self.replace(path, after_the_old_one())) as store:
            assert store.verify() == {"items": 2000}
        assert "now, since the disk has no room for both" in caplog.text

    def test_where_it_is_not_wanted_it_is_an_error(self, path: Path):
        with pytest.raises(StoreError, match=r"there is a store already, loaded from other files: .*`--replace`"):
            self.replace(path, SOURCES["items"], replace=False)
        with contextlib.closing(RocksDbStore.load(path, SPECS, SOURCES, "first", replace=False)) as store:
            check(store, USERS, ITEMS, ADS)


def test_a_loaded_store_is_given_tables_by_a_load_alone(path: Path):
    """One that had no rows would be taken for one that was loaded."""
    with pytest.raises(StoreError, match="no table ads; there are users, items"):
        RocksDbStore(path, {"ads": 2})
    with contextlib.closing(RocksDbStore(path, {"items": 4})) as store:
        check(store, USERS, ITEMS)


def test_a_load_that_fails_leaves_the_store_as_it_was(path: Path, monkeypatch):
    monkeypatch.setattr(rocksdb_load, "LOAD_FILE_BYTES", 10_000)
    more = EmbeddingTableSpec("more", 100_000, 8)

    def breaks_off():
        for _ in range(50):
            yield np.zeros((1000, 8), np.float32)
        raise StoreError("the disk of the sources is gone")

    before = sum(file.stat().st_size for file in (path / "rows").glob("*.sst"))
    with pytest.raises(StoreError, match="the disk of the sources is gone"):
        RocksDbStore.load(path, [ADS, more], {"ads": SOURCES["ads"], "more": breaks_off()}, "first")
    assert not (path / "load.sst").exists()
    with contextlib.closing(RocksDbStore(path, read_only=True)) as store:
        check(store, USERS, ITEMS)
    assert sum(file.stat().st_size for file in (path / "rows").glob("*.sst")) == before
    with pytest.raises(StoreError, match="table more is missing"):
        RocksDbStore.load(path, [more], {}, "first")
    with contextlib.closing(load(path, ADS)) as store:
        check(store, USERS, ITEMS, ADS)


def test_a_load_that_fails_at_its_last_step_leaves_the_store_as_it_was(path: Path, monkeypatch):
    write_record = rocksdb_store.write_record

    def fails_once(path: Path, record) -> None:
        if "ads" in record.dims:
            monkeypatch.setattr(rocksdb_store, "write_record", write_record)
            raise OSError("no space left")
        write_record(path, record)

    monkeypatch.setattr(rocksdb_store, "write_record", fails_once)
    with pytest.raises(StoreError, match="no space left"):
        load(path, ADS)
    with contextlib.closing(RocksDbStore(path, read_only=True)) as store:
        check(store, USERS, ITEMS)


KILLED = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from types import SimpleNamespace
from hebe.embeddings.rocksdb import bulk_load as rocksdb_load, store as rocksdb_store
from hebe.embeddings.rocksdb.database import Database
from tests.embeddings.rocksdb.test_bulk_load import ADS, ITEMS, USERS, load

rocksdb_load.LOAD_FILE_BYTES = 10_000
path, moment = Path(sys.argv[1]), sys.argv[2]
die, progress = lambda *_: os._exit(9), None
match moment:
    case "a file is being written": progress = lambda done, _: done > 5_000 and die()
    case "a file was taken": rocksdb_load._SortedFiles.write = lambda *_, write=rocksdb_load._SortedFiles.write: (
        write(*_), die())
    case "a file is being taken":  # RocksDB links it, notes that, and removes the link
        unlinked = rocksdb_load._SortedFiles.finish
        def linked(files):
            kept = files._file.with_name("kept")
            files._writer.finish()
            os.link(files._file, kept)
            files._writer = SimpleNamespace(finish=lambda: None)
            unlinked(files)
            os.rename(kept, files._file)
            die()
        rocksdb_load._SortedFiles.finish = linked
    case "its rows are there": Database.flush = die
    case "all but the record is there":
        write_record = rocksdb_store.write_record
        rocksdb_store.write_record = lambda path, new: die() if "items" in new.dims else write_record(path, new)
load(path, USERS, ITEMS, progress=progress)
"""
MOMENTS = (
    "a file is being written", "a file was taken", "a file is being taken", "its rows are there",
    "all but the record is there",
)  # fmt: skip


@pytest.fixture(scope="module")
def left_by_a_killed_load(tmp_path_factory: pytest.TempPathFactory, request) -> Path:
    """A store of users, with updates, into which a load of items was killed with -9."""
    path = tmp_path_factory.mktemp("killed") / "store"
    with contextlib.closing(load(path, USERS, read_only=False)) as store:
        store.apply("users", np.array([5, 9999]), np.full((2, 8), -1, np.float32), ("log/users", 7))
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), request.param],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert run.returncode == 9
    return path


@pytest.fixture
def killed(left_by_a_killed_load: Path, tmp_path: Path) -> Path:
    """A copy of it, for the test to change. `cp -a` leaves two names of one file what they are; shutil does not."""
    subprocess.run(["cp", "-a", left_by_a_killed_load, tmp_path / "store"], check=True)
    return tmp_path / "store"


@pytest.mark.parametrize("left_by_a_killed_load", MOMENTS, indirect=True)
class TestKilled:
    def test_the_store_is_without_what_was_begun(self, killed: Path, tmp_path: Path, monkeypatch):
        monkeypatch.delitem(POSITIONS, "log/items")
        assert read_record(killed).dims == {"users": 8}
        with contextlib.closing(RocksDbStore(killed, read_only=True)) as store:
            check(store, USERS)
            store.checkpoint(tmp_path / "checkpoint")
        for path in (killed, tmp_path / "checkpoint"):
            with contextlib.closing(RocksDbStore(path)) as store:
                check(store, USERS)
            assert not (path / "load.sst").exists()

    @pytest.mark.parametrize("first", [ITEMS, ADS])
    def test_the_next_load_brings_it_whole(self, killed: Path, monkeypatch, first: EmbeddingTableSpec):
        monkeypatch.delitem(POSITIONS, "log/items")
        monkeypatch.setattr(rocksdb_load, "LOAD_FILE_BYTES", 10_000)
        load(killed, first).close()
        with contextlib.closing(load(killed, *SPECS, read_only=False)) as store:
            store.apply("items", np.array([5]), np.full((1, 4), -1, np.float32))
            check(store, USERS, *([ITEMS, ADS] if first is ITEMS else [ADS, ITEMS]))

    def test_a_table_of_that_name_that_is_added_elsewise_is_empty(self, killed: Path):
        """To a store that was not loaded, as far as its record goes."""
        record = read_record(killed)
        rocksdb_store.write_record(killed, type(record)(record.dims, None))
        with contextlib.closing(RocksDbStore(killed, {"items": 4})) as store:
            assert store.size("items") == 0
            store.insert("items", np.array([3]), np.zeros((1, 4), np.float32))
            assert store.verify() == {"users": 3001, "items": 1}
        with contextlib.closing(RocksDbStore(killed)) as store:
            assert store.size("items") == 1


def test_two_loads_at_once_lose_nothing_of_each_other(path: Path, monkeypatch):
    """One looks at the store, and before it has it alone the other one adds a table."""
    take_lock = rocksdb_store.take_lock

    def late(path: Path, *, exclusive: bool):
        monkeypatch.setattr(rocksdb_store, "take_lock", take_lock)
        load(path, ADS).close()
        return take_lock(path, exclusive=exclusive)

    more = EmbeddingTableSpec("more", 7, 3)
    monkeypatch.setattr(rocksdb_store, "take_lock", late)
    with contextlib.closing(RocksDbStore.load(path, [more], {"more": np.zeros((7, 3), "f")}, "first")) as store:
        assert store.dims == {"users": 8, "items": 4, "ads": 2, "more": 3}
    with contextlib.closing(RocksDbStore.load(path, SPECS, {}, "first", refuse_load)) as store:
        assert store.verify() == {"users": 3001, "items": 2000, "ads": 9, "more": 7}


def test_a_store_that_another_load_has_replaced_meanwhile_is_not_taken_for_ours(path: Path, monkeypatch):
    take_lock = rocksdb_store.take_lock

    def late(path: Path, *, exclusive: bool):
        monkeypatch.setattr(rocksdb_store, "take_lock", take_lock)
        RocksDbStore.load(path, [ITEMS], SOURCES, "second").close()
        return take_lock(path, exclusive=exclusive)

    monkeypatch.setattr(rocksdb_store, "take_lock", late)
    with pytest.raises(StoreError, match="in use by another process"):
        load(path, ADS)
    assert read_record(path).identity == "second"
    assert read_record(path).dims == {"items": 4}
