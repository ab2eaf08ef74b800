"""What sparse workers hand on to dense ones: a bounded queue for each lane (Hercules, section IV.B, Figure 10).

A sparse worker starts a batch only where there is room for what will come of it. So a DenseNet that cannot keep up
holds the SparseNet back, and through it the queue in which queries wait and by which they are refused, rather than
filling memory with pooled rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from hebe.query import Batch


@dataclass(slots=True)
class _Lane:
    under_way: int = 0
    handed: deque[Batch] = field(default_factory=deque)


class HandOver:
    """The queues of all lanes. A batch is under way from its start on a sparse worker until a dense one takes it."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}

    def __bool__(self) -> bool:
        return any(lane.handed for lane in self._lanes.values())

    def under_way(self, lane: int) -> int:
        """Batches that sparse workers run, or have handed on."""
        return self._lanes[lane].under_way if lane in self._lanes else 0

    @property
    def handed(self) -> set[int]:
        """Batches that wait for a dense worker of any lane."""
        return {batch.batch_id for lane in self._lanes.values() for batch in lane.handed}

    def items(self, lane: int) -> int:
        """Items that wait for a dense worker."""
        return sum(batch.items for batch in self._lanes[lane].handed) if lane in self._lanes else 0

    def waits(self, lane: int) -> bool:
        """Whether anything waits for a dense worker."""
        return lane in self._lanes and bool(self._lanes[lane].handed)

    def begin(self, lane: int) -> None:
        """A sparse worker starts a batch."""
        self._lanes.setdefault(lane, _Lane()).under_way += 1

    def hand(self, lane: int, batch: Batch) -> None:
        """A sparse worker is done with `batch`."""
        self._lanes[lane].handed.append(batch)

    def give_up(self, lane: int) -> None:
        """Nothing will come of a batch that was under way."""
        self._lanes[lane].under_way -= 1

    def take(self, lane: int, most_items: int, *, fuse: bool) -> tuple[Batch, ...]:
        """What a dense worker runs next: the first batch, with `fuse` as many of the next as make up `most_items`."""
        handed = self._lanes[lane].handed
        taken = [handed.popleft()]
        items = taken[0].items
        while fuse and handed and items + handed[0].items <= most_items:
            items += handed[0].items
            taken.append(handed.popleft())
        self._lanes[lane].under_way -= len(taken)
        return tuple(taken)

    def put_back(self, lane: int, batches: tuple[Batch, ...]) -> None:
        """The worker that took these is lost: they are next again."""
        self._lanes[lane].handed.extendleft(reversed(batches))
        self._lanes[lane].under_way += len(batches)

    def drop_but(self, lanes: Collection[int]) -> list[Batch]:
        """Forget what waits in other lanes than these; returns it."""
        dropped: list[Batch] = []
        for number, lane in self._lanes.items():
            if number not in lanes:
                dropped += lane.handed
                lane.under_way -= len(lane.handed)
                lane.handed.clear()
        return dropped
