"""Memory for embedding tables: one anonymous mapping on huge pages, filled once, given back at a known moment.

Random rows of a large table miss the TLB on 4 KiB pages; on 2 MiB pages a gather is 25-100% faster. The mapping is
private, so threads share it and forked processes do too until one writes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from hebe.embeddings.store import RowArray, StoreError
from hebe.kernels.lookup.row_format import ByteArray, encode_rows
from hebe.kernels.lookup.row_format import RowFormat as RowFormat  # for those rooms that know no kernels
from hebe.kernels.primitives.vector import FLOAT16_MAX
from hebe.machine.memory import available_bytes

HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 16 << 20
ALIGNMENT_BYTES = 64
"""Tables begin on a cache line."""
_GIVE_BACK_BYTES = 256 << 20
"""So much is given back at a time, since `mmap.madvise` keeps the interpreter lock: some milliseconds for each GB."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while tables are loaded."""

TableSource = RowArray | Iterable[RowArray]
"""A table as one float32 `[rows, dim]` array (a memory map, say) or as consecutive pieces of one."""


class HugeMapping:
    """`size_bytes` of zeros as uint8 `bytes`, which begin on a huge page where the system has them, until `close`.

    Raises `StoreError`, saying for `what` they are and with `advice`, when the memory cannot be had.
    """

    def __init__(self, size_bytes: int, what: str, advice: str) -> None:
        available = available_bytes()
        if available is not None and size_bytes > available:
            raise StoreError(f"{what} need {size_bytes:,} bytes of memory and {available:,} are available: {advice}")
        try:
            self._map = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as fault:
            raise StoreError(f"cannot map {size_bytes:,} bytes for {what}: {fault}: {advice}") from fault
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them: 4 KiB pages serve too
                self._map.madvise(mmap.MADV_HUGEPAGE)
        everything = np.frombuffer(self._map, np.uint8)
        skip = -everything.ctypes.data % HUGE_PAGE_BYTES
        self.bytes: ByteArray = everything[skip : skip + size_bytes]

    def close(self) -> None:
        """Give the memory back at once, whoever still holds a view of it (such a view reads zeros from now on)."""
        if self._map.closed:
            return
        self.bytes = np.empty(0, np.uint8)
        if hasattr(mmap, "MADV_DONTNEED"):
            size_bytes = len(self._map)
            for start in range(0, size_bytes, _GIVE_BACK_BYTES):
                self._map.madvise(mmap.MADV_DONTNEED, start, min(_GIVE_BACK_BYTES, size_bytes - start))
        with contextlib.suppress(BufferError):  # a view is held; the address range goes when that does
            self._map.close()


class TableMemory:
    """The rows of all tables of a model in one flat array of bytes, stored as `row_format` has them.

    `flat` is that array; table `name` begins at byte `start[name]`, on a cache line, and lies there row after row, each
    `row_format.row_bytes(dim)` bytes. `rows_bytes` is the size of all rows as float32, as they are loaded,
    `memory_bytes` what is taken. Rows are zeros until filled. Raises `StoreError` when the memory cannot be had.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], row_format: RowFormat = RowFormat.FP32) -> None:
        self.shapes = dict(shapes)
        self.row_format = row_format
        self.start, size_bytes = layout(self.shapes, row_format)
        self.rows_bytes = sum(4 * rows * dim for rows, dim in self.shapes.values())
        self.memory_bytes = planned_bytes(self.shapes, row_format)
        self._memory = HugeMapping(
            self.memory_bytes,
            "tables",
            "free some, choose a narrower row format, "
            "or set a smaller table memory with a persistent directory for the rest",
        )
        self.flat: ByteArray = self._memory.bytes[:size_bytes]
        self.closed = False

    def rows(self, name: str) -> RowArray:
        """Table `name` as a writable view, float32 `[rows, dim]`.

        Raises `StoreError` if there is none, if it is stored in a narrower format, or if the memory is closed.
        """
        if self.row_format is not RowFormat.FP32:
            raise StoreError(f"table {name} is stored as {self.row_format}: its rows cannot be read in place")
        return self.stored(name).view(np.float32)

    def stored(self, name: str) -> ByteArray:
        """Table `name` as it is stored: a writable view, uint8 `[rows, row_bytes]`. Raises `StoreError` likewise."""
        if self.closed:
            raise StoreError("table memory is closed")
        if name not in self.shapes:
            raise StoreError(f"no table {name} in memory; there are {', '.join(sorted(self.shapes))}")
        rows, dim = self.shapes[name]
        row_bytes = self.row_format.row_bytes(dim)
        return self.flat[self.start[name] : self.start[name] + rows * row_bytes].reshape(rows, row_bytes)

    def fill(self, sources: Mapping[str, TableSource], progress: Progress | None = None) -> None:
        """Store every table, at most `CHUNK_BYTES` at a time; a source with more rows than ours gives its first.

        Raises `StoreError` for a missing table, wrong shape or dtype, and rows that the format has no place for.
        """
        done, total = 0, self.rows_bytes
        for name, (rows, dim) in self.shapes.items():
            if name not in sources:
                raise StoreError(f"table {name} is missing")
            target, filled = self.stored(name), 0
            for chunk in chunks_of(name, sources[name], rows, dim):
                self._store(name, filled, chunk, target[filled : filled + len(chunk)])
                filled += len(chunk)
                done += chunk.nbytes
                if progress is not None:
                    progress(done, total)

    def _store(self, name: str, first: int, rows: RowArray, target: ByteArray) -> None:
        if self.row_format is RowFormat.FP32:
            target.view(np.float32)[:] = rows
        elif encode_rows(self.row_format, np.ascontiguousarray(rows), target):
            most = FLOAT16_MAX if self.row_format is RowFormat.FP16 else float(np.finfo(np.float32).max)
            unfit = first + int(np.argmin((np.abs(rows) <= most).all(axis=1)))
            raise StoreError(
                f"table {name}: row {unfit} has a number that is not finite or beyond {most:.6g}, "
                f"which {self.row_format} rows cannot hold: store them as fp32, or correct the table"
            )

    def close(self) -> None:
        """Give the memory back at once, whoever still holds a view of it (such a view reads zeros from now on)."""
        if self.closed:
            return
        self.closed = True
        self.flat = np.empty(0, np.uint8)
        self._memory.close()


class TableLayout(Protocol):
    """Where tables lie in a flat memory: `TableMemory`, or that of another device."""

    shapes: dict[str, tuple[int, int]]
    start: dict[str, int]


def planned_bytes(shapes: Mapping[str, tuple[int, int]], row_format: RowFormat = RowFormat.FP32) -> int:
    """What a `TableMemory` of these tables will take, known before it is made: whole huge pages."""
    return max(1, -(-layout(shapes, row_format)[1] // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES


def chunks_of(name: str, source: TableSource, rows: int, dim: int) -> Iterable[RowArray]:
    """The first `rows` rows of a table in pieces of at most `CHUNK_BYTES`, checked. Raises `StoreError`.

    Pages that were mapped from a file are unmapped behind the reader, so a table is never resident twice.
    """
    left, step = rows, max(1, CHUNK_BYTES // (4 * dim))
    for piece in [source] if isinstance(source, np.ndarray) else source:
        if piece.dtype != np.float32 or piece.ndim != 2 or piece.shape[1] != dim:
            raise StoreError(f"table {name} is {piece.dtype} {list(piece.shape)}: must be float32 [{rows}, {dim}]")
        for first in range(0, min(left, len(piece)), step):
            chunk = piece[first : min(first + step, left)]
            yield chunk
            drop_mapped_pages(chunk)
        left -= min(left, len(piece))
    if left:
        raise StoreError(f"table {name} has {rows - left} rows: must have {rows}")


def drop_mapped_pages(array: RowArray) -> None:
    """Unmap the whole pages under `array` if it views a read-only memory map of a file; they stay in the page cache."""
    owner: object = array
    while not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is None:
            return
    view = memoryview(owner)
    try:
        # A mapping that nobody can write holds only what its file holds, so its pages can be had again.
        if not view.readonly or not hasattr(mmap, "MADV_DONTNEED") or not array.flags.c_contiguous:
            return
        origin = np.frombuffer(view, np.uint8).ctypes.data
    finally:
        view.release()
    first = array.ctypes.data - origin
    first, stop = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, first + array.nbytes
    stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > first:
        owner.madvise(mmap.MADV_DONTNEED, first, stop - first)


def layout(shapes: Mapping[str, tuple[int, int]], row_format: RowFormat) -> tuple[dict[str, int], int]:
    """The first byte of each table of these `(rows, dim)`, and the bytes in all."""
    start, end = {}, 0
    for name, (rows, dim) in shapes.items():
        start[name] = end
        end += -(-rows * row_format.row_bytes(dim) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return start, end
