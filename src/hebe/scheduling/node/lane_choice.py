"""The ways that a query may go on one server, how long it takes where it may go several, and what an idle worker leaves
to workers of another lane, which would be done with it sooner though they are at work.

So a slow lane next to a fast one takes what stands further behind, or nothing: each query is done as soon as it can be,
by the work that is ahead of it on either (earliest finish time, as in list scheduling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hebe.scheduling.events import WorkerRole
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.latency_prediction import LatencyPredictor


@dataclass(slots=True)
class Way:
    """Workers of one role that take queries, on so many places, and the dense ones behind them, None if they run the
    whole model.

    `fuses`: whether several queries may share a batch. `share`: of the items that come, what goes this way.
    """

    role: WorkerRole
    places: int
    first: LatencyPredictor
    dense: LatencyPredictor | None = None
    dense_workers: int = 0
    fuses: bool = True
    share: float = 1.0

    def done_s(self, items: int, starts_s: float = 0.0, dense_ahead_s: float = 0.0, turns: int = 1) -> float:
        """Seconds until so many batches of `items`, one after the other on the same place, are done, of which the first
        starts after `starts_s`. The dense workers have other work up to `dense_ahead_s`.
        """
        first_s = starts_s + turns * self.first.service_time_s(items)
        if self.dense is None:
            return first_s
        return max(dense_ahead_s, first_s) + self.dense.service_time_s(items)

    def done_behind_s(
        self, parts_ahead: int, items_ahead: int, items: int, starts_s: float, dense_ahead_s: float
    ) -> float:
        """`done_s` of `items` behind so many other parts of so many items in all, shared by the places: in full batches
        if they may be fused, else each in its own.
        """
        if not parts_ahead:
            return self.done_s(items, starts_s, dense_ahead_s)
        size, before, last = -(-items_ahead // parts_ahead), parts_ahead / self.places, items
        if self.fuses:
            own = items_ahead // self.places + items
            size = self.role.batch_size or own
            before = float((own - 1) // size)
            last = own - int(before) * size
        if before:
            starts_s += before * self.first.service_time_s(size)
            if self.dense is not None:
                dense_ahead_s += before * self.places * self.dense.service_time_s(size) / self.dense_workers
        return self.done_s(last, starts_s, dense_ahead_s)


class Ways:
    """Some of a server's ways, at least one. Of much work each takes what goes by its throughput: shares that make 1. A
    single query goes the one that is done with it soonest.
    """

    def __init__(self, each: tuple[Way, ...], workers: PlacedWorkers) -> None:
        self.each = each
        self.places = sum(way.places for way in each)
        self._workers = workers

    def able(self, items: int, allowed_s: float) -> Ways:
        """Those on which so many items take no longer than `allowed_s`: a worker leaves to faster ones what it would
        answer late. All, if there are none."""
        if len(self.each) == 1:
            return self
        able = [way for way in self.each if way.done_s(items) <= allowed_s]
        whole = sum(way.share for way in able)
        if not whole or len(able) == len(self.each):
            return self
        return Ways(tuple(replace(way, share=way.share / whole) for way in able), self._workers)

    @property
    def idle_places(self) -> int:
        """Places on which nothing runs."""
        if len(self.each) == len(self._workers.roles):
            return self._workers.idle_places
        return sum(not place.running for way in self.each for place in self._workers.places_of.get(way.role, ()))

    def first_s(self, items: int) -> float:
        """Seconds of a batch on one of the workers that take queries, of which faster ones take more: as many places
        that all took so long would do together what these do.
        """
        return sum(way.share * way.first.service_time_s(items) for way in self.each)

    def ahead_s(self, items: int, mean_items: int, most_items: int) -> float:
        """Seconds of one place's time that `items` take which come ahead, in parts of `mean_items` on the average: in
        full batches of `most_items` where they may be fused."""
        ahead_s = 0.0
        for way in self.each:
            size = most_items if way.fuses else max(min(mean_items, most_items), 1)
            full, rest = divmod(items, size)
            ahead_s += way.share * full * way.first.service_time_s(size)
            if rest:
                ahead_s += way.share * way.first.service_time_s(rest)
        return ahead_s

    def left_s(self, items: int, now: float) -> float:
        """Seconds that what runs on the places should still take; where they are unlike, as if it ran on places that
        all took `first_s` for a batch of `items`.
        """
        places_of = self._workers.places_of
        left_s = [sum(place.left_s(now) for place in places_of.get(way.role, ())) for way in self.each]
        if len(left_s) == 1:
            return left_s[0]
        batches = sum(each_s / way.first.service_time_s(items) for way, each_s in zip(self.each, left_s, strict=True))
        return batches * self.first_s(items)

    def way_s(self, items: int) -> float:
        """Seconds of a batch from its start until its scores are there, if nothing waits."""
        if len(self.each) == 1:
            return self.each[0].done_s(items)
        return min(way.done_s(items) for way in self.each)


_MOST = 64
"""Parts that are passed over in one turn: each is looked at."""
_FEW = 8
"""Parts that it costs little to look at with each event."""
_LOOKS = 8
"""So often within the time that it would take itself a worker that took nothing looks again, if nothing happens: those
that it waits for may take longer than they should."""


@dataclass(frozen=True, slots=True)
class FreeWay:
    """A way, with the seconds until the first of its places, and until its dense workers, have nothing to do."""

    way: Way
    free_in_s: float
    dense_ahead_s: float

    def done_s(self, items: int, parts: int = 1) -> float:
        """Seconds until a query, in so many parts of `items`, is done, if it is the next that the way takes."""
        turns = -(-parts // self.way.places)
        return self.way.done_s(items, self.free_in_s, self.dense_ahead_s, turns)


class PassingOver:
    """One turn of one idle worker, from the head of the queue on; `others` are the ways of other roles."""

    def __init__(self, others: Sequence[FreeWay]) -> None:
        self._others = others
        self._parts = self._items = 0
        """Passed over, and so ahead of what comes next on the other ways."""
        self._bound_s = math.inf
        """Until when what was taken would be done elsewhere: the batch that it is in is to be done by then."""
        self._shortest_s = math.inf
        """What this worker would take for what it passed over, at least."""

    @property
    def is_over(self) -> bool:
        """Whether it has looked at enough."""
        return self._parts >= _MOST

    def leaves(self, items: int, done_s: float, budget_s: float) -> bool:
        """Whether it passes over the part that is next, of `items`: with it the worker would be done with its batch
        after `done_s`. No part is left to workers that would be done with it after `budget_s`.
        """
        elsewhere_s = min(
            each.way.done_behind_s(self._parts, self._items, items, each.free_in_s, each.dense_ahead_s)
            for each in self._others
        )
        if done_s <= min(elsewhere_s, self._bound_s) or elsewhere_s > budget_s:
            self._bound_s = min(self._bound_s, max(elsewhere_s, done_s))
            return False
        self._parts += 1
        self._items += items
        self._shortest_s = min(self._shortest_s, done_s)
        return True

    @property
    def looks_again_s(self) -> float:
        """Seconds after which the worker should look again if it took nothing; inf if it passed over nothing."""
        return self._shortest_s / _LOOKS

    @property
    def looked_at_few(self) -> bool:
        """Whether it may look again sooner, whenever something happens."""
        return self._parts <= _FEW
