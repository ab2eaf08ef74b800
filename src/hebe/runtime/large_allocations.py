"""Keeping the memory of large messages instead of giving it back and asking for it anew.

A ranking query is a message of a megabyte or so. By default glibc maps and unmaps memory for each buffer of that size,
and the kernel clears its pages every time: about a third of what sending a query over gRPC costs, for instance. Called
by programs when they start, since it concerns the whole process.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc takes as M_MMAP_THRESHOLD."""


def keep_large_allocations(most_bytes: int = 256 << 20) -> bool:
    """Let this process keep freed memory, up to `most_bytes`. Whether the C library could be told to (glibc can)."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, most_bytes)
    return bool(told)
