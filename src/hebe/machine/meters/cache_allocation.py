"""A share of the last-level cache for this process, by ways (CAT): a control group of resctrl.

Documentation/filesystems/resctrl.rst. A group is a directory; whoever is in it fills only the ways that its `schemata`
names, and reads hits in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hebe.machine.meters.memory_bandwidth import RESCTRL, cache_ways

PROC = Path("/proc")
TASKS = PROC / "self" / "task"

_NAME = "hebe-"
"""Of a group, before the number of the process that made it."""


class CacheAllocationError(Exception):
    """The cache cannot be shared out; says why."""


@contextmanager
def limited_to_ways(ways: int, root: Path = RESCTRL, tasks: Path = TASKS) -> Iterator[None]:
    """Meanwhile this process, and what it starts, fills so many ways of each last-level cache.

    Raises `CacheAllocationError` where that cannot be: no resctrl, no right to (it takes root), too few ways.
    """
    there = cache_ways(root)
    if not there.fewest <= ways <= there.count:
        reason = there.reason or f"{ways} ways were asked for, from {there.fewest} to {there.count} may be given"
        raise CacheAllocationError(reason)
    _remove_left(root)
    group = root / f"{_NAME}{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        try:
            caches = _caches((root / "schemata").read_text())
            mask = f"{(1 << ways) - 1:x}"
            (group / "schemata").write_text("L3:" + ";".join(f"{cache}={mask}" for cache in caches) + "\n")
            for task in sorted(tasks.iterdir()):
                with suppress(ProcessLookupError):  # a thread that has ended since
                    (group / "tasks").write_text(f"{task.name}\n")
        except BaseException:
            group.rmdir()
            raise
    except (OSError, ValueError) as fault:
        raise CacheAllocationError(f"{group}: {fault}") from fault
    try:
        yield
    finally:
        group.rmdir()  # whoever is in it is in the common group again


def _remove_left(root: Path) -> None:
    """Remove the groups of processes that were killed meanwhile: a processor has classes for a few groups, often 16,
    and once all are taken nobody gets another."""
    for group in root.glob(f"{_NAME}*"):
        process = group.name.removeprefix(_NAME)
        with suppress(OSError):  # no group, or another process has removed it
            if process.isdecimal() and not (PROC / process).exists() and not (group / "tasks").read_text().strip():
                group.rmdir()


def _caches(schemata: str) -> list[str]:
    """The ids of the last-level caches, of what the common group's `schemata` says: `L3:0=fffff;1=fffff`."""
    for line in schemata.splitlines():
        resource, _, shares = line.strip().partition(":")
        if resource == "L3" and shares:
            return [share.partition("=")[0] for share in shares.split(";")]
    raise ValueError("schemata has no line of L3")
