"""A timer for an event loop that is as precise as the kernel's.

Event loops round waiting times to whole milliseconds, which is as much as a small model takes to answer. Linux has
timers that are files (timerfd) and expire to the microsecond; the loop watches one like a socket. Elsewhere, the
loop's own timer has to do, and the schedule lag that is reported shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o2004000
_ABSOLUTE = 1


class PreciseTimer:
    """Calls `callback` in `loop` at the `time.monotonic()` that `arm` was last given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
            if self._file >= 0:
                loop.add_reader(self._file, self._expired)

    def arm(self, when_s: float) -> None:
        """Call back at `when_s` (at once if that has passed), and not at a time armed before."""
        if self._file < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(when_s - time.monotonic(), 0.0), self._callback)
            return
        # A time of 0 would disarm it.
        whole_ns = max(int(when_s * 1e9), 1)
        setting = struct.pack("qqqq", 0, 0, whole_ns // 1_000_000_000, whole_ns % 1_000_000_000)
        self._libc.timerfd_settime(self._file, _ABSOLUTE, setting, None)

    def close(self) -> None:
        """Call back no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _expired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        self._callback()
