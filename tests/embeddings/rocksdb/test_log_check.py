"""Logs of RocksDB that were cut or changed: what is taken for a crash, and what for damage."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb import store as rocksdb_store
from hebe.embeddings.rocksdb.database import Database
from hebe.embeddings.rocksdb.directory import StoreRecord, read_record
from hebe.embeddings.rocksdb.log_check import unfinished_bytes
from hebe.embeddings.rocksdb.store import RocksDbStore, restore
from hebe.embeddings.store import StoreError

DIM = 700
"""Records of many blocks: 12 rows of 2,800 bytes are more than 32 KiB."""

BATCHES = 5
KEYS = np.arange(12)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a killed writer leaves of `BATCHES` batches, of which some are in files of rows."""
    store = RocksDbStore(tmp_path / "running", {"users": DIM, "items": 1})
    for offset in range(BATCHES):
        apply(store, offset)
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    return tmp_path / "killed"


def apply(store: RocksDbStore, offset: int) -> None:
    assert store.apply("users", KEYS + 100 * offset, np.full((len(KEYS), DIM), offset, "f"), ("log", offset))


def check(store: RocksDbStore, batches: int) -> None:
    """The store holds the first so many batches, rows and position."""
    assert store.positions() == ({"log": batches - 1} if batches else {})
    assert store.size("users") == store.verify()["users"] == batches * len(KEYS)
    for offset in range(batches):
        rows, found = np.zeros((len(KEYS), DIM), np.float32), np.zeros(len(KEYS), np.bool_)
        assert store.query("users", KEYS + 100 * offset, rows, found) == len(KEYS)
        assert (rows == offset).all()


def log_file(path: Path) -> Path:
    (file,) = (path / "rows").glob("*.log")
    return file


def cut(file: Path, bytes_: int) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(file.stat().st_size - bytes_)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def test_whole_logs_have_nothing_unfinished(killed: Path):
    assert log_file(killed).stat().st_size > 150_000
    assert unfinished_bytes(log_file(killed)) == 0
    (manifest,) = (killed / "rows").glob("MANIFEST-*")
    assert unfinished_bytes(manifest) == 0


@pytest.mark.parametrize("bytes_", [1, 7, 5000, 33_000])
def test_what_is_missing_at_the_end_is_found(killed: Path, bytes_: int):
    cut(log_file(killed), bytes_)
    assert 0 < unfinished_bytes(log_file(killed)) < 2 * 33_700


def test_room_that_was_reserved_for_more_is_no_record(killed: Path):
    cut(log_file(killed), -100_000)
    assert unfinished_bytes(log_file(killed)) == 0
    with contextlib.closing(RocksDbStore(killed)) as store:
        check(store, BATCHES)


def test_a_log_ends_well_at_its_every_record_and_nowhere_else(tmp_path: Path):
    """Against the rows and positions that RocksDB itself finds in a log that was cut at any byte."""
    with contextlib.closing(RocksDbStore(tmp_path / "running", {"users": 1})) as store:
        ends = []
        for offset in range(3):
            store.apply("users", np.array([offset]), np.zeros((1, 1), np.float32), ("log", offset))
            ends.append(log_file(tmp_path / "running").stat().st_size)
        shutil.copy(log_file(tmp_path / "running"), tmp_path / "copy.log")
    file = tmp_path / "copy.log"
    well = []
    for size in range(ends[-1], ends[0] - 1, -1):
        with open(file, "r+b") as opened:
            opened.truncate(size)
        if not unfinished_bytes(file):
            well.append(size)
    assert sorted(well) == ends


@pytest.mark.parametrize("how", [{}, {"read_only": True}])
def test_a_write_that_a_kill_cut_short_is_dropped_whole_and_said(killed: Path, how, caplog: pytest.LogCaptureFixture):
    cut(log_file(killed), 5000)
    with caplog.at_level(logging.WARNING), contextlib.closing(RocksDbStore(killed, **how)) as store:
        assert f"{killed}: the last write before it was stopped was not finished" in caplog.text
        check(store, BATCHES - 1)
        if not how:
            apply(store, BATCHES - 1)
            check(store, BATCHES)
    caplog.clear()
    with contextlib.closing(RocksDbStore(killed, read_only=True)) as store:
        check(store, BATCHES - 1 if how else BATCHES)
    assert bool(caplog.text) == bool(how)


@pytest.mark.parametrize("at", [3, 40_000, 120_000, -10])
@pytest.mark.parametrize("how", [{}, {"read_only": True}])
def test_changed_bytes_of_a_log_are_said_and_not_served(killed: Path, how, at: int):
    flip(log_file(killed), at)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{killed}: (is corrupted|cannot be opened: Corruption)"):
            RocksDbStore(killed, **how)


def test_changed_bytes_before_a_cut_are_said_and_not_served(killed: Path):
    cut(log_file(killed), 5000)
    flip(log_file(killed), 40_000)
    with pytest.raises(StoreError, match=f"{killed}: cannot be opened: Corruption"):
        RocksDbStore(killed)


def test_a_cut_log_that_others_follow_is_said_and_not_served(killed: Path):
    shutil.copy(log_file(killed), killed / "rows" / "999999.log")
    cut(min((killed / "rows").glob("*.log")), 5000)
    with pytest.raises(StoreError, match=r"is corrupted: \d+\.log ends within a record, and others follow it"):
        RocksDbStore(killed)


def test_a_log_that_a_copy_left_out_is_said_and_not_served(killed: Path):
    log_file(killed).unlink()
    for how in ({"read_only": True}, {}):
        with pytest.raises(StoreError, match=f"{killed}: is corrupted: it has no write-ahead log"):
            RocksDbStore(killed, **how)


def test_a_store_that_was_closed_is_whole_without_a_log(killed: Path):
    RocksDbStore(killed).close()
    log_file(killed).unlink()
    for how in ({"read_only": True}, {}):
        with contextlib.closing(RocksDbStore(killed, **how)) as store:
            check(store, BATCHES)


@pytest.mark.parametrize("log", ["with its log", "without a log"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_kill_leaves_while_a_closed_store_is_opened_is_whole(killed: Path, monkeypatch, log: str, moment: str):
    """Before RocksDB has made a new list of files, and after, when the store's record is not yet a new one."""
    RocksDbStore(killed).close()
    if log == "without a log":
        log_file(killed).unlink()
    left = killed.parent / "left"
    step = "__init__" if moment == "before" else "notes"
    database_step = getattr(Database, step)

    def copy_first(*args, **kwargs):
        shutil.copytree(killed, left)
        return database_step(*args, **kwargs)

    monkeypatch.setattr(Database, step, copy_first)
    RocksDbStore(killed).close()
    monkeypatch.undo()
    assert read_record(left).seal is not None
    restore(left, killed.parent / "restored")
    for path, how in ((left, {"read_only": True}), (left, {}), (killed.parent / "restored", {})):
        with contextlib.closing(RocksDbStore(path, **how)) as store:
            check(store, BATCHES)
    assert not read_record(left).opening


def test_a_disk_that_is_full_while_a_closed_store_is_opened_leaves_it_whole(killed: Path, monkeypatch):
    """None of the records that it writes finds room, or only the first: RocksDB has made its list anew then."""
    RocksDbStore(killed).close()
    for room_for in (0, 1):
        records = iter([rocksdb_store.write_record] * room_for)

        def write(path: Path, record: StoreRecord, records=records) -> None:
            if (write_record := next(records, None)) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_record(path, record)

        with monkeypatch.context() as patch:
            patch.setattr(rocksdb_store, "write_record", write)
            with pytest.raises(StoreError, match=f"{killed}: cannot be opened: .*free some disk space"):
                RocksDbStore(killed)
        with contextlib.closing(RocksDbStore(killed, read_only=True)) as store:
            check(store, BATCHES)
    with contextlib.closing(RocksDbStore(killed)) as store:
        check(store, BATCHES)


def test_a_damaged_list_of_files_is_not_excused_by_an_attempt_to_open_it(killed: Path):
    RocksDbStore(killed).close()
    (manifest,) = (killed / "rows").glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:-9])
    for _ in range(2):
        with pytest.raises(StoreError, match="its MANIFEST is not the one it was closed with"):
            RocksDbStore(killed)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no CURRENT", "CURRENT elsewhere", "empty CURRENT"])
def test_a_damaged_list_of_files_is_said_and_not_served(killed: Path, sealed: bool, damage: str):
    if sealed:
        RocksDbStore(killed).close()
    (manifest,) = (killed / "rows").glob("MANIFEST-*")
    current = killed / "rows" / "CURRENT"
    match damage:
        case "cut":
            cut(manifest, 9)
        case "changed":
            flip(manifest, manifest.stat().st_size // 2)
        case "gone":
            manifest.unlink()
        case "no CURRENT":
            current.unlink()
        case "CURRENT elsewhere":
            current.write_text("MANIFEST-000999\n")
        case "empty CURRENT":
            current.write_text("")
    before = {file.name for file in (killed / "rows").iterdir()}
    for how in ({"read_only": True}, {}, {"dims": {"users": DIM, "items": 1}}):
        with pytest.raises(StoreError, match=f"{killed}: (is corrupted|cannot be opened: Corruption)"):
            RocksDbStore(killed, **how)
    assert {name for name in before if name.endswith(".sst")} <= {file.name for file in (killed / "rows").iterdir()}


def test_a_list_of_files_of_another_moment_is_said_and_not_served(killed: Path):
    """One that is whole in itself and older than the rows: it would lack what was written since."""
    store = RocksDbStore(killed)
    (manifest,) = (killed / "rows").glob("MANIFEST-*")
    older = manifest.read_bytes()
    apply(store, BATCHES)
    store.close()
    assert manifest.read_bytes() != older
    manifest.write_bytes(older)
    with pytest.raises(StoreError, match="its MANIFEST is not the one it was closed with"):
        RocksDbStore(killed, read_only=True)


def test_a_file_of_rows_that_is_missing_or_cut_is_said_and_not_served(killed: Path):
    RocksDbStore(killed).close()
    largest = max((killed / "rows").glob("*.sst"), key=lambda file: file.stat().st_size)
    cut(largest, 1)
    with pytest.raises(StoreError, match=f"{killed}: cannot be opened: Corruption"):
        RocksDbStore(killed, read_only=True)
    largest.unlink()
    for how in ({"read_only": True}, {}):
        with pytest.raises(StoreError, match=f"{killed}: cannot be opened: "):
            RocksDbStore(killed, **how)
