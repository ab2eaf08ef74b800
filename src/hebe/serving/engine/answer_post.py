"""Hands answers from worker threads to the tasks of an event loop that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from hebe.query import QueryResult


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
