"""Whether the messages of a partition are complete and in order, by the numbers that their producers gave them.

A number that was seen already is a duplicate and goes: its rows may be older than what the store has. A number that is
too high holds the partition back for a while, for messages that were swapped on their way; if what is missing does not
come, that is a gap, which is reported, and the partition goes on. Pure: the caller brings the time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage

MOST_HELD = 64
"""No more messages are held back; a number that is missing further than this is not waited for."""
WAIT_S = 0.5
"""Nothing is held back for longer."""
MOST_PRODUCERS = 1024
"""Of a partition, whose next numbers are remembered. The one longest silent is forgotten first."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `first` to `last` of a producer in a partition that never came.

    Where `producer` is None these are offsets: the log has removed what was there, whoever sent it.
    """

    at: TopicPartition
    producer: str | None
    first: int
    last: int

    def __str__(self) -> str:
        place = f"partition {self.at.partition} of model {self.at.model}, table {self.at.table}"
        if self.producer is None:
            return f"offsets {self.first} to {self.last} of {place} were removed from the log before they were read"
        return f"messages {self.first} to {self.last} of producer {self.producer} are missing in {place}"


@dataclass(frozen=True, slots=True)
class Release:
    """What may be applied now, in this order.

    `positions[i]` is the offset up to which nothing of the partition is outstanding once `deliveries[:i + 1]` are
    applied, and `marks[i]` that of the last message up to there, "" if none came. `gaps` were found on the way.
    """

    deliveries: list[Delivery]
    positions: list[int]
    marks: list[str]
    gaps: list[Gap]


class PartitionOrder:
    """The order of one partition."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.duplicates = 0
        """Messages that were dropped."""
        self.reordered = 0
        """Messages that came after later ones and were put back in place."""
        self.whole = False
        """Whether all that the partition ever had came here, so that a producer who is new must begin with 0."""
        self._next: OrderedDict[str, int] = OrderedDict()
        """By producer, the number that its next message should have."""
        self._queue: deque[Delivery] = deque()
        self._pushed: int | None = None
        self._marks: deque[tuple[int, str]] = deque()
        """Offsets and marks of messages: the last one up to the position, and all that came after it."""
        self._held_until_s: float | None = None

    @property
    def held(self) -> int:
        """Messages held back."""
        return len(self._queue)

    @property
    def position(self) -> int | None:
        """The offset up to which all was released or dropped; None before the first."""
        if self._queue:
            return min(delivery.offset for delivery in self._queue) - 1
        return self._pushed

    def push(self, delivery: Delivery) -> None:
        """Take in what the source handed over next. Poison messages have no number and keep their place."""
        self._queue.append(delivery)
        self._pushed = delivery.offset
        if delivery.mark:
            self._marks.append((delivery.offset, delivery.mark))

    def learn(self, delivery: Delivery) -> None:
        """Take note of a message that was applied before, and its number. Before anything is pushed."""
        message = delivery.message
        if message is not None:
            self._next[message.producer] = max(self._next.get(message.producer, 0), message.sequence + 1)
        if delivery.mark:
            self._marks.clear()
            self._marks.append((delivery.offset, delivery.mark))

    def mark_at(self, position: int) -> str:
        """The mark of the last message up to that offset, which is not behind `position`; "" if none came."""
        return next((mark for offset, mark in reversed(self._marks) if offset <= position), "")

    def release(self, now_s: float) -> Release:
        """What is in order by now, or has waited long enough."""
        deliveries: list[Delivery] = []
        gaps: list[Gap] = []
        while self._queue:
            message = self._queue[0].message
            if message is None:
                deliveries.append(self._queue.popleft())
                continue
            expected = self._next.get(message.producer)
            missing = message.sequence - (expected or 0)
            if expected is not None and missing < 0:
                self.duplicates += 1
                self._queue.popleft()
            elif missing == 0:
                self._release(self._queue.popleft(), message, deliveries)
            elif (place := self._place(message.producer, expected or 0)) is not None:
                self.reordered += 1
                early = self._queue[place]
                del self._queue[place]
                assert early.message is not None
                self._release(early, early.message, deliveries)
            elif self._may_come(missing, now_s):
                break
            else:
                if expected is not None or self.whole:  # else it may be met in the middle of its life
                    gaps.append(Gap(self.at, message.producer, expected or 0, message.sequence - 1))
                self._next[message.producer] = message.sequence
        positions = self._positions(deliveries)
        release = Release(deliveries, positions, self._marks_at(positions), gaps)
        while (done := self.position) is not None and len(self._marks) > 1 and self._marks[1][0] <= done:
            self._marks.popleft()
        return release

    def _release(self, delivery: Delivery, message: UpdateMessage, deliveries: list[Delivery]) -> None:
        deliveries.append(delivery)
        self._next[message.producer] = message.sequence + 1
        self._next.move_to_end(message.producer)
        if len(self._next) > MOST_PRODUCERS:
            self._next.popitem(last=False)
            self.whole = False  # who was forgotten may come again
        self._held_until_s = None

    def _place(self, producer: str, sequence: int) -> int | None:
        """Where in the queue that message is."""
        for place, delivery in enumerate(self._queue):
            message = delivery.message
            if message is not None and message.sequence == sequence and message.producer == producer:
                return place
        return None

    def _may_come(self, missing: int, now_s: float) -> bool:
        if missing > MOST_HELD or len(self._queue) > MOST_HELD:
            self._held_until_s = None
            return False
        if self._held_until_s is None:
            self._held_until_s = now_s + WAIT_S
        if now_s < self._held_until_s:
            return True
        self._held_until_s = None
        return False

    def _marks_at(self, positions: list[int]) -> list[str]:
        """`mark_at` of each, in one walk: they ascend."""
        following, mark, marks = deque(self._marks), "", []
        for position in positions:
            while following and following[0][0] <= position:
                mark = following.popleft()[1]
            marks.append(mark)
        return marks

    def _positions(self, deliveries: list[Delivery]) -> list[int]:
        outstanding = self.position
        positions = []
        for delivery in reversed(deliveries):
            assert outstanding is not None
            positions.append(outstanding)
            outstanding = min(outstanding, delivery.offset - 1)
        return positions[::-1]
