"""What one partition goes through in an ingestion, and how far it is. Pure: the caller asks log, stores and clock.

    met ──▶ begun ──▶ known again ──▶ judged         the partition: where the stores are in it, whether the log has
                                                     there what they took from it, whether its beginning is gone
    handed over ──▶ in order ──▶ ready ──▶ applied ──▶ committed                                      its messages

One that others have meanwhile is forgotten, all of it, and met anew should it come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from hebe.embeddings.updates.contract import Delivery, TopicPartition
from hebe.embeddings.updates.ingestion.sequence_check import MOST_HELD, Gap, PartitionOrder
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch
from hebe.embeddings.updates.ingestion.updated_stores import StoredPosition


def seek_offset(position: StoredPosition | None) -> int:
    """After which offset a partition is read whose stores are at `position`: None is before its oldest message (-1).

    A little that is applied already is read again, for the numbers that its producers had reached, and to know the log
    by.
    """
    return -1 if position is None else max(-1, position.offset - MOST_HELD)


@dataclass(slots=True, eq=False)
class PartitionProgress:
    """That of partition `at`, as the ingestion has it that reads it now."""

    at: TopicPartition
    ready: deque[StoreBatch] = field(default_factory=deque)
    """What is in order and not yet in all stores: whatever fails meanwhile, it is not forgotten."""
    order: PartitionOrder = field(init=False)
    met: bool = False
    """Whether the source was told where to begin, if anybody knows better than the group."""
    position: int | None = None
    """The offset up to which the stores are known to have all, where one keeps positions. With None what they keep of
    it counts no more: the next position takes its place.
    """
    position_name: str | None = None
    """Under which the stores keep it; None where none does."""
    mark: str | None = None
    """That of the message at `position`, until the log has shown that this is the one it has."""
    handed: int = -1
    """The offset that the source handed over last, or was told to begin after."""
    sought: bool = False
    """Whether the source was told to begin behind `position`, and nothing came since."""
    unjudged: bool = False
    """Whether no message came since it was begun: who knows whether the log has its beginning."""
    had_updates: bool = False
    """Whether the stores may have updates that the log lacks: of another log, or of this one before it went back."""
    applied: int | None = None
    """The offset up to which the stores have all; None while that is what the group has committed."""
    pending: int | None = None
    """That offset, if it is to be committed."""
    batches: int = 0
    """Applied since the last commit."""

    def __post_init__(self) -> None:
        self.order = PartitionOrder(self.at)

    def begin(self, position: StoredPosition | None) -> None:
        """It is read from `seek_offset(position)` on, with no numbers of what came before; what is ready stays so."""
        self.order = PartitionOrder(self.at)
        self.handed = seek_offset(position)
        self.sought = position is not None
        self.mark = None
        if position is None:
            self.position, self.applied = None, -1
            self.unjudged = True
            return
        self.position = self.applied = position.offset
        if position.mark:
            self.mark = position.mark
        else:
            self.pending = position.offset

    def of_new_log(self) -> PartitionProgress:
        """The same partition of a log that was made anew, not met yet: what was ready is applied still, but its offsets
        say nothing about the new log.
        """
        ready = deque(replace(batch, position=None) for batch in self.ready)
        return PartitionProgress(self.at, ready, had_updates=True)

    def other_mark(self, delivery: Delivery) -> str | None:
        """With the first delivery at the position of the stores, or beyond: the mark that the log has there, if it is
        not that of what they took from it.

        Of what retention has removed nothing can be known.
        """
        if self.mark is None or self.position is None or delivery.offset < self.position:
            return None
        found = delivery.mark if delivery.offset == self.position else self.order.mark_at(self.position)
        if found not in ("", self.mark):
            return found
        self.mark = None
        return None

    def take(self, delivery: Delivery) -> Gap | None:
        """Bring what the source handed over next into its order. Returns what the log has removed just before it."""
        position, gap = self.position, None
        if self.sought and position is not None and delivery.offset > position + 1:
            # Not even one that was applied before is there any more: what lay between went with it.
            gap = Gap(self.at, None, position + 1, delivery.offset - 1)
        if delivery.mark:
            self.handed = delivery.offset
        else:  # what a source says of its log stands at whatever offset
            self.had_updates = True
        self.sought = False
        if position is None or delivery.offset > position:
            self.order.push(delivery)
            return gap
        if self.mark is None:
            self.pending = position  # some sources take a commit only of what they have handed over since
        self.order.learn(delivery)
        return gap

    def make_ready_to_pass(self) -> None:
        """After what is ready, stores that keep a position get the one behind messages of which nothing is applied. Or
        else poison would come again, to be put aside and told of, with each start until a row comes after it.
        """
        if self.position_name is None or self.order.position is None:
            return
        end = min(self.order.position, self.handed)  # what a source says of its log stands at whatever offset
        ready = [batch.position for batch in self.ready if batch.position is not None]
        if end > max([self.stored_up_to, *ready]):
            self.ready.append(StoreBatch(np.empty(0, np.int64), None, 0, end, (), self.order.mark_at(end)))

    def new_position(self, batch: StoreBatch) -> tuple[str, int] | None:
        """The position of stores that keep one, once they have a batch; None where it does not advance."""
        # One that does not (of a message put back in its place) would be taken for a repetition.
        if self.position_name is None or batch.position is None or batch.position <= self.stored_up_to:
            return None
        return self.position_name, batch.position

    @property
    def stored_up_to(self) -> int:
        """`position`, -1 where there is none."""
        return -1 if self.position is None else self.position

    def apply_up_to(self, offset: int) -> None:
        """The stores have all up to there."""
        self.pending = self.applied = offset

    @property
    def known_applied(self) -> int | None:
        """`applied`, None also while it is not known yet where the partition is to be read."""
        return self.applied if self.met and self.mark is None else None

    def has(self, end: int, left: int) -> bool:
        """Whether the stores have all up to offset `end`, of which the group has not committed `left`."""
        if not self.met or self.mark is not None:  # where it is to be read is not known yet
            return False
        return left == 0 if self.applied is None else self.applied >= end


def pending_offsets(partitions: Iterable[PartitionProgress]) -> dict[TopicPartition, int]:
    """What is to be committed, by partition."""
    return {progress.at: progress.pending for progress in partitions if progress.pending is not None}
