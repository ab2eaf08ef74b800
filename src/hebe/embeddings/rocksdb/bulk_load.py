"""The bulk load of a persistent store: tables as sorted files that RocksDB takes over as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rocksdict

from hebe.embeddings.memory.model_rows import KeyedSource, keyed_chunks
from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.rocksdb.database import Database
from hebe.embeddings.rocksdb.directory import faults, load_file_path
from hebe.embeddings.rocksdb.format import database_options, encode_keys, encode_rows
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.spec import EmbeddingTableSpec

LOAD_FILE_BYTES = 256 << 20


def disk_bytes(tables: Sequence[EmbeddingTableSpec]) -> int:
    """The disk that a store of `tables` takes, a few percent more than measured: about 16 bytes a row for its key and
    index, 1/64 of the rows for blocks that are not full, and RocksDB's own files.
    """
    return sum(table.size_bytes + table.size_bytes // 64 + 16 * table.rows for table in tables) + (1 << 20)


def load_tables(
    path: Path,
    database: Database,
    tables: Sequence[EmbeddingTableSpec],
    sources: Mapping[str, KeyedSource],
    progress: Progress | None,
) -> None:
    """Write all rows of `tables`, which `database` of the store in `path` lacks, under their keys into it.

    `progress(bytes done, bytes in all)`. Raises `StoreError` for a table that is missing, wrong or cannot be written.
    """
    done, total = 0, sum(table.size_bytes for table in tables)
    for table in tables:
        if table.name not in sources:
            raise StoreError(f"table {table.name} is missing")
        with (
            faults(path, f"cannot load table {table.name}"),
            _SortedFiles(load_file_path(path), database.add(table.name)) as files,
        ):
            for keys, chunk in keyed_chunks(table, sources[table.name], table.rows):
                files.write(keys, chunk)
                done += chunk.nbytes
                if progress is not None:
                    progress(done, total)
            files.finish()


class _SortedFiles:
    """Rows in ascending order of key, written to files of about `LOAD_FILE_BYTES` that a column family then takes."""

    def __init__(self, file: Path, family: Any) -> None:
        self._file = file
        self._family = family
        self._writer: Any = None
        self._bytes = 0

    def __enter__(self) -> _SortedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer = None  # closes the file, which a traceback would keep open, and so the disk's space taken

    def write(self, keys: KeyArray, rows: RowArray) -> None:
        if self._writer is None:
            self._writer = rocksdict.SstFileWriter(database_options())
            self._writer.open(str(self._file))
            self._bytes = 0
        for key, value in zip(encode_keys(keys), encode_rows(rows), strict=True):
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
