"""Many independent cases of a study, on all cores that this process may use, with a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import TypeVar

from rich.progress import Progress

_Case = TypeVar("_Case")
_Answer = TypeVar("_Answer")


def sweep(
    title: str,
    function: Callable[[_Case], _Answer],
    cases: Sequence[_Case],
    progress: Progress,
    *,
    in_process: bool = False,
) -> list[_Answer]:
    """`function` of every case, in the order of the cases. It must be a module's own function, and cases plain data.

    Each process imports the function's module anew, so nothing depends on how many there are. The first error is
    raised as it is, and what has not begun then never begins; an interrupt ends what has begun as well. `in_process` is
    for cases so short that processes would take longer to start.
    """
    task = progress.add_task(title, total=len(cases))
    processes = min(len(cases), len(os.sched_getaffinity(0)))
    if in_process or processes <= 1:
        answers = []
        for case in cases:
            answers.append(function(case))
            progress.advance(task)
        return answers
    # Not forked: progress bars are drawn by a thread, which a forked process would hold half of.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(function, case) for case in cases]
        try:
            for future in as_completed(futures):
                future.result()
                progress.advance(task)
        except BaseException as fault:
            if not isinstance(fault, Exception):  # a case may take minutes
                for process in active_children():
                    process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]
