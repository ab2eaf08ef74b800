"""What programs set for their whole process when they start: memory, the interpreter lock, open files.

keep_large_allocations    A ranking query is a message of a megabyte or so. By default glibc maps and unmaps memory for
                          each buffer of that size, and the kernel clears its pages every time: about a third of what
                          sending a query over gRPC costs, for instance. So the process keeps that memory. What a model
                          held is given back when it goes (`give_back_freed`).
hand_over_soon            How long a thread may keep the interpreter lock when another wants it.
allow_many_connections    How many files, and so connections, the system lets this process have open: a program's own
                          soft limit is for the program to raise.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator

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


_SWITCH_INTERVAL_S = 0.001
"""A worker needs it for some ten microseconds a batch and should not wait for 5 ms, as is usual. But who is made to
give it up is mostly in the midst of deciding, and what others report is not decided about until it is back. With
sixteen workers a fifth of this gave a tenth more where the front end had cores of its own, and a tenth less where it
had none."""


def hand_over_soon() -> None:
    """Let no thread of this process wait for long; for programs that serve, when they start."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


@contextlib.contextmanager
def handed_over_soon() -> Iterator[None]:
    """`hand_over_soon`, and afterwards as it was."""
    before_s = sys.getswitchinterval()
    hand_over_soon()
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


_OPEN_FILES = 65_536


def allow_many_connections() -> None:
    """Raise the soft limit of open files, often 1024, towards the hard one: a server that has run out of them can
    neither accept a connection nor say so, and a load generator cannot send.
    """
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
