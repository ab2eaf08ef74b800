"""Turns of many threads at what only one may do at a time, without any waiting for the others.

What is told while another thread has its turn is left to that thread: "flat combining" (Hendler, Incze, Shavit and
Tzafrir, SPAA 2010). Who waited for a lock instead would sleep, wake up with it in hand, and then wait for the
interpreter lock, which makes the next ones sleep as well: with sixteen workers little else was done.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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
