"""The persistent store: every row on disk in RocksDB, one column family a table.

Keys are 8 bytes, big-endian; values the float32 bytes of a row, little-endian, with RocksDB's checksum over each block
verified on every read. Readers share a store's directory (`store_directory`), a writer has it alone.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from hebe.embeddings.store import FoundMask, KeyArray, RowArray, StoreError
from hebe.embeddings.store_directory import (
    StoreRecord,
    clear,
    database_path,
    faults,
    load_file_path,
    read_record,
    remove,
    store_error,
    take_lock,
    write_record,
)
from hebe.embeddings.table_memory import Progress, TableSource, chunks_of
from hebe.spec import EmbeddingTableSpec

BATCH_ROWS = 16384
LOAD_FILE_BYTES = 256 << 20
BLOCK_CACHE_BYTES = 64 << 20


class RocksDbStore:
    """An `EmbeddingStore` in directory `path`.

    `dims` gives the embedding dim by table name; tables that the directory lacks are added. Without `dims` the
    directory must hold a store. Raises `StoreError`, naming the path and the cause, when the directory is not ours, is
    corrupted, of another format, in use by another writer, full, or not permitted.
    """

    def __init__(self, path: Path, dims: Mapping[str, int] | None = None, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._families: dict[str, Any] = {}
        self._database: Any = None
        self._writing = threading.Lock()
        with faults(self.path, "cannot be opened"):
            if dims is not None and not read_only:
                self.path.mkdir(parents=True, exist_ok=True)
            record = read_record(self.path)
            if record is None and (dims is None or read_only):
                raise store_error(self.path, "there is none")
            self.dims = dict(record.dims) if record else {}
            self.identity = record.identity if record else None
            for table, dim in (dims or {}).items():
                if self.dims.setdefault(table, dim) != dim:
                    raise store_error(self.path, f"table {table} has embedding dim {self.dims[table]}, not {dim}")
            self._lock = take_lock(self.path, exclusive=not read_only)
            try:
                if record is None:
                    clear(self.path)
                self._open(read_only)
                if not read_only:
                    self._write_record(self.identity)
            except BaseException:
                self.close()
                raise

    @classmethod
    def load(
        cls,
        path: Path,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, TableSource],
        identity: str,
        progress: Progress | None = None,
    ) -> RocksDbStore:
        """A read-only store of all rows of `tables`: the one in `path` if it was loaded under `identity`, else anew.

        Keys are row numbers. What an earlier identity left in `path`, or a load that did not finish, is replaced.
        Raises `StoreError` as the constructor does, and before writing if the disk has too little room; a load that
        fails removes what it wrote.
        """
        path, dims = Path(path), {table.name: table.dim for table in tables}
        with faults(path, "cannot be read"):
            record = read_record(path)
        if record != StoreRecord(dims, identity):
            if record is not None:
                with faults(path, "cannot be replaced"), take_lock(path, exclusive=True):
                    clear(path)
            try:
                with contextlib.closing(cls(path, dims)) as store:
                    store._load(tables, sources, identity, progress)
            except BaseException:
                with contextlib.suppress(StoreError):
                    remove(path, unless_loaded=True)
                raise
        return cls(path, read_only=True)

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        family, dim = self._family(table)
        for first in range(0, len(keys), BATCH_ROWS):
            part = slice(first, first + BATCH_ROWS)
            with faults(self.path, f"cannot read table {table}"):
                values = family[_key_bytes(keys[part])]
            mask = np.fromiter((value is not None for value in values), np.bool_, len(values))
            found[part] = mask
            stored = b"".join(values) if mask.all() else b"".join(value for value in values if value is not None)
            if len(stored) != int(np.count_nonzero(mask)) * 4 * dim:
                raise store_error(self.path, f"table {table} has rows that are not {dim} floats")
            rows[part][mask] = np.frombuffer(stored, "<f4").reshape(-1, dim)
        return int(np.count_nonzero(found))

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. Survives a crash of the process, not of the machine."""
        with self._writing:
            self._put(table, keys, rows)

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        with self._writing:
            present = self._present(table, keys)
            self._put(table, keys[present], rows[present])
            return int(np.unique(keys[present]).size)

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        with self._writing:
            distinct = np.unique(keys[self._present(table, keys)])
            self._family(table)
            batch = self._batch(table)
            for key in _key_bytes(distinct):
                del batch[key]
            with faults(self.path, f"cannot write table {table}"):
                self._database.write(batch)
            return int(distinct.size)

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`."""
        family, _ = self._family(table)
        with faults(self.path, f"cannot read table {table}"):
            batch: list[bytes] = []
            iterator = family.iter()
            iterator.seek_to_first()
            while iterator.valid():
                batch.append(iterator.key())
                iterator.next()
                if len(batch) == batch_size:
                    yield _keys_of(batch)
                    batch = []
            iterator.status()  # a broken file ends the walk as the last key does; this tells them apart
            if batch:
                yield _keys_of(batch)

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`. Walks over all keys: RocksDB itself only estimates."""
        return sum(keys.size for keys in self.dump_keys(table, BATCH_ROWS))

    def close(self) -> None:
        """See `EmbeddingStore.close`."""
        families, self._families = self._families, {}
        for family in families.values():
            family.close()
        if self._database is not None:
            self._database.close()
            self._database = None
        self._lock.close()

    def _open(self, read_only: bool) -> None:
        location = str(database_path(self.path))
        options = _options()
        existing = rocksdict.Rdict.list_cf(location) if (database_path(self.path) / "CURRENT").exists() else []
        access = (
            rocksdict.AccessType.read_only(error_if_log_file_exist=False)
            if read_only
            else rocksdict.AccessType.read_write()
        )
        self._database = rocksdict.Rdict(
            location, options, {name: options for name in existing if name != "default"}, access
        )
        for table in self.dims:
            name = _family_name(table)
            if name in existing:
                self._families[table] = self._database.get_column_family(name)
            else:
                self._families[table] = self._database.create_column_family(name, options)

    def _family(self, table: str) -> tuple[Any, int]:
        if self._database is None:
            raise store_error(self.path, "is closed")
        if table not in self._families:
            raise store_error(self.path, f"no table {table}; there are {', '.join(self.dims)}")
        return self._families[table], self.dims[table]

    def _batch(self, table: str) -> Any:
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._database.get_column_family_handle(_family_name(table)))
        return batch

    def _put(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        _, dim = self._family(table)
        if rows.shape != (len(keys), dim):
            raise StoreError(f"rows {list(rows.shape)} for {len(keys)} keys of table {table}: dim is {dim}")
        for first in range(0, len(keys), BATCH_ROWS):
            batch = self._batch(table)
            part = slice(first, first + BATCH_ROWS)
            for key, value in zip(_key_bytes(keys[part]), _row_bytes(rows[part]), strict=True):
                batch[key] = value
            with faults(self.path, f"cannot write table {table}"):
                self._database.write(batch)

    def _present(self, table: str, keys: KeyArray) -> FoundMask:
        family, _ = self._family(table)
        with faults(self.path, f"cannot read table {table}"):
            values = family[_key_bytes(keys)]
        return np.fromiter((value is not None for value in values), np.bool_, len(values))

    def _load(
        self,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, TableSource],
        identity: str,
        progress: Progress | None,
    ) -> None:
        """Write every table as sorted files that RocksDB takes over as they are, then record the identity."""
        done, total = 0, sum(table.size_bytes for table in tables)
        needed, free = disk_bytes(tables), shutil.disk_usage(self.path).free
        if free < needed:
            raise store_error(self.path, f"needs {needed:,} bytes of disk, {free:,} are free")
        for table in tables:
            if table.name not in sources:
                raise StoreError(f"table {table.name} is missing")
            family, _ = self._family(table.name)
            with faults(self.path, f"cannot load table {table.name}"):
                with _SortedFiles(self.path, family) as files:
                    key = 0
                    for chunk in chunks_of(table.name, sources[table.name], table.rows, table.dim):
                        files.write(np.arange(key, key + len(chunk)), chunk)
                        key += len(chunk)
                        done += chunk.nbytes
                        if progress is not None:
                            progress(done, total)
                    files.finish()
        with faults(self.path, "cannot be written"):
            self._database.flush()
            self._write_record(identity)

    def _write_record(self, identity: str | None) -> None:
        self.identity = identity
        write_record(self.path, StoreRecord(self.dims, identity))


def disk_bytes(tables: Sequence[EmbeddingTableSpec]) -> int:
    """The disk that a store of `tables` takes, a few percent more than measured: about 16 bytes a row for its key and
    index, 1/64 of the rows for blocks that are not full, and RocksDB's own files.
    """
    return sum(table.size_bytes + table.size_bytes // 64 + 16 * table.rows for table in tables) + (1 << 20)


class _SortedFiles:
    """Rows in ascending order of key, written to files of about `LOAD_FILE_BYTES` that a column family then takes."""

    def __init__(self, path: Path, family: Any) -> None:
        self._file = load_file_path(path)
        self._family = family
        self._writer: Any = None
        self._bytes = 0

    def __enter__(self) -> _SortedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer = None  # closes the file, which a traceback would keep open, and so the disk's space taken

    def write(self, keys: KeyArray, rows: RowArray) -> None:
        if self._writer is None:
            self._writer = rocksdict.SstFileWriter(_options())
            self._writer.open(str(self._file))
            self._bytes = 0
        for key, value in zip(_key_bytes(keys), _row_bytes(rows), strict=True):
            self._writer[key] = value
        self._bytes += rows.nbytes
        if self._bytes >= LOAD_FILE_BYTES:
            self.finish()

    def finish(self) -> None:
        if self._writer is None:
            return
        self._writer.finish()
        self._writer = None
        how = rocksdict.IngestExternalFileOptions()
        how.set_move_files(True)
        self._family.ingest_external_file([str(self._file)], how)


def _options() -> Any:
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_checksum_type(rocksdict.ChecksumType.xxh3())
    blocks.set_format_version(5)
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_block_cache(rocksdict.Cache(BLOCK_CACHE_BYTES))
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.none())  # floats do not compress
    return options


def _family_name(table: str) -> str:
    return f"table:{table}"  # a table may be called "default", which RocksDB keeps for itself


def _key_bytes(keys: KeyArray) -> list[bytes]:
    return keys.astype(">i8").view("V8").tolist()  # type: ignore[no-any-return]


def _keys_of(keys: list[bytes]) -> KeyArray:
    return np.frombuffer(b"".join(keys), ">i8").astype(np.int64)


def _row_bytes(rows: RowArray) -> list[bytes]:
    size = 4 * rows.shape[1]
    return np.ascontiguousarray(rows, "<f4").view(f"V{size}").reshape(-1).tolist()
