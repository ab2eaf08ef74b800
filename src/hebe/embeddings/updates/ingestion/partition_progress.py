"""Where the updates of a partition are between source and stores. Pure: the caller asks log, stores and clock.

    delivered    the source has handed them over                                        `delivered`, up to `handed`
    ordered      they are complete and in order, or wait for others to be               `order`, up to `order.position`
    ready        they are batches for the stores                                        `ready`
    applying     some stores may have them                                              the first of `ready`
    applied      all stores have them                                                   up to `applied`
    reported     and the source knows                                                   up to `reported`

Whatever fails, an update stays where it is. The partition itself goes through `Stage`; where its log, or what a store
holds of it, went back, it begins again, and updates that were not applied are dropped with the rest: what counts is
what the log has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from hebe.embeddings.updates.contract import Delivery, TopicPartition
from hebe.embeddings.updates.ingestion.sequence_check import MOST_HELD, Gap, PartitionOrder
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch
from hebe.embeddings.updates.ingestion.updated_stores import StoredPosition


class Stage(Enum):
    """How much is known of a partition."""

    NEW = auto()
    """Not where the stores are in it."""
    CHECKING = auto()
    """Where they are, but not whether the log has there what they took from it."""
    FOLLOWED = auto()
    """All of it."""


def seek_offset(position: StoredPosition | None) -> int:
    """After which offset a partition is read whose stores are at `position`: None is before its oldest message (-1).

    A little that is applied already is read again, for the numbers that its producers had reached, and to check that
    the log is the same.
    """
    return -1 if position is None else max(-1, position.offset - MOST_HELD)


@dataclass(slots=True, eq=False)
class PartitionProgress:
    """Those of partition `at`, as one ingestion has them."""

    at: TopicPartition
    stage: Stage = Stage.NEW
    delivered: deque[Delivery] = field(default_factory=deque)
    handed: int = -1
    """The offset that was brought into order last, or after which the partition was begun."""
    order: PartitionOrder = field(init=False)
    ready: deque[StoreBatch] = field(default_factory=deque)
    applied: int = -1
    reported: int = -1
    batches: int = 0
    """Applied since the last report."""
    position: int | None = None
    """The offset up to which the stores are known to have all, where one keeps positions. With None what they keep of
    it counts no more: the next position takes its place.
    """
    position_name: str | None = None
    """Under which the stores keep it; None where none does."""
    mark: str = ""
    """That of the message at `position`, while the stage is CHECKING."""
    sought: bool = False
    """Whether the source was sent behind `position`, and nothing came since."""
    unjudged: bool = False
    """Whether no message came since it was begun: who knows whether the log has its beginning."""
    had_updates: bool = False
    """Whether the stores may have updates that the log lacks: of another log, or of this one before it went back."""

    def __post_init__(self) -> None:
        self.order = PartitionOrder(self.at)

    def begin(self, position: StoredPosition | None) -> None:
        """It is read from `seek_offset(position)` on, with no numbers of what came before."""
        self.begin_after(seek_offset(position))
        self.position = None
        if position is not None:
            self.position = self.applied = position.offset
            self.sought, self.unjudged, self.mark = True, False, position.mark
            if position.mark:
                self.stage = Stage.CHECKING

    def begin_after(self, offset: int) -> None:
        """It is read from after `offset` on, up to where no store keeps any position."""
        self.stage, self.mark, self.sought = Stage.FOLLOWED, "", False
        self.order = PartitionOrder(self.at)
        self.delivered.clear()
        self.ready.clear()
        self.handed = self.applied = self.reported = offset
        self.unjudged = offset < 0

    def other_mark(self, delivery: Delivery) -> str | None:
        """With the first delivery at the position of the stores, or beyond: the mark that the log has there, if it is
        not that of what they took from it.

        Of what retention has removed nothing can be known.
        """
        if self.stage is not Stage.CHECKING or self.position is None or delivery.offset < self.position:
            return None
        found = delivery.mark if delivery.offset == self.position else self.order.mark_at(self.position)
        if found not in ("", self.mark):
            return found
        self.stage = Stage.FOLLOWED
        return None

    def take(self, delivery: Delivery) -> Gap | None:
        """Bring a message into its order. Returns what the log has removed just before it."""
        position, gap = self.position, None
        if self.sought and position is not None and delivery.offset > position + 1:
            # Not even one that was applied before is there any more: what lay between went with it.
            gap = Gap(self.at, None, position + 1, delivery.offset - 1)
        self.handed, self.sought = delivery.offset, False
        if position is None or delivery.offset > position:
            self.order.push(delivery)
        else:
            self.order.learn(delivery)
        return gap

    def make_ready_to_pass(self) -> None:
        """After what is ready, stores that keep a position get the one behind messages of which nothing is applied. Or
        else poison would come again, to be put aside and reported, with each start until a row comes after it.
        """
        end = self.order.position
        if self.position_name is None or end is None:
            return
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

    @property
    def known_applied(self) -> int | None:
        """`applied`, None while that is not known."""
        return self.applied if self.stage is Stage.FOLLOWED else None

    @property
    def to_report(self) -> int | None:
        """`applied`, where that is to be reported. A source takes nothing beyond what it has handed over."""
        known = self.stage is Stage.FOLLOWED and self.applied <= self.handed
        return self.applied if known and self.applied != self.reported else None
