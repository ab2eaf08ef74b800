"""Keeping the memory of large messages instead of giving it back and asking for it anew.

gRPC's Python binding copies each message twice into fresh memory. By default glibc maps and unmaps a megabyte for each
copy, and the kernel clears its pages every time: about a third of what sending a query over gRPC costs.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc takes as M_MMAP_THRESHOLD."""
_UNTRIMMED_BYTES = 1 << 30


def keep_large_allocations() -> bool:
    """Let this process keep freed memory, up to a gigabyte. Whether the C library could be told to (glibc can)."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, _UNTRIMMED_BYTES)
    return bool(told)
