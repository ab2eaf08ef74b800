"""The op workers of one worker: its own thread and one for each further core, side by side on one batch (Hercules,
section III.A, op-parallelism).

Items do not wait for each other, so they are shared out, first those of the lookups, then those of the DenseNet, rather
than its ops. Op workers that take whole ops wait for the critical path (the study hercules-idle compares both). Torch's
own threads, which share each op, wait for each other at the end of every one: in DIEN's many small ones they take five
times as long for 16 items as one thread does. Threads are those of an executor, which ends them when it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

FEWEST_ITEMS = 32
"""Of a share of lookups: handing it to another thread costs about what looking up so many items does."""

FEWEST_DENSE_ITEMS = 16
"""Of a share of the DenseNet, which takes more work an item."""


def shares_of(items: int, op_workers: int, fewest: int) -> list[tuple[int, int]]:
    """`items` in shares `[start, stop)`, one for each op worker as far as each has at least `fewest`."""
    count = max(1, min(op_workers, items // fewest))
    return [(items * share // count, items * (share + 1) // count) for share in range(count)]


class OpTeam:
    """So many op workers, of which the thread that calls is one; to be first used on the worker's thread, since the
    others stay on the cores that it had then.
    """

    def __init__(self, op_workers: int) -> None:
        self.op_workers = op_workers
        self._others: ThreadPoolExecutor | None = None
        if op_workers > 1:
            self._others = ThreadPoolExecutor(
                op_workers - 1, "hebe-op", initializer=torch.set_num_threads, initargs=(1,)
            )

    def shares(self, items: int, fewest: int = FEWEST_ITEMS) -> list[tuple[int, int]]:
        """As `shares_of`, for these op workers."""
        return shares_of(items, self.op_workers, fewest)

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """What the tasks return, in order, run at the same time. Raises what the first of them raised, when all are
        done."""
        if self._others is None or len(tasks) == 1:
            return [task() for task in tasks]
        others = [self._others.submit(task) for task in tasks[1:]]
        try:
            first = tasks[0]()
        finally:
            for other in others:  # they write to buffers that are used again
                other.exception()
        return [first, *(other.result() for other in others)]
