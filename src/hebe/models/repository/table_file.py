"""A stored embedding table: a safetensors file of one tensor, streamed when written, mapped when read, its rows checked
as they are copied.

The format is public: u64 little-endian header length, a JSON header, raw data. It is written here rather than
by the safetensors library because that wants a whole tensor in memory, and a production table need not fit.
The header is padded with spaces so that rows start on a page boundary of the mapped file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.embeddings.memory.table_memory import drop_mapped_pages
from hebe.embeddings.store import StoreError
from hebe.models.repository.stored_file import (
    FileRecord,
    Progress,
    RepositoryError,
    check_size,
    compare_sha256,
    no_progress,
    write_durably,
)
from hebe.spec import EmbeddingTableSpec

RowArray = npt.NDArray[np.float32]
RowChunks = RowArray | Iterable[RowArray]
"""A table's content: float32 `[rows, dim]`, or chunks of rows in order."""

TENSOR_NAME = "weight"
_PAGE_BYTES = 4096
_CHUNK_BYTES = 16 << 20


class DamagedRows(RepositoryError, StoreError):
    """Rows that are not as they were written, as whoever is filled with them finds: what it has of them is not to be
    used.
    """


class CheckedRows:
    """The rows of a table file in pieces, float32 `[n, dim]`, mapped as by `map_table` and hashed on the way: the last
    piece is given only if the file has the SHA-256 of `record`.

    Raises as `check_size` and `map_table`; iterating, which may be done again, raises `DamagedRows`.
    """

    def __init__(self, path: Path, table: EmbeddingTableSpec, record: FileRecord) -> None:
        check_size(path, record)
        self._path, self._record = path, record
        self._header, self._rows = _header(table), map_table(path, table)

    def __iter__(self) -> Iterator[RowArray]:
        digest = hashlib.sha256(self._header)
        rows, step = self._rows, _rows_in_chunk(self._rows.shape[1])
        for first in range(0, len(rows), step):
            piece = rows[first : first + step]
            digest.update(piece.reshape(-1).data)  # lets go of the interpreter lock meanwhile
            if first + step >= len(rows):
                try:
                    compare_sha256(self._path, digest.hexdigest(), self._record)
                except RepositoryError as fault:
                    raise DamagedRows(str(fault)) from None
            yield piece
            drop_mapped_pages(piece)


def file_size_bytes(table: EmbeddingTableSpec) -> int:
    """Length of the file that holds `table`."""
    return len(_header(table)) + table.size_bytes


def write_table(path: Path, table: EmbeddingTableSpec, rows: RowChunks, progress: Progress = no_progress) -> FileRecord:
    """Write `rows` as the new file `path`, never holding more than a chunk.

    Raises `RepositoryError` for rows of another dtype, width or number than `table` says, and OSError.
    """

    def pieces() -> Iterator[bytes | memoryview]:
        yield _header(table)
        written = 0
        for chunk in _chunks(rows, table):
            if not isinstance(chunk, np.ndarray) or chunk.dtype != np.float32:
                kind = getattr(chunk, "dtype", type(chunk).__name__)
                raise RepositoryError(f"table {table.name}: rows are {kind}: must be a float32 array")
            if chunk.ndim != 2 or chunk.shape[1] != table.dim:
                raise RepositoryError(
                    f"table {table.name}: rows have shape {list(chunk.shape)}: must be [any, {table.dim}]"
                )
            written += len(chunk)
            if written > table.rows:
                break
            if len(chunk):
                yield np.ascontiguousarray(chunk, dtype="<f4").data
        if written != table.rows:
            more = "more than " if written > table.rows else ""
            raise RepositoryError(
                f"table {table.name}: {more}{min(written, table.rows)} rows were given: must be {table.rows}"
            )

    return write_durably(path, pieces(), progress)


def map_table(path: Path, table: EmbeddingTableSpec) -> RowArray:
    """Rows of the file as a read-only float32 `[rows, dim]` view of its pages; nothing is copied.

    Raises `RepositoryError` unless the file is a table file of that many rows and columns.
    """
    try:
        with open(path, "rb") as file:
            start = _check_header(path, file.read(len(_header(table))), table)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be mapped: {fault.strerror}") from None
    except ValueError:  # mmap of an empty file
        raise RepositoryError(f"{path}: truncated: the file is empty; write the model again") from None
    if len(mapped) != start + table.size_bytes:
        raise RepositoryError(
            f"{path}: {len(mapped)} bytes, expected {start + table.size_bytes}; write the model again"
        )
    return np.frombuffer(mapped, dtype="<f4", offset=start).reshape(table.rows, table.dim)


def check_table_header(path: Path, table: EmbeddingTableSpec) -> None:
    """Raise `RepositoryError` unless the file begins as a table file of `table`'s rows and columns does."""
    try:
        with open(path, "rb") as file:
            _check_header(path, file.read(len(_header(table))), table)
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror}") from None


def _chunks(rows: RowChunks, table: EmbeddingTableSpec) -> Iterable[RowArray]:
    if not isinstance(rows, np.ndarray) or rows.ndim != 2:
        return [rows] if isinstance(rows, np.ndarray) else rows
    step = _rows_in_chunk(table.dim)
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _rows_in_chunk(dim: int) -> int:
    return max(1, _CHUNK_BYTES // (4 * dim))


def _header(table: EmbeddingTableSpec) -> bytes:
    fields = {
        TENSOR_NAME: {
            "dtype": "F32",
            "shape": [table.rows, table.dim],
            "data_offsets": [0, table.size_bytes],
        }
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text = text.ljust(-(-(8 + len(text)) // _PAGE_BYTES) * _PAGE_BYTES - 8)
    return len(text).to_bytes(8, "little") + text


def _check_header(path: Path, start: bytes, table: EmbeddingTableSpec) -> int:
    """Where rows begin. The header is ours alone to write, so it is compared byte by byte."""
    expected = _header(table)
    if start == expected:
        return len(expected)
    found = "not a safetensors header"
    try:
        length = int.from_bytes(start[:8], "little")
        if 8 + length > len(start):
            raise ValueError
        tensors = json.loads(start[8 : 8 + length])
        tensor = tensors[TENSOR_NAME]
        found = f"{tensor['dtype']} of shape {tensor['shape']}"
    except (ValueError, KeyError, TypeError):
        pass
    raise RepositoryError(
        f"{path}: its header ({found}) is not that of table {table.name}, F32 of shape "
        f"[{table.rows}, {table.dim}]; the file was damaged or replaced: write the model again"
    )
