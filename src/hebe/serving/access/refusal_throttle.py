"""How fast queries are refused where the front end would take the cores for that from workers that give way to it.

Clients that try again at once are refused thousands of times a second, each time with a body to be received: on the
workers' own cores that leaves these a tenth of their time, and a server that is asked too much answers next to nothing.
So who was refused is left alone for a while, during which his system holds back what he sends, once refusals have cost
the workers their share. Below that nobody waits, and nobody does where there are many workers, of whom the front end,
being one thread, hinders no more than one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_SHARE = 1 / 8
"""Of the work of all workers."""

_AT_ONCE_S = 0.02
"""So much work on refusals is done without a rest after a time without any."""

_MOST_REST_S = 1.0
"""`Retry-After` says at least this."""

_FORGOTTEN_S = 1.0
"""What the front end did before is no work on refusals."""


class RefusalPace:
    """Of one event loop, on whose thread all is called. `clock` in seconds, as `worked`, the thread's time on a core.

    What a refusal took cannot be told apart from what else the thread did: it is the mean of all that was asked since
    the last one, which is more than it took, and where refusals are few makes no difference.
    """

    def __init__(self, clock: Callable[[], float], worked: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._worked = clock, worked
        self._at_s = self._worked_s = 0.0
        self._left_s = 0.0
        self._answered = 0

    def answered(self) -> None:
        """A query was answered."""
        self._answered += 1

    def refused(self, workers: int) -> float:
        """A query is refused: for how many seconds its client should be left alone then, for the sake of so many
        workers on the front end's cores.
        """
        share = _SHARE * workers  # of one core, which is one worker's, or that on which its other ones wait
        now, worked_s = self._clock(), self._worked()
        gone_s, work_s = now - self._at_s, worked_s - self._worked_s
        if gone_s > _FORGOTTEN_S:
            self._left_s = _AT_ONCE_S
        else:
            self._left_s = min(self._left_s + share * gone_s, _AT_ONCE_S) - work_s / (self._answered + 1)
            self._left_s = max(self._left_s, -share * _MOST_REST_S)
        self._at_s, self._worked_s, self._answered = now, worked_s, 0
        return max(0.0, -self._left_s / share)
