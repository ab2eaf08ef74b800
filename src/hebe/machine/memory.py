"""How much memory this process may still take."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hebe.machine.cgroups import MOUNTED, PROC, memory_limits


def available_bytes(proc: Path = PROC, mounted: Path = MOUNTED) -> int | None:
    """Memory to be had without swapping: the machine's, or that of the control group which has least left if that is
    less; None if unknown."""
    limits = [limit.available_bytes for limit in memory_limits(proc, mounted)]
    with contextlib.suppress(OSError, StopIteration):
        lines = (proc / "meminfo").read_text().splitlines()
        limits.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    return max(0, min(limits)) if limits else None
