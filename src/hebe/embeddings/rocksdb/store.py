"""The persistent store: every row on disk in RocksDB, one column family a table.

Readers share a store's directory (`directory`), a writer has it alone; its process may read with any number of threads
meanwhile. What it holds, it holds with RocksDB's checksum over each block, verified on every read. Online updates and
how far they have come are written together, so that a store that was killed says where to go on.

`restore` is the way back from a checkpoint, or to another place with a store that nobody writes.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.options import DEFAULT_OPTIONS
from hebe.embeddings.options import RocksDbOptions as RocksDbOptions
from hebe.embeddings.rocksdb.copy import copy_files, new_store, refuse_within_stores, replace_store
from hebe.embeddings.rocksdb.database import Database
from hebe.embeddings.rocksdb.directory import (
    StoreRecord,
    clear,
    clear_load,
    database_path,
    faults,
    files_bytes,
    in_use,
    no_store,
    read_record,
    remove,
    store_error,
    take_lock,
    write_record,
)
from hebe.embeddings.rocksdb.format import (
    Position,
    RowCount,
    count_note,
    decode_keys,
    encode_keys,
    encode_rows,
    position_note,
    read_notes,
)
from hebe.embeddings.rocksdb.log_check import is_sealed
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreDamaged,
    StoreError,
    check_batch_size,
    check_keys,
    check_query,
    check_rows,
    last_of_each,
)
from hebe.spec import EmbeddingTableSpec

if TYPE_CHECKING:
    from hebe.embeddings.memory.model_rows import KeyedSource
    from hebe.embeddings.memory.table_memory import Progress

_KEYS_WORTH_A_THREAD = 512


class RocksDbStore:
    """An `EmbeddingStore` in directory `path`.

    `dims` gives the embedding dim by table name; tables that the directory lacks are added without rows, unless it was
    loaded: then `load` alone adds any. Without `dims` the directory must hold a store. Raises `StoreError`, naming the
    path and the cause, when the directory is not ours, is corrupted, of another format, in use by another writer, full,
    or not permitted.

    A write that fails, as on a full disk, is an error and leaves the store as it was; queries go on, and so do writes
    once there is room again.
    """

    def __init__(
        self,
        path: Path,
        dims: Mapping[str, int] | None = None,
        *,
        read_only: bool = False,
        options: RocksDbOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self.options = options
        self._database: Database | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._writing = threading.Lock()
        with faults(self.path, "cannot be opened"):
            if dims is not None and not read_only:
                self.path.mkdir(parents=True, exist_ok=True)
            must_exist = dims is None or read_only
            if read_record(self.path) is None and must_exist:
                raise no_store(self.path)
            self._lock = take_lock(self.path, exclusive=not read_only)
            try:
                record = read_record(self.path)  # as it stays, now that nobody else writes
                if record is None and must_exist:
                    raise no_store(self.path)
                known = dict(record.dims) if record else {}
                self.dims = {**known, **(dims or {})}
                for table, dim in known.items():
                    if self.dims[table] != dim:
                        raise store_error(self.path, f"table {table} has embedding dim {dim}, not {self.dims[table]}")
                new = self.dims.keys() - known
                if new and (read_only or (record is not None and record.identity is not None)):
                    raise store_error(self.path, f"no table {min(new)}; there are {', '.join(known)}")
                if record is None:
                    clear(self.path)
                elif not read_only:
                    clear_load(self.path)
                self._record = self._begin_opening(record) if record else StoreRecord({}, None)
                self._database = Database(
                    self.path,
                    self.dims,
                    known,
                    read_only=read_only,
                    creates=record is None,
                    seal=self._record.seal,
                    block_cache_bytes=options.block_cache_bytes,
                )
                self._take_notes()
                if not read_only:
                    for table in new:  # what was noted of one that a load has left unfinished
                        self._write(table, np.empty(0, np.int64), [], RowCount(), None)
                    self._write_record(self.identity)
            except BaseException:
                self._let_go()
                raise

    @classmethod
    def load(
        cls,
        path: Path,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, KeyedSource],
        identity: str,
        progress: Progress | None = None,
        *,
        read_only: bool = True,
        replace: bool = True,
        verify: bool = False,
        options: RocksDbOptions = DEFAULT_OPTIONS,
    ) -> RocksDbStore:
        """A store of all rows of `tables`: the one in `path` if it was loaded under `identity`, else anew.

        Keys are row numbers, or those of a source that has keys. A store of that identity is taken as it is, with all
        updates that it has had since, other tables too; tables that it lacks are loaded into it. What a load did not
        finish is replaced. So is what an earlier identity left in `path`, its updates and positions too, unless
        `replace` says that it is an error: when the new store is complete, or before if the disk has no room for both.
        `verify`: read every row of a store that was there already, and refuse it if one is damaged.
        Raises `StoreError` as the constructor does, and before writing if the disk has too little room; a load that
        fails removes what it wrote.
        """
        path, dims = Path(path), {table.name: table.dim for table in tables}
        with faults(path, "cannot be read"):
            record = read_record(path)
        found = record is not None and record.fits(dims, identity)
        if record is not None and not found:
            if not replace and record.holds_rows:
                raise store_error(
                    path,
                    "there is a store already, loaded from other files: give another path, or replace it with all "
                    "updates that it has had (`--replace`)",
                )
            from hebe.embeddings.rocksdb.bulk_load import disk_bytes

            with replace_store(path, record, disk_bytes(tables)) as beside:
                cls._fill(beside, tables, sources, identity, progress)
        elif record is None or not dims.keys() <= record.dims.keys():
            cls._fill(path, tables, sources, identity, progress)
        store = cls(path, read_only=read_only, options=options)
        if verify and found:
            try:
                store.verify(progress)
            except BaseException:
                store.close()
                raise
        return store

    @classmethod
    def _fill(
        cls,
        path: Path,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, KeyedSource],
        identity: str,
        progress: Progress | None,
    ) -> None:
        """Load those tables that the store in `path` lacks, which is begun if there is none."""
        try:
            with contextlib.closing(cls(path, {})) as store:
                store._load(tables, sources, identity, progress)
        except BaseException:
            with contextlib.suppress(StoreError):
                remove(path, unless_loaded=True)
                cls(path).close()  # which removes what was begun, where the rest stays
            raise

    @property
    def identity(self) -> str | None:
        """Of what was loaded; None if nothing was."""
        return self._record.identity

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`. Ascending keys are found faster."""
        database, dim = self._open(table)
        check_query(table, keys, rows, found, dim)
        step = self.options.max_batch_size
        count = 0
        for first in range(0, len(keys), step):
            part = slice(first, first + step)
            values = self._get(database, table, keys[part])
            mask = np.fromiter((value is not None for value in values), np.bool_, len(values))
            found[part] = mask
            present = int(np.count_nonzero(mask))
            stored = b"".join(value for value in values if value is not None)
            if len(stored) != present * 4 * dim:
                damage = f"table {table} has rows that are not {dim} floats"
                raise StoreDamaged(f"persistent store {self.path}: {damage}", f"persistent store: {damage}")
            arrived = np.frombuffer(stored, "<f4").reshape(-1, dim)
            if present == len(values):
                rows[part] = arrived
            else:
                rows[part][mask] = arrived
            count += present
        return count

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. Survives a crash of the process, not of the machine."""
        step = self.options.max_batch_size
        check_rows(table, keys, rows, self._open(table)[1])
        with self._writing:
            for first in range(0, len(keys), step):
                self._put(table, keys[first : first + step], rows[first : first + step])

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        check_rows(table, keys, rows, self._open(table)[1])
        with self._writing:
            present = self._present(table, keys)
            self._put(table, keys[present], rows[present])
            return int(np.unique(keys[present]).size)

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        self._open(table)
        check_keys(table, keys)
        with self._writing:
            return self._remove(table, keys)

    def apply(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray | None,
        position: tuple[str, int] | None = None,
        *,
        mark: str = "",
        anew: bool = False,
        offsets: KeyArray | None = None,  # noqa: ARG002  (of stores that keep them by key)
    ) -> bool:
        """Put `rows` `[n, dim]` under `keys`, or delete these keys (None), and note `position` with them.

        A position is the name of an ordered log of updates and an offset in it; `mark`, which is noted too, says which
        message is there. Keys, rows and position are written as one: whatever happens, the store has all of them or
        none. Returns False, having written nothing, if the store is at that offset of that log or past it already;
        unless `anew`, for a log that went back: then the position is the new one, larger or not.
        """
        _, dim = self._open(table)
        if rows is None:
            check_keys(table, keys)
        else:
            check_rows(table, keys, rows, dim)
        with self._writing:
            self._recover()
            noted = None if position is None else Position(*position, mark)
            known = None if noted is None else self._positions.get(noted.log)
            if noted is not None and known is not None and known.offset >= noted.offset and not anew:
                return False
            if rows is None:
                self._remove(table, keys, noted)
            else:
                self._put(table, keys, rows, noted)
            return True

    def positions(self) -> dict[str, int]:
        """The offset of each log up to which its updates are in the store, by name, as `apply` was given them."""
        self._open(None)
        return {log: position.offset for log, position in self._positions.items()}

    def marks(self) -> dict[str, str]:
        """Of each log which message is at its position, as `apply` was given it; "" where it was not."""
        self._open(None)
        return {log: position.mark for log, position in self._positions.items()}

    def dump_keys(self, table: str, batch_size: int, *, after: int | None = None) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`. In ascending order, those above `after`."""
        database, _ = self._open(table)
        check_batch_size(batch_size)
        last = None if after is None else encode_keys(np.array([after]))[0]
        with faults(self.path, f"cannot read table {table}"):
            for part in database.scan(table, after=last):
                keys = decode_keys(part)
                for first in range(0, keys.size, batch_size):
                    yield keys[first : first + batch_size]

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`. Known at once: it is counted with each write."""
        self._open(table)
        return self._counts.get(table, RowCount()).rows

    @property
    def known_rows(self) -> int:
        """Of all tables."""
        return sum(count.rows for count in list(self._counts.values()))

    def verify(self, progress: Progress | None = None) -> dict[str, int]:
        """Read all rows of all tables, checksums and lengths; returns how many each table has.

        `progress(rows done, rows in all)`. Raises `StoreError` naming the table and what is wrong with it. Updates and
        queries go on meanwhile.
        """
        done, total, sizes = 0, sum(self.size(table) for table in self.dims), {}
        for table, dim in self.dims.items():
            database, _ = self._open(table)
            writes, rows = self._writes, 0
            with faults(self.path, f"cannot read table {table}"):
                for part in database.scan(table, rows=True):
                    if any(len(key) != 8 or len(row) != 4 * dim for key, row in part):
                        raise store_error(self.path, f"is corrupted: table {table} has rows that are not {dim} floats")
                    rows += len(part)
                    done += len(part)
                    if progress is not None:
                        progress(done, max(done, total))
            if rows != self.size(table) and writes == self._writes:
                raise store_error(
                    self.path, f"is corrupted: table {table} has {rows:,} rows where {self.size(table):,} were counted"
                )
            sizes[table] = rows
        return sizes

    def checkpoint(self, path: Path, *, replace: bool = False) -> None:
        """Make a store of its own at `path`, as this one is now, rows and positions: complete, or not there.

        Queries go on meanwhile, and updates wait for a moment. Files of rows on the same disk are links, which take no
        room; what writers change later is theirs alone. A store that is at `path` is an error unless `replace`; it
        goes when the new one is complete. Raises `StoreError`: `path` in use, full, somebody else's, in a store.
        """
        database, _ = self._open(None)
        with faults(Path(path), "cannot be written"):
            refuse_within_stores(Path(path), self.path)
        if not self.read_only:
            database.flush()  # most of what is to be flushed, while updates go on
        with self._writing, new_store(Path(path), self._record, replace=replace) as rows:
            if self.read_only:
                copy_files(database_path(self.path), rows)
            else:
                self._recover()
                database.flush()
                database.checkpoint(rows)
            expected = self.positions(), {table: self.size(table) for table in self.dims}
        with contextlib.closing(RocksDbStore(path, read_only=True)) as made:
            if expected != (made.positions(), {table: made.size(table) for table in made.dims}):
                raise store_error(Path(path), "the checkpoint is not what the store is")

    def disk_bytes(self) -> int:
        """What the store's files take, without what they share with checkpoints taken off."""
        with faults(self.path, "cannot be read"):
            return files_bytes(self.path)

    def close(self) -> None:
        """See `EmbeddingStore.close`. Waits for calls that run."""
        with self._writing:
            self._let_go()

    def _begin_opening(self, record: StoreRecord) -> StoreRecord:
        """The record with the seal that the database must have. A writer says first that it begins to open it: what
        stops it between RocksDB's new MANIFEST and its own new record must not make the store a damaged one.
        """
        sealed = is_sealed(database_path(self.path), record.seal)
        if sealed and not self.read_only:
            write_record(self.path, replace(record, opening=True))
        return replace(record, opening=False, seal=None if record.opening and not sealed else record.seal)

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            seal = database.close()
            if seal is not None:
                with contextlib.suppress(OSError):  # without a seal more is checked when it is opened
                    write_record(self.path, replace(self._record, seal=seal))
        if self._readers is not None:
            self._readers.shutdown(wait=False)
            self._readers = None
        self._lock.close()

    def _open(self, table: str | None) -> tuple[Database, int]:
        """The database and the dim of a table (None: 0). Raises `StoreError` if closed, or there is no such table."""
        if (database := self._database) is None:
            raise store_error(self.path, "is closed")
        if table is not None and table not in self.dims:
            raise store_error(self.path, f"no table {table}; there are {', '.join(self.dims)}")
        return database, self.dims[table] if table is not None else 0

    def _get(self, database: Database, table: str, keys: KeyArray) -> list[bytes | None]:
        threads = min(self.options.num_threads, len(keys) // _KEYS_WORTH_A_THREAD)
        with faults(self.path, f"cannot read table {table}"):
            if threads < 2:
                return database.get(table, encode_keys(keys))
            if (readers := self._readers) is None:
                readers = self._readers = ThreadPoolExecutor(self.options.num_threads, "hebe-store")
            parts = np.array_split(keys, threads)
            others = [readers.submit(lambda part: database.get(table, encode_keys(part)), part) for part in parts[1:]]
            values = database.get(table, encode_keys(parts[0]))
            for other in others:
                values += other.result()
            return values

    def _present(self, table: str, keys: KeyArray) -> FoundMask:
        """Which keys are there; those of a table's dense range need no look."""
        database, _ = self._open(table)
        present = (keys >= 0) & (keys < self._counts.get(table, RowCount()).dense)
        others = np.flatnonzero(~present)
        step = self.options.max_batch_size
        for first in range(0, others.size, step):
            part = others[first : first + step]
            values = self._get(database, table, keys[part])
            present[part] = np.fromiter((value is not None for value in values), np.bool_, len(values))
        return present

    def _put(self, table: str, keys: KeyArray, rows: RowArray, position: Position | None = None) -> None:
        self._recover()
        chosen = last_of_each(keys)  # and in ascending order, in which they are written faster
        keys, count = keys[chosen], self._counts.get(table, RowCount())
        new = np.count_nonzero(~self._present(table, keys))
        self._write(table, keys, encode_rows(rows[chosen]), RowCount(count.rows + int(new), count.dense), position)

    def _remove(self, table: str, keys: KeyArray, position: Position | None = None) -> int:
        self._recover()
        count = self._counts.get(table, RowCount())
        gone = np.unique(keys[self._present(table, keys)])
        dense = min([count.dense, *gone[gone >= 0][:1].tolist()])
        self._write(table, gone, None, RowCount(count.rows - gone.size, dense), position)
        return int(gone.size)

    def _write(
        self,
        table: str,
        keys: KeyArray,
        rows: list[bytes] | None,
        count: RowCount,
        position: Position | None,
    ) -> None:
        """One batch of rows and notes. The caller has `_writing`."""
        database, _ = self._open(table)
        changed = count != self._counts.get(table, RowCount())
        notes = [count_note(table, count)] if changed else []
        if position is not None:
            notes.append(position_note(position))
        if len(keys) or notes:
            self._writes += 1
            database.write(table, encode_keys(keys), rows, notes)
        self._counts[table] = count
        if position is not None:
            self._positions[position.log] = position

    def _recover(self) -> None:
        database, _ = self._open(None)
        if self.read_only:
            raise store_error(self.path, "cannot be written: it was opened to be read only")
        if database.broken:
            database.recover()
            self._take_notes()

    def _take_notes(self) -> None:
        database, _ = self._open(None)
        with faults(self.path, "cannot be opened"):
            self._counts, self._positions = read_notes(database.notes())
        self._writes = 0

    def _load(
        self,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, KeyedSource],
        identity: str,
        progress: Progress | None,
    ) -> None:
        """Write those tables that the store lacks, then record that it has them, and under which identity."""
        from hebe.embeddings.memory.model_rows import dense_rows
        from hebe.embeddings.rocksdb.bulk_load import disk_bytes, load_tables

        if self.identity != identity and (self.dims or self.identity is not None):  # since it was looked at
            raise in_use(self.path)
        tables = [table for table in tables if table.name not in self.dims]
        needed, free = disk_bytes(tables), shutil.disk_usage(self.path).free
        if free < needed:
            raise store_error(self.path, f"needs {needed:,} bytes of disk, {free:,} are free")
        database, _ = self._open(None)
        load_tables(self.path, database, tables, sources, progress)
        with self._writing, faults(self.path, "cannot be written"):
            self.dims |= {table.name: table.dim for table in tables}
            for table in tables:
                count = RowCount(table.rows, dense_rows(table, sources[table.name]))
                self._write(table.name, np.empty(0, np.int64), [], count, None)
            database.flush()
            self._write_record(identity)

    def _write_record(self, identity: str | None) -> None:
        """Record that the rows of all tables are there."""
        record = StoreRecord(dict(self.dims), identity)
        write_record(self.path, record)
        self._record = record


def restore(path: Path, into: Path, *, replace: bool = False, progress: Progress | None = None) -> dict[str, int]:
    """Put a copy of the checkpoint or store in `path` at `into`, when all of its rows were read and found whole.

    Returns the rows of each table. A store that is at `into` is an error unless `replace`; it goes when the copy is
    complete. `progress(rows done, rows in all)` is of the reading. Raises `StoreError`: no store or a damaged one in
    `path`, or `into` in use, full or somebody else's.
    """
    with contextlib.closing(RocksDbStore(path, read_only=True)) as source:
        sizes = source.verify(progress)
        source.checkpoint(into, replace=replace)
        return sizes
