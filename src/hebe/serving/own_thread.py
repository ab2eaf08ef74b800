"""Work that may take minutes, on a thread of its own.

asyncio's `to_thread` has a few threads for everybody: while some models are loaded at once, whatever else needs one,
such as a query that is packed, would wait until one of them is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import TypeVar, TypeVarTuple

from hebe.runtime.pinning import lower_priority, pin_thread

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_NICENESS = 19
"""What gives way does so to the workers, which may give way to the front end themselves."""


async def in_own_thread(work: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
    """`work(*arguments)`, what it returns or raises; it goes on if this is cancelled."""
    thread = ThreadPoolExecutor(1, "hebe-work")
    under_way = thread.submit(work, *arguments)
    try:
        return await asyncio.wrap_future(under_way)
    finally:
        thread.shutdown(wait=under_way.done())  # it ends at once, and is not there any more when the caller goes on
        del under_way  # it has what the work raised, whose traceback has this frame


def giving_way(work: Callable[[], _Result], cores: Sequence[int]) -> _Result:
    """`work()`, what it returns or raises, on a thread on `cores` that gives way to all that answers queries. Blocks.

    The thread ends with the work: it cannot raise its priority again, and those that it starts inherit it.
    """
    outcome: Future[_Result] = Future()

    def run(outcome: Future[_Result]) -> None:
        try:
            lower_priority(_NICENESS)
            pin_thread(cores)
            outcome.set_result(work())
        except BaseException as fault:
            outcome.set_exception(fault)
        finally:
            # A fault's traceback holds this frame and the one below. Holding the fault in turn, they would keep what
            # was half done, open files among it, until the next full garbage collection.
            del outcome

    Thread(target=run, args=(outcome,), name="hebe-giving-way", daemon=True).start()
    try:
        return outcome.result()
    finally:
        del outcome
