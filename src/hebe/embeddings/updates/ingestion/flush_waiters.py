"""Those who wait until all is applied that a log has: what the log had when each began, whether that is done, and
whether it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hebe.embeddings.updates.contract import TopicPartition


@dataclass(slots=True, eq=False)
class _Drain:
    """Somebody waits until all is applied up to these offsets, which the log had when that began."""

    ends: dict[TopicPartition, int] = field(default_factory=dict)
    done: bool = False


class Advance:
    """How far one ingestion has come, whose thread calls `note`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._furthest: dict[tuple[TopicPartition, bool], int] = {}

    def note(self, at: TopicPartition, offset: int, *, applied: bool = False) -> None:
        """A message was read, or is in the stores. Once more is no step: nobody is to wait for what goes in circles."""
        if offset > self._furthest.get((at, applied), -1):
            self._furthest[at, applied] = offset
            self._steps += 1

    def goes_on(self, patience_s: float, step: Callable[[], None]) -> Callable[[], bool]:
        """For who waits: says each time, after it has called `step`, whether there was a step further in the last
        `patience_s`, the first of which begin now.
        """
        steps, since_s = self._steps, self._clock()

        def asked() -> bool:
            nonlocal steps, since_s
            step()
            if self._steps > steps:
                steps, since_s = self._steps, self._clock()
            return self._clock() < since_s + patience_s

        return asked


class Drains:
    """Of one ingestion, whose thread calls `note`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle_times = 0
        self._waiting: list[_Drain] = []

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def wait(self, timeout_s: float, goes_on: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all that is in the log now is applied; False if that takes longer, and `goes_on`, which is asked
        each time that so much is over, says that it does not.
        """
        with self._changed:
            wanted = self._idle_times + 2  # the poll that runs now may have begun before
            drain = _Drain()
            self._waiting.append(drain)
        try:
            while True:
                with self._changed:
                    if self._changed.wait_for(lambda: self._idle_times >= wanted or drain.done, timeout_s):
                        return True
                if not goes_on():
                    return False
        finally:
            with self._changed:
                self._waiting.remove(drain)

    def note(
        self,
        lag: Mapping[TopicPartition, int],
        has: Callable[[TopicPartition, int], bool],
        last_offset: Callable[[TopicPartition], int],
        *,
        idle: bool,
    ) -> None:
        """Of each partition so much is not committed; `has(partition, offset)` says whether what is up to that offset
        is applied, and `last_offset` where the log ends. `idle`: nothing came with the last poll.

        What is there is not applied at once: with the next poll a log that has gone back says so.
        """
        with self._changed:
            waiting = list(self._waiting)
        done = [all(at in each.ends and has(at, each.ends[at]) for at in lag) for each in waiting]
        for drain in waiting:
            drain.ends.update({at: last_offset(at) for at in lag.keys() - drain.ends.keys()})
            # Nothing is left, and all the same not all seems applied: only by now may the log know its last message.
            doubtful = [at for at, left in lag.items() if left == 0 and not has(at, drain.ends[at])]
            drain.ends.update({at: min(drain.ends[at], last_offset(at)) for at in doubtful})
        with self._changed:
            self._idle_times += idle and not any(lag.values())
            for drain, is_done in zip(waiting, done, strict=True):
                drain.done = is_done and bool(lag)
            self._changed.notify_all()
