"""A clock for what others hold against a member of a group: how long it was silent."""

from __future__ import annotations

import time


def boot_s() -> float:
    """Seconds since the machine started: they go on while this process is stopped, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
