"""An open RocksDB database of a store: read by any number of threads, written by one at a time, opened again when a
write has failed.

The binding holds the interpreter's lock while it writes, so a write never waits for RocksDB within it: it is tried
again from here until RocksDB has caught up.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import rocksdict

from hebe.embeddings.rocksdb.copy import LinksDirectory, remove_left_over
from hebe.embeddings.rocksdb.directory import database_path, faults, load_file_path, store_error
from hebe.embeddings.rocksdb.format import database_options, family_name
from hebe.embeddings.rocksdb.log_check import check_logs, fingerprint
from hebe.embeddings.store import StoreError

_log = logging.getLogger(__name__)

_STALL_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_ROOM_TO_REOPEN_BYTES = 1 << 20
"""Disk that opening needs for RocksDB's own files, beside what its logs hold."""
_WRITTEN_BY_READERS = ("LOG", "rocksdict-config.json")
_SCAN_KEYS = 2048
"""So many at a time, as other threads wait for the interpreter meanwhile."""
_SCAN_READ_AHEAD_BYTES = 2 << 20


class Gate:
    """Many may be inside at once, or one alone; who wants to be alone is let in before those who come later.

    A signal's exception may end the main thread's way in or out anywhere, in the middle of taking a lock too. So who
    leaves does that by one step that needs no lock, and who waits looks again before long.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: set[object] = set()
        self._alone: object = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside with others; waits for who is alone, or wants to be."""
        visit = object()
        try:
            with self._changed:
                while self._alone is not None:
                    self._changed.wait(_LOOK_AGAIN_S)
                self._inside.add(visit)
            yield
        finally:
            self._inside.discard(visit)
            if self._alone is not None:
                with self._changed:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be alone; waits for those inside."""
        visit = object()
        try:
            with self._changed:
                while self._alone is not None:
                    self._changed.wait(_LOOK_AGAIN_S)
                self._alone = visit
                while self._inside:
                    self._changed.wait(_LOOK_AGAIN_S)
            yield
        finally:
            if self._alone is visit:
                self._alone = None
                with self._changed:
                    self._changed.notify_all()


class Database:
    """The database of the store in `path`, with one column family for each of `tables`.

    `creates`: it is made new, or else must be there; `known` are the tables that it must have then. Others that a load
    has begun and not finished are removed, unless `read_only`. `seal` is what its last writer left
    (`directory.StoreRecord`). Raises `StoreError` when it is missing, damaged or cannot be opened. A database
    that may not be written on a disk that cannot be is opened by links from elsewhere.

    A process forked from one that has opened any can open others, but only to read them.
    """

    def __init__(
        self,
        path: Path,
        tables: Iterable[str],
        known: Iterable[str] = (),
        *,
        read_only: bool,
        creates: bool = False,
        seal: str | None = None,
        block_cache_bytes: int = 0,
    ) -> None:
        self._path = path
        self._rows = database_path(path)
        self._tables, self._known = list(tables), list(known)
        self._read_only = read_only
        self._block_cache_bytes = block_cache_bytes
        self._gate = Gate()
        self._database: Any = None
        self._families: dict[str, Any] = {}
        self._links: LinksDirectory | None = None
        self.broken = False
        """A write failed: RocksDB takes no more until `recover`."""
        forked = _prepare_children().has_forked
        if forked and not read_only:
            raise store_error(
                path,
                "cannot be written by a process that was forked from one with a persistent store open, since it lacks "
                "the threads of RocksDB: start it by spawn",
            )
        remove_left_over()
        if creates:
            with faults(path, "cannot be opened"):
                self._open(database_options(block_cache_bytes, creates=True), [], self._rows, read_only=False)
        else:
            self._open_checked(seal)

    def get(self, table: str, keys: list[bytes]) -> list[bytes | None]:
        """The rows of `keys`, None for those that are not there."""
        with self._gate.shared():
            return self._family(table)[keys]  # type: ignore[no-any-return]

    def notes(self) -> list[tuple[bytes, bytes]]:
        """All keys and values of the default column family."""
        with self._gate.shared():
            if self._database is None:
                raise store_error(self._path, "is closed")
            return list(self._database.items())

    def scan(self, table: str, *, rows: bool = False, after: bytes | None = None) -> Iterator[list[Any]]:
        """All keys of a table above `after`, or all (key, row), in order, some thousand at a time. What is written
        meanwhile may be among them or not; nothing is held between two steps.
        """
        start = None if after is None else after + b"\0"
        while True:
            with self._gate.shared():
                family = self._family(table)
                walk = family.items if rows else family.keys
                part = list(itertools.islice(walk(from_key=start, read_opt=_scan_options()), _SCAN_KEYS))
                ends = len(part) < _SCAN_KEYS
                if part:
                    last = part[-1][0] if rows else part[-1]
                    start = last + b"\0"
                if ends:
                    _raise_if_broken(family, start)
            if part:
                yield part
            if ends:
                return

    def write(
        self, table: str, keys: list[bytes], rows: list[bytes] | None, notes: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Put `rows` under `keys`, or delete these (None), and put `notes`: all of it or nothing, whatever happens.

        Only one thread at a time. Raises `StoreError`; after that, and until `recover`, nothing was or is written.
        """
        options = rocksdict.WriteOptions()
        options.no_slowdown = True
        pause_s, give_up_s = _FIRST_PAUSE_S, time.monotonic() + _STALL_PATIENCE_S
        with faults(self._path, f"cannot write table {table}"), self._gate.shared():
            while True:
                batch = self._batch(table, keys, rows, notes)
                try:
                    self._database.write(batch, options)
                    return
                except Exception as fault:
                    if "stall" not in str(fault):
                        self.broken = not self._read_only
                        raise
                    if time.monotonic() > give_up_s:
                        raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def recover(self) -> None:
        """Open the database again after a write has failed; reads wait for it. What was written is there.

        Raises `StoreError`, and goes on reading, while the disk has too little room for it.
        """
        held = sum(file.stat().st_size for file in self._rows.glob("*.log"))
        with faults(self._path, "cannot be written"):
            _check_room(load_file_path(self._path), 2 * held + _ROOM_TO_REOPEN_BYTES)
        with self._gate.exclusive():
            self._close()
            try:
                self._open_checked(None)
                self.broken = False
            except StoreError:
                self._close()
                with contextlib.suppress(StoreError):
                    self._open_checked(None, reads_by_links=True)
                raise

    def flush(self) -> None:
        """Write all that is in memory to files. Other threads go on."""
        with faults(self._path, "cannot be written"), self._gate.shared():
            for table in self._tables:
                self._family(table).flush()
            self._database.flush()

    def checkpoint(self, rows: Path) -> None:
        """A copy of the database at `rows`, of links where it is the same disk. No writes meanwhile; call `flush`
        before, which lets other threads go on.
        """
        with self._gate.shared():
            self._family(self._tables[0]) if self._tables else None
            rocksdict.Checkpoint(self._database).create_checkpoint(str(rows))

    def add(self, table: str) -> Any:
        """The column family of a new table, for a load that nobody else sees yet."""
        self._families[table] = self._database.create_column_family(
            family_name(table), database_options(self._block_cache_bytes)
        )
        self._tables.append(table)
        self._known.append(table)
        return self._families[table]

    def close(self) -> str | None:
        """Close it when nobody reads any more. Returns its fingerprint, None if it was read-only or not closed well."""
        with self._gate.exclusive():
            if self._database is None or self._read_only:
                self._close()
                return None
            clean = self._close() and not self.broken
            try:
                return fingerprint(self._rows) if clean else None
            except (OSError, ValueError):
                return None

    def _open_checked(self, seal: str | None, *, reads_by_links: bool = False) -> None:
        with faults(self._path, "cannot be opened"):
            unfinished = check_logs(self._path, self._rows, seal)
            if unfinished:
                _log.warning("persistent store %s: %s", self._path, unfinished)
            options = database_options(self._block_cache_bytes, tolerates_cut_log=bool(unfinished))
            existing = rocksdict.Rdict.list_cf(str(self._rows), options)
            missing = [table for table in self._known if family_name(table) not in existing]
            if missing:
                raise store_error(self._path, f"is corrupted: table {missing[0]} is missing in its database")
            # The binding writes a small file into whatever directory it opens.
            linked = reads_by_links or (self._read_only and not os.access(self._rows, os.W_OK))
            self._open(options, existing, self._link() if linked else self._rows, self._read_only or reads_by_links)

    def _link(self) -> Path:
        """A directory elsewhere with links to the database's files."""
        self._links = LinksDirectory()
        for file in self._rows.iterdir():
            if file.name not in _WRITTEN_BY_READERS:
                (self._links.path / file.name).symlink_to(file.resolve())
        return self._links.path

    def _open(self, options: Any, existing: list[str], rows: Path, read_only: bool) -> None:
        access = rocksdict.AccessType
        self._database = rocksdict.Rdict(
            str(rows),
            options,
            {name: options for name in existing if name != "default"},
            access.read_only(error_if_log_file_exist=False) if read_only else access.read_write(),
        )
        known = {family_name(table) for table in self._known}
        for name in existing:
            if name not in known and name != "default" and not read_only:
                self._database.drop_column_family(name)
        for table in self._tables:
            name = family_name(table)
            if name in known:
                self._families[table] = self._database.get_column_family(name)
            else:
                self._families[table] = self._database.create_column_family(name, options)
        self._known = list(self._tables)

    def _close(self) -> bool:
        """Let go of the database; what is in memory is flushed if it can be (else it is in the log). Was it?"""
        clean = True
        families, self._families = list(self._families.values()), {}
        database, self._database = self._database, None
        for part in (*families, *([database] if database is not None else [])):
            try:
                part.close()
            except Exception:  # rocksdict raises plain Exception
                clean = False
        if self._links is not None:
            self._links.close()
            self._links = None
        return clean

    def _family(self, table: str) -> Any:
        if self._database is None:
            raise store_error(self._path, "is closed")
        return self._families[table]

    def _batch(
        self, table: str, keys: list[bytes], rows: list[bytes] | None, notes: Iterable[tuple[bytes, bytes]]
    ) -> Any:
        self._family(table)
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._database.get_column_family_handle(family_name(table)))
        if rows is None:
            for key in keys:
                del batch[key]
        else:
            for key, row in zip(keys, rows, strict=True):
                batch[key] = row
        default = self._database.get_column_family_handle("default")
        for key, note in notes:
            batch.put(key, note, default)
        return batch


class _Children:
    """What forked processes do without RocksDB's background threads. A write would wait for these for ever, and the
    exit handler that joins them reads memory that is gone.
    """

    def __init__(self) -> None:
        self.has_forked = False
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        if not self.has_forked:
            self.has_forked = True
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)  # with the exit status, before the handlers that were there already


@functools.cache
def _prepare_children() -> _Children:
    return _Children()


def _scan_options() -> Any:
    options = rocksdict.ReadOptions()
    options.set_readahead_size(_SCAN_READ_AHEAD_BYTES)
    return options


def _raise_if_broken(family: Any, start: bytes | None) -> None:
    """A broken file ends a walk as the last key does; an iterator that goes on from there can tell them apart."""
    iterator = family.iter()
    if start is None:
        iterator.seek_to_first()
    else:
        iterator.seek(start)
    iterator.status()


def _check_room(file: Path, size_bytes: int) -> None:
    """Raises OSError unless a file of this size can be had."""
    try:
        with open(file, "wb") as room:
            os.posix_fallocate(room.fileno(), 0, size_bytes)
    finally:
        file.unlink(missing_ok=True)
