"""Those who wait until all is applied that a log has: what the log had when each began, and whether that is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hebe.embeddings.updates.contract import TopicPartition


@dataclass(slots=True, eq=False)
class _Drain:
    """Somebody waits until all is applied up to these offsets, which the log had when that began."""

    ends: dict[TopicPartition, int] = field(default_factory=dict)
    done: bool = False


class Drains:
    """Of one ingestion, whose thread calls `note`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle_times = 0
        self._waiting: list[_Drain] = []

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied; False if that takes longer."""
        with self._changed:
            wanted = self._idle_times + 2  # the poll that runs now may have begun before
            drain = _Drain()
            self._waiting.append(drain)
            try:
                return self._changed.wait_for(lambda: self._idle_times >= wanted or drain.done, timeout_s)
            finally:
                self._waiting.remove(drain)

    def note(
        self,
        lag: Mapping[TopicPartition, int],
        has: Callable[[TopicPartition, int, int], bool],
        last_offset: Callable[[TopicPartition], int],
        *,
        idle: bool,
    ) -> None:
        """Of the partitions that are ours so much is not committed; `has(partition, offset, left)` says whether what is
        up to that offset is applied, and `last_offset` where the log ends. `idle`: nothing came with the last poll.

        What is there is not applied at once: with the next poll a log that has gone back says so. A partition that was
        lost is another's to apply.
        """
        with self._changed:
            waiting = list(self._waiting)
        done = [all(at in each.ends and has(at, each.ends[at], left) for at, left in lag.items()) for each in waiting]
        for drain in waiting:
            drain.ends.update({at: last_offset(at) for at in lag.keys() - drain.ends.keys()})
        with self._changed:
            self._idle_times += idle and not any(lag.values())
            for drain, is_done in zip(waiting, done, strict=True):
                drain.done = is_done and bool(lag)
            self._changed.notify_all()
