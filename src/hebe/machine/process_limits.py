"""Keeping the memory of large messages instead of giving it back and asking for it anew.

A ranking query is a message of a megabyte or so. By default glibc maps and unmaps memory for each buffer of that size,
and the kernel clears its pages every time: about a third of what sending a query over gRPC costs, for instance. Called
by programs when they start, since it concerns the whole process. What a model held is given back when it goes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc takes as M_MMAP_THRESHOLD."""


def give_back_freed() -> None:
    """Free what only reference cycles hold, TorchScript's modules among it, and return to the system what was kept of
    all that is free: after a model went, a large part, in pieces scattered among what is in use. Milliseconds where the
    garbage of start-up is out of the collector's sight, as in `hebe serve`; else a tenth of a second.
    """
    gc.collect()
    trim = _from_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def keep_large_allocations(most_bytes: int = 256 << 20) -> bool:
    """Let this process keep freed memory, up to `most_bytes`. Whether the C library could be told to (glibc can)."""
    mallopt = _from_c_library("mallopt")
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, most_bytes)
    return bool(told)


def _from_c_library(function: str) -> Callable[..., int] | None:
    """A function of glibc, None elsewhere."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None
