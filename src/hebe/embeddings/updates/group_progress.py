"""How far a consumer group is: which offsets it has committed, and of what time all is that it has."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog

_MOST_KNOWN = 64
"""Looks whose ends are remembered. Where a group is further behind, less is said of what it has, not too much."""


def log_ends(log: UpdateLog, topics: Sequence[Topic]) -> dict[TopicPartition, int]:
    """By partition of `topics`, the offset of the newest message; -1 where there is none. Raises `StoreError`."""
    with contextlib.closing(log.source(None, topics, newest=True)) as reader:
        reader.poll(0, 0.0)
        return {at: reader.last_offset(at) for at in reader.assigned()}


def committed_offsets(log: UpdateLog, ends: Mapping[TopicPartition, int], group: str) -> dict[TopicPartition, int]:
    """By partition, the offset up to which members of `group` have committed all, or more, of what the log has left; -1
    where there is none. `ends`: as the log had them before. Raises `StoreError`.
    """
    lag = dict(log.group_lag(group))  # what has come since `ends` makes it too large, not too small
    untold = {at.topic for at, end in ends.items() if end >= 0 and at not in lag}
    if untold:  # as Kafka does where nothing was committed: there may be nothing to commit
        lag.update({at: 0 for at, left in _left(log, list(untold)).items() if left == 0 and at not in lag})
    return {at: end - lag[at] if at in lag else -1 for at, end in ends.items()}


def _left(log: UpdateLog, topics: Sequence[Topic]) -> Mapping[TopicPartition, int]:
    """How many messages the log has of each partition of `topics`, which retention may have removed all."""
    with contextlib.closing(log.source(None, topics, newest=True)) as reader:
        reader.poll(0, 0.0)
        for at in reader.assigned():
            reader.seek(at, -1)
        return reader.lag()


def ends_and_committed(
    log: UpdateLog, topics: Sequence[Topic], group: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """`log_ends`, and `committed_offsets` of `group`. Raises `StoreError`."""
    ends = log_ends(log, topics)
    return ends, committed_offsets(log, ends, group)


@dataclass(frozen=True, slots=True)
class GroupLook:
    """What `ends_and_committed` said, asked at `asked_s` (`time.monotonic`)."""

    asked_s: float
    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]


class GroupProgress:
    """Of one group, by looks at it from time to time. Pure: the caller brings the time, and what a look saw."""

    def __init__(self) -> None:
        self.has_all_until_s = -math.inf
        """The group has committed all that the log had then."""
        self._looks: list[tuple[float, dict[TopicPartition, int]]] = []
        """When it was looked, and where the log ended; the group was not there yet."""

    def look(self, now_s: float, ends: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
        """What `log_ends` and `committed_offsets` said, asked at `now_s`."""
        if any(ends.get(at, -1) < end for _, known in self._looks[-1:] for at, end in known.items()):
            self._looks.clear()  # the log went back
        self._looks.append((now_s, dict(ends)))
        while self._looks and all(committed.get(at, -1) >= end for at, end in self._looks[0][1].items()):
            self.has_all_until_s = self._looks.pop(0)[0]
        if len(self._looks) > _MOST_KNOWN:
            del self._looks[-2]
