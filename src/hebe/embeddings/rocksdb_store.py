"""The persistent store: every row on disk in RocksDB, one column family a table.

A directory of ours holds `store.json` (format, tables, identity of what was loaded), `store.lock`, and `rows/`, the
database. Keys are 8 bytes, big-endian; values the float32 bytes of a row, little-endian, with RocksDB's checksum
over each block verified on every read. Readers share a directory, a writer has it alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import rocksdict

from hebe.embeddings.store import FoundMask, KeyArray, RowArray, StoreError
from hebe.embeddings.table_memory import Progress, TableSource, chunks_of
from hebe.spec import EmbeddingTableSpec

FORMAT = 1
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
        with _faults(self.path, "cannot be opened"):
            if dims is not None and not read_only:
                self.path.mkdir(parents=True, exist_ok=True)
            record = _read_record(self.path)
            if record is None and (dims is None or read_only):
                raise _error(self.path, "there is none")
            self.dims = dict(record["dims"]) if record else {}
            self.identity: str | None = record["identity"] if record else None
            for table, dim in (dims or {}).items():
                if self.dims.setdefault(table, dim) != dim:
                    raise _error(self.path, f"table {table} has embedding dim {self.dims[table]}, not {dim}")
            self._lock = _take_lock(self.path, exclusive=not read_only)
            try:
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
        Raises `StoreError` as the constructor does, and before writing if the disk has too little room.
        """
        dims = {table.name: table.dim for table in tables}
        with _faults(Path(path), "cannot be read"):
            record = _read_record(Path(path))
        if record is None or record["identity"] != identity or record["dims"] != dims:
            if record is not None:
                _remove(Path(path))
            with contextlib.closing(cls(path, dims)) as store:
                store._load(tables, sources, identity, progress)
        return cls(path, read_only=True)

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        family, dim = self._family(table)
        for first in range(0, len(keys), BATCH_ROWS):
            part = slice(first, first + BATCH_ROWS)
            with _faults(self.path, f"cannot read table {table}"):
                values = family[_key_bytes(keys[part])]
            mask = np.fromiter((value is not None for value in values), np.bool_, len(values))
            found[part] = mask
            stored = b"".join(values) if mask.all() else b"".join(value for value in values if value is not None)
            if len(stored) != int(np.count_nonzero(mask)) * 4 * dim:
                raise _error(self.path, f"table {table} has rows that are not {dim} floats")
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
            with _faults(self.path, f"cannot write table {table}"):
                self._database.write(batch)
            return int(distinct.size)

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`."""
        family, _ = self._family(table)
        with _faults(self.path, f"cannot read table {table}"):
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
        location = str(self.path / "rows")
        options = _options()
        existing = rocksdict.Rdict.list_cf(location) if (self.path / "rows" / "CURRENT").exists() else []
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
            raise _error(self.path, "is closed")
        if table not in self._families:
            raise _error(self.path, f"no table {table}; there are {', '.join(self.dims)}")
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
            with _faults(self.path, f"cannot write table {table}"):
                self._database.write(batch)

    def _present(self, table: str, keys: KeyArray) -> FoundMask:
        family, _ = self._family(table)
        with _faults(self.path, f"cannot read table {table}"):
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
        free = shutil.disk_usage(self.path).free
        if free < total * 1.1:
            raise _error(self.path, f"needs {total * 1.1:,.0f} bytes of disk, {free:,} are free")
        for table in tables:
            if table.name not in sources:
                raise StoreError(f"table {table.name} is missing")
            family, _ = self._family(table.name)
            with _faults(self.path, f"cannot load table {table.name}"):
                writer, key = _SortedFiles(self.path, family), 0
                for chunk in chunks_of(table.name, sources[table.name], table.rows, table.dim):
                    writer.write(np.arange(key, key + len(chunk)), chunk)
                    key += len(chunk)
                    done += chunk.nbytes
                    if progress is not None:
                        progress(done, total)
                writer.finish()
        with _faults(self.path, "cannot be written"):
            self._database.flush()
            self._write_record(identity)

    def _write_record(self, identity: str | None) -> None:
        self.identity = identity
        temporary = self.path / "store.json.new"
        temporary.write_text(json.dumps({"format": FORMAT, "dims": self.dims, "identity": identity}, indent=1))
        os.replace(temporary, self.path / "store.json")


class _SortedFiles:
    """Rows in ascending order of key, written to files of about `LOAD_FILE_BYTES` that a column family then takes."""

    def __init__(self, path: Path, family: Any) -> None:
        self._file = path / "load.sst"
        self._family = family
        self._writer: Any = None
        self._bytes = 0

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


@contextlib.contextmanager
def _faults(path: Path, what: str) -> Iterator[None]:
    """Turn whatever RocksDB and the file system raise into a `StoreError` that names the path; their own words, which
    name files too, are not for clients.
    """
    try:
        yield
    except (StoreError, GeneratorExit):
        raise
    except Exception as fault:  # rocksdict raises plain Exception
        kind = next((kind for kind in ("Corruption", "IO error") if str(fault).startswith(kind)), "it failed")
        advice = ": remove the directory and load it anew" if kind == "Corruption" else ""
        raise StoreError(
            f"persistent store {path}: {what}: {fault}{advice}", f"persistent store: {what}: {kind}"
        ) from fault


def _error(path: Path, what: str) -> StoreError:
    """A fault that is told without naming files."""
    return StoreError(f"persistent store {path}: {what}", f"persistent store: {what}")


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


def _read_record(path: Path) -> dict[str, Any] | None:
    """`store.json` of a directory of ours, None for a new or empty one. Raises `StoreError` for any other."""
    try:
        text = (path / "store.json").read_text()
    except FileNotFoundError:
        if path.exists() and any(entry.name != "store.lock" for entry in path.iterdir()):
            raise _error(path, "is not empty and holds no store: give another path") from None
        return None
    try:
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise _error(path, f"has format {record['format']}, this version reads {FORMAT}")
        dims = {str(table): int(dim) for table, dim in record["dims"].items()}
        return {"dims": dims, "identity": record["identity"]}
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise _error(path, f"store.json is corrupted ({fault}): remove the directory") from fault


def _take_lock(path: Path, *, exclusive: bool) -> IO[bytes]:
    lock = open(path / "store.lock", "ab" if exclusive else "rb")  # noqa: SIM115 (held until the store is closed)
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as fault:
        lock.close()
        raise _error(path, "is in use by another process or model") from fault
    return lock


def _remove(path: Path) -> None:
    """Remove a store of ours, unless somebody uses it."""
    with _faults(path, "cannot be replaced"):
        with _take_lock(path, exclusive=True):
            shutil.rmtree(path / "rows", ignore_errors=True)
            (path / "load.sst").unlink(missing_ok=True)
            (path / "store.json").unlink()
