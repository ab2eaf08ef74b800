"""Which messages of the update log level 1 has followed by itself: a store that takes the same ones later, or sooner,
has nothing newer than these.
"""

from __future__ import annotations

from dataclasses import dataclass

from hebe.embeddings.store import FoundMask, KeyArray


@dataclass(frozen=True, slots=True, eq=False)
class LogPlace:
    """Where updates of a table stand in the log: those of each key in the message at one of `offsets`, int64 `[n]`, of
    a partition. `position`: the offset up to which nothing of it is outstanding with them, None in the midst of a
    message.
    """

    partition: int
    offsets: KeyArray
    position: int | None


class HeardUpdates:
    """Of one table, by partition, from the first offset that was heard to the last one."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[int, int]] = {}

    def note(self, place: LogPlace) -> None:
        """These have been followed, as has all before them since the first ones. A log that goes back begins anew."""
        if not place.offsets.size:
            return
        begins = int(place.offsets.min())
        first, last = self._heard.get(place.partition, (begins, begins - 1))
        if begins <= last and (place.position is None or place.position <= last):
            first, last = begins, begins - 1
        self._heard[place.partition] = first, last if place.position is None else place.position

    def has(self, place: LogPlace) -> FoundMask:
        """Which of these have been followed, bool `[n]`."""
        first, last = self._heard.get(place.partition, (0, -1))
        return (place.offsets >= first) & (place.offsets <= last)
