"""Memory in pieces, for a structure that grows: bounded, on huge pages where pieces are many, given back at once."""

from __future__ import annotations

import contextlib
import mmap
import threading

import numpy as np

from hebe.embeddings.memory.table_memory import ALIGNMENT_BYTES, HUGE_PAGE_BYTES
from hebe.embeddings.store import StoreError
from hebe.machine.memory import available_bytes

SEGMENT_BYTES = 64 << 20
"""Pieces are cut from mappings of this size, of which only what is used is taken from the machine."""

_SMALL_BYTES = 64 << 10


class ZeroedMemory:
    """`size_bytes` of zeros at `address`, until `close`: a mapping of its own unless small."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map: mmap.mmap | None = None
        self._small = np.empty(0, np.int64)
        if size_bytes < _SMALL_BYTES:
            self._small = np.zeros(-(-size_bytes // 8), np.int64)
            self.address = self._small.ctypes.data
            return
        room = size_bytes + (HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 0)
        try:
            self._map = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as fault:
            raise StoreError(f"cannot map {room:,} bytes: {fault}") from fault
        start = np.frombuffer(self._map, np.uint8).ctypes.data
        self.address = start
        if room > size_bytes:
            self.address += -start % HUGE_PAGE_BYTES
            with contextlib.suppress(OSError, AttributeError):  # a system without huge pages: small ones serve too
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def close(self) -> None:
        """Give the memory back; nobody may read or write it any more."""
        self.address = 0
        self._small = np.empty(0, np.int64)
        if self._map is not None:
            self._map.close()
            self._map = None


class MemoryPieces:
    """Hands out zeroed memory by address, at most `bound_bytes` of it (None: what the machine has available).

    Every call that takes memory raises `StoreError` when there is not so much, and after `close`.
    """

    def __init__(self, bound_bytes: int | None = None) -> None:
        self.bound_bytes = bound_bytes
        self.taken_bytes = 0
        """What is handed out now."""
        self.peak_bytes = 0
        """The most that ever was."""
        self._segments: list[ZeroedMemory] = []
        self._free_at = self._free_bytes = 0
        self._closed = False
        self._lock = threading.Lock()

    def piece(self, size_bytes: int) -> int:
        """The address of `size_bytes`, on a cache line, until `close`."""
        size_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with self._lock:
            self._check(size_bytes)
            if size_bytes > self._free_bytes:
                segment_bytes = max(SEGMENT_BYTES, -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
                _check_available(size_bytes if self.bound_bytes is not None else segment_bytes)
                segment = ZeroedMemory(segment_bytes)
                self._segments.append(segment)
                self._free_at, self._free_bytes = segment.address, segment_bytes
            address = self._free_at
            self._free_at += size_bytes
            self._free_bytes -= size_bytes
            self._count(size_bytes)
            return address

    def block(self, size_bytes: int) -> ZeroedMemory:
        """Memory that `release` gives back before the rest."""
        with self._lock:
            self._check(size_bytes)
            if size_bytes >= HUGE_PAGE_BYTES:
                _check_available(size_bytes)
            memory = ZeroedMemory(size_bytes)
            self._count(size_bytes)
            return memory

    def claim(self, size_bytes: int) -> None:
        """Count memory that the caller takes itself; gives it back if negative."""
        with self._lock:
            self._check(size_bytes)
            self._count(size_bytes)

    def release(self, memory: ZeroedMemory) -> None:
        """Give a block back."""
        with self._lock:
            self.taken_bytes -= memory.size_bytes
        memory.close()

    def close(self) -> None:
        """Give all pieces back; blocks must have been released."""
        with self._lock:
            self._closed = True
            segments, self._segments = self._segments, []
            self._free_at = self._free_bytes = self.taken_bytes = 0
        for segment in segments:
            segment.close()

    def _check(self, size_bytes: int) -> None:
        if self._closed:
            raise StoreError("memory is closed")
        if self.bound_bytes is not None and self.taken_bytes + size_bytes > self.bound_bytes:
            raise StoreError(
                f"{size_bytes:,} bytes more than the {self.taken_bytes:,} in use would pass the memory bound of "
                f"{self.bound_bytes:,} bytes: raise it, or set an overflow margin over a persistent store"
            )

    def _count(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.taken_bytes)


def _check_available(size_bytes: int) -> None:
    available = available_bytes()
    if available is not None and size_bytes > available:
        raise StoreError(
            f"{size_bytes:,} bytes more are needed, {available:,} are available: set an overflow margin over a "
            "persistent store"
        )
