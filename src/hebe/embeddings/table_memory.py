"""Memory for embedding tables: one anonymous mapping on huge pages, filled once, given back at a known moment.

Random rows of a large table miss the TLB on 4 KiB pages; on 2 MiB pages a gather is 25-100% faster. The mapping is
private, so threads share it and forked processes do too until one writes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from hebe.embeddings.store import RowArray, StoreError

HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 16 << 20
ALIGNMENT_BYTES = 64
"""Tables begin on a cache line."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while tables are loaded."""

TableSource = RowArray | Iterable[RowArray]
"""A table as one float32 `[rows, dim]` array (a memory map, say) or as consecutive pieces of one."""


class TableMemory:
    """The rows of all tables of a model in one flat float32 array.

    `flat` is that array; table `name` occupies `flat[start[name] : start[name] + rows * dim]`, row after row, from a
    cache line on. `rows_bytes` is the size of all rows, `memory_bytes` what is taken.
    Rows are zeros until filled. Raises `StoreError` when the memory cannot be had.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self.shapes = dict(shapes)
        self.start, floats = _layout(self.shapes)
        self.rows_bytes = sum(4 * rows * dim for rows, dim in self.shapes.values())
        self.memory_bytes = planned_bytes(self.shapes)
        available = available_bytes()
        if available is not None and self.memory_bytes > available:
            raise StoreError(
                f"tables need {self.memory_bytes:,} bytes of memory and {available:,} are available: "
                "free some, or set a smaller table memory with a persistent directory for the rest"
            )
        try:
            self._map = _map_huge(self.memory_bytes)
        except (OSError, ValueError, OverflowError) as fault:
            raise StoreError(f"cannot map {self.memory_bytes:,} bytes for tables: {fault}") from fault
        bytes_ = np.frombuffer(self._map, np.uint8)
        skip = -bytes_.ctypes.data % HUGE_PAGE_BYTES
        self.flat: RowArray = bytes_[skip : skip + 4 * floats].view(np.float32)
        self.closed = False

    def rows(self, name: str) -> RowArray:
        """Table `name` as a writable view `[rows, dim]`. Raises `StoreError` if there is none or memory is closed."""
        if self.closed:
            raise StoreError("table memory is closed")
        if name not in self.shapes:
            raise StoreError(f"no table {name} in memory; there are {', '.join(sorted(self.shapes))}")
        rows, dim = self.shapes[name]
        return self.flat[self.start[name] : self.start[name] + rows * dim].reshape(rows, dim)

    def fill(self, sources: Mapping[str, TableSource], progress: Progress | None = None) -> None:
        """Copy every table in, at most `CHUNK_BYTES` at a time; a source with more rows than ours gives its first.

        Raises `StoreError` for a missing table, wrong shape or dtype.
        """
        done, total = 0, self.rows_bytes
        for name, (rows, dim) in self.shapes.items():
            if name not in sources:
                raise StoreError(f"table {name} is missing")
            target, filled = self.rows(name), 0
            for chunk in chunks_of(name, sources[name], rows, dim):
                target[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
                done += chunk.nbytes
                if progress is not None:
                    progress(done, total)

    def close(self) -> None:
        """Give the memory back at once, whoever still holds a view of it (such a view reads zeros from now on)."""
        if self.closed:
            return
        self.closed = True
        self.flat = np.empty(0, np.float32)
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        with contextlib.suppress(BufferError):  # a view is held; the address range goes when that does
            self._map.close()


def planned_bytes(shapes: Mapping[str, tuple[int, int]]) -> int:
    """What a `TableMemory` of these tables will take, known before it is made: whole huge pages."""
    return max(1, -(-4 * _layout(shapes)[1] // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES


def available_bytes() -> int | None:
    """Memory to be had without swapping: the machine's, or the control group's if less; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())  # "max" where there is none: ValueError
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        page_cache = int(counts["inactive_file"]) + int(counts["active_file"])
        limits.append(limit - int((group / "memory.current").read_text()) + page_cache)
    return max(0, min(limits)) if limits else None


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


def _layout(shapes: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """The first element of each table, and the elements in all."""
    start, floats = {}, 0
    for name, (rows, dim) in shapes.items():
        start[name] = floats
        floats += -(-4 * rows * dim // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // 4
    return start, floats


def _map_huge(size_bytes: int) -> mmap.mmap:
    """An anonymous private mapping with room to begin on a huge page, on huge pages where the system has them."""
    mapping = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: 4 KiB pages serve too
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
