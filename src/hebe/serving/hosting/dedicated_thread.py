"""Work that may take minutes, or hang, on a thread of its own.

asyncio's `to_thread` has a few threads for everybody: while some models are loaded at once, whatever else needs one,
such as a query that is packed, would wait until one of them is done. And Python waits for them as it ends, as for those
of each `ThreadPoolExecutor`: a server would outlive its stop for as long as a file system hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple

from hebe.machine.pinning import lower_priority, pin_thread

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_NICENESS = 19
"""What gives way does so to the workers, which may give way to the front end themselves."""

_ENDS_WITHIN_S = 1.0
"""A thread that has nothing to do, where the machine is busy."""

_under_way: set[Future[Any]] = set()
"""Of works that a thread is at. Changed by single operations, which need no lock."""


def at_work() -> bool:
    """Whether any work is under way, of this whole process."""
    return bool(_under_way)


async def in_own_thread(work: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
    """`work(*arguments)`, what it returns or raises; it goes on if this is cancelled, though not past the process."""
    thread, under_way = _begin("hebe-work", partial(work, *arguments))
    try:
        return await asyncio.wrap_future(under_way)
    finally:
        if under_way.done():
            thread.join()  # it ends at once, and is not there any more when the caller goes on
        del under_way  # it has what the work raised, whose traceback has this frame


def giving_way(work: Callable[[], _Result], cores: Sequence[int]) -> _Result:
    """`work()`, what it returns or raises, on a thread on `cores` that gives way to all that answers queries. Blocks.

    The thread ends with the work: it cannot raise its priority again, and those that it starts inherit it.
    """

    def gently() -> _Result:
        lower_priority(_NICENESS)
        pin_thread(cores)
        return work()

    _, outcome = _begin("hebe-giving-way", gently)
    try:
        return outcome.result()
    finally:
        del outcome


class InTurn:
    """Works one after the other, on one thread, so that no more than one hangs. The first one has it started."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Thread | None = None
        self._closed = False
        self._under_way: Future[Any] | None = None
        self._line: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """`work()`, what it returns or raises; one that is cancelled before its turn is not begun. Raises RuntimeError
        after `close`.
        """
        if self._closed:
            raise RuntimeError(f"{self._name} is closed")
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        outcome: Future[_Result] = Future()
        self._line.put((outcome, work))
        try:
            return await asyncio.wrap_future(outcome)
        finally:
            del outcome  # as in `in_own_thread`

    def close(self) -> None:
        """Begin no more: those whose turn has not come are cancelled. What is under way goes on; where nothing is, the
        thread ends at once, and is not there any more when the caller goes on.
        """
        self._closed = True
        with contextlib.suppress(Empty):
            while (next_one := self._line.get_nowait()) is not None:
                next_one[0].cancel()
        self._line.put(None)
        under_way = self._under_way
        if self._thread is not None and (under_way is None or under_way.done()):
            self._thread.join(_ENDS_WITHIN_S)  # a work that began just now may hang

    def _run(self) -> None:
        while (next_one := self._line.get()) is not None:
            outcome, work = next_one
            del next_one
            self._under_way = outcome
            if outcome.set_running_or_notify_cancel():
                _do(outcome, work)
            self._under_way = None
            del outcome, work


def _begin(name: str, work: Callable[[], _Result]) -> tuple[Thread, Future[_Result]]:
    """A thread that does `work`, and what will come of it, which nobody can cancel."""
    outcome: Future[_Result] = Future()
    outcome.set_running_or_notify_cancel()
    thread = Thread(target=_do, args=(outcome, work), name=name, daemon=True)
    thread.start()
    return thread, outcome


def _do(outcome: Future[_Result], work: Callable[[], _Result]) -> None:
    _under_way.add(outcome)
    try:
        outcome.set_result(work())
    except BaseException as fault:
        outcome.set_exception(fault)
    finally:
        _under_way.discard(outcome)
        # A fault's traceback holds this frame and the one below. Holding the fault in turn, they would keep what was
        # half done, open files among it, until the next full garbage collection.
        del outcome
