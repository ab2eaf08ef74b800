"""The op workers of one worker: its own thread and one for each further core, side by side on one batch (Hercules,
section III.A, op-parallelism).

The SparseNet's lookups do not wait for each other, so its items are shared out among them; within the DenseNet torch's
own threads share each op, rather than taking whole ops side by side: the study hercules-idle compares both. Threads are
those of an executor, which ends them when it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

FEWEST_ITEMS = 32
"""Of a share: handing it to another thread costs about what looking up so many items does."""


class OpTeam:
    """So many op workers, of which the thread that calls is one; to be first used on the worker's thread, since the
    others stay on the cores that it had then.
    """

    def __init__(self, op_workers: int) -> None:
        self.op_workers = op_workers
        self._others = ThreadPoolExecutor(op_workers - 1, thread_name_prefix="hebe-op") if op_workers > 1 else None

    def shares(self, items: int) -> list[tuple[int, int]]:
        """`items` in shares `[start, stop)`, one for each op worker as far as that is worth it."""
        count = max(1, min(self.op_workers, items // FEWEST_ITEMS))
        return [(items * share // count, items * (share + 1) // count) for share in range(count)]

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
