"""How many threads share what only one may do at a time, and how what workers did reaches those who wait for it.

`Turns` gives threads their turns without any waiting for the others. What is submitted while another thread has its
turn is left to that thread: "flat combining" (Hendler, Incze, Shavit and Tzafrir, SPAA 2010). Who waited for a lock
instead would sleep, wake up with it in hand, and then wait for the interpreter lock, which makes the next ones sleep as
well: with sixteen workers little else was done.

`AnswerPost` hands answers from worker threads to the tasks of an event loop that wait for them. `WorkedTime` is how
long a worker has been at work: while at least one of its threads runs a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from hebe.query import QueryResult

Effects = TypeVar("Effects")


class Turns(Generic[Effects]):
    """What is told is done in the order in which it was told, each with `new_effects` of its own, which are delivered
    after its turn by the thread that did it.
    """

    def __init__(self, new_effects: Callable[[], Effects], deliver: Callable[[Effects], None]) -> None:
        self._new_effects, self._deliver = new_effects, deliver
        self._told: deque[Callable[[Effects], None]] = deque()
        self._turn = threading.Lock()

    def tell(self, told: Callable[[Effects], None]) -> None:
        """Have something done: now, or by the thread whose turn it is. It must not raise."""
        self._told.append(told)
        self._work_off()

    def _work_off(self) -> None:
        while self._told and self._turn.acquire(blocking=False):
            effects = self._new_effects()
            try:
                if self._told:  # else another thread has done it meanwhile
                    self._told.popleft()(effects)
            finally:
                self._turn.release()
            self._deliver(effects)
        # Nothing is left behind: whoever found the turn taken had told of it before, and who had it looks again.

    @contextlib.contextmanager
    def alone(self) -> Iterator[Effects]:
        """A turn for what must be done when the call returns, and is not asked for often: it is waited for."""
        effects = self._new_effects()
        try:
            with self._turn:
                yield effects
            self._deliver(effects)
        finally:
            self._work_off()


class AnswerPost:
    """The answers to queries of one event loop. It is woken once for all that come before it looks: each wake-up writes
    to a pipe, which lets go of the interpreter lock, and then the thread has to wait for it again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answers: deque[tuple[asyncio.Future[QueryResult], QueryResult | Exception]] = deque()
        self._woken = False

    def give(self, future: asyncio.Future[QueryResult], answer: QueryResult | Exception) -> None:
        """Answer `future`, from any thread."""
        self._answers.append((future, answer))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._give_out)

    def _give_out(self) -> None:
        self._woken = False  # before it looks: who gives something afterwards wakes it anew
        while self._answers:
            settle(*self._answers.popleft())


def settle(future: asyncio.Future[QueryResult], answer: QueryResult | Exception) -> None:
    """Answer `future`, on its loop's thread."""
    if future.done():  # cancelled meanwhile
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class WorkedTime:
    """Of one worker. Its threads share their cores, so that their times may overlap, and are not added up."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._since_s = 0.0
        self._worked_s = 0.0

    def begin(self, thread_id: int, now: float) -> None:
        """A thread has a batch, or the next one."""
        if not self._running:
            self._since_s = now
        self._running.add(thread_id)

    def end(self, thread_id: int, now: float) -> None:
        """A thread has none any more."""
        if thread_id in self._running:
            self._running.remove(thread_id)
            if not self._running:
                self._worked_s += now - self._since_s

    def until(self, now: float) -> float:
        """Seconds at work so far, what runs now included."""
        return self._worked_s + (now - self._since_s if self._running else 0.0)
