"""Distribution that may split a query over several workers: each query takes the cheapest way to be in time.

Kairos sends each query whole, so that some type must be fast enough for the largest. Here a query may go in equal
parts to workers of one type, which lets cheap types serve large queries, and lets a query that waited too long for one
worker still be in time on two. What keeps that from splitting too eagerly is a price for each type's time, the dual of
the fluid program over pool and query sizes (`planning.fluid_bound`): parts pay each batch's fixed cost anew, so they
are dearer than the whole wherever the whole can be in time on the same type.

At each event the first queries that wait are planned in order of arrival, on the times at which workers become free:

1. Each takes the cheapest way whose last part ends in time, nine times in ten or better (`latency_prediction`'s tail
   time). Parts start as workers become free, not all at once.
2. Where a query that could be in time, were nothing else planned, has no such way left, the dearest query planned so
   far, or itself if it is that, gives up its place: one is late either way, and so most work is saved (Moore and
   Hodgson's rule, Management Science 15(1), 1968).
3. Idle workers that the plan leaves without work take queries that wait for a cheaper type, where that costs little.

A query that can be in time within the safeguard only is sent while idle workers, which the plan leaves, let it. Queries
that cannot be in time any more yield to all others and are served while workers would be idle, in parts so short that
what comes meanwhile does not wait for them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hebe.query import SubQuery
from hebe.scheduling.fleet.distribution import Placements
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import WindowPolicy
from hebe.spec import SAFEGUARD

WINDOW_PER_WORKER = 3
"""Queries that are planned, per worker: those beyond wait in order of arrival."""
WORTH_FILLING = 1.5
"""An idle worker takes a query that costs at most this multiple of the query's cheapest way."""
IDLE_FOR_LATE = 0.2
"""Late queries are served while nothing else waits and more than this share of the workers is idle."""
LATE_PART = 0.2
"""Of the SLA, which a part of a late query takes at most, where that is to be had at `_MOST_LATE_WORK`."""
_MOST_LATE_WORK = 1.5
"""The parts of a late query may cost this multiple of its work in one: each pays a batch's fixed cost anew."""
_MOST_DROPS = 5
"""Queries that give up their place at one event: bounds the work of planning anew."""
_OVERDUE_S = 1e-6
"""A worker that is busy longer than predicted counts as free so soon, but not as idle."""


class _Way(NamedTuple):
    """A query in `parts` equal parts on workers of one type, `service_s` each. Ways sort by price."""

    price: float
    server_type: int
    parts: int
    service_s: float


@dataclass(slots=True, eq=False)
class _Waiting:
    sub_query: SubQuery
    ways: list[_Way]


@dataclass(slots=True, eq=False)
class _Planned:
    """What waits, the way it is to go, and how many of its parts find their worker idle now."""

    waiting: _Waiting
    way: _Way | None
    start_now: int = 0


class PricedSplitting(WindowPolicy[_Waiting]):
    """The policy above, for an SLA of `sla_s` seconds and queries of at most `largest` items.

    `prices` [types]: what a second of each type's worker is worth, in any unit, at least one of them positive; types of
    no worth in the plan may have price 0 only if the fleet has none of them. Without prices they are Kairos'
    heterogeneity coefficients, learned. `most_parts`: into how many parts a query may be split at a time.
    Raises ValueError for what is not positive, or no such prices.
    """

    def __init__(
        self,
        sla_s: float,
        prices: Sequence[float] | None = None,
        *,
        largest: int = 1000,
        most_parts: int = 4,
    ) -> None:
        if not sla_s > 0 or largest < 1 or most_parts < 1:
            raise ValueError(f"sla_s {sla_s}, largest {largest}, most_parts {most_parts}: all must be positive")
        if prices is not None and (min(prices, default=0.0) < 0 or not 0 < max(prices, default=0.0) < float("inf")):
            raise ValueError(f"prices {list(prices)}: none may be negative, one must be positive")
        super().__init__(WINDOW_PER_WORKER, self._with_ways, IDLE_FOR_LATE)
        self._prices = None if prices is None else [float(price) for price in prices]
        self._largest = largest
        self._most_parts = most_parts
        self._spare_s = (1 - SAFEGUARD) * sla_s
        self._late_part_s = LATE_PART * sla_s
        self._workers_of: list[int] = []

    def place(self, fleet: Fleet, now: float) -> Placements:
        """Plan the window and send what is planned to start now, until nothing follows into it from behind."""
        window = self._window
        window.refill(fleet)
        placed: Placements = []
        while window.entries and fleet.idle_workers:
            sent = len(placed)
            planned, free_s = self._plan(fleet, now)
            window.entries = self._send(planned, fleet, now, free_s, placed)
            if window.entries and fleet.idle_workers:
                window.entries = self._fill_idle(fleet, now, free_s, placed)
            left = len(window.entries)
            window.refill(fleet)
            if len(window.entries) == left:
                break
            for sub_query, worker in placed[sent:]:  # the next round must not take these workers for free at once
                worker.busy_until_s = now + fleet.service_time_s(worker.server_type, sub_query.items)
        while not window.entries and self._late.may_go(fleet):
            self._send_late(fleet, now, placed)
        return placed

    def fleet_changed(self, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """There are other ways now."""
        self._workers_of = [0] * len(fleet.types)
        for worker in fleet.workers:
            self._workers_of[worker.server_type] += 1
        self._window.resize(fleet)
        for waiting in self._window.entries:
            waiting.ways = self._ways(waiting.sub_query.items, fleet)

    # Planning

    def _with_ways(self, sub_query: SubQuery, fleet: Fleet) -> _Waiting:
        return _Waiting(sub_query, self._ways(sub_query.items, fleet))

    def _ways(self, items: int, fleet: Fleet) -> list[_Way]:
        """All ways for a query of `items`, the cheapest first."""
        ways = []
        prices = self._prices or fleet.coefficients(self._largest)
        for server_type, workers in enumerate(self._workers_of):
            if not workers:
                continue
            predictor, price = fleet.predictors[server_type], prices[server_type]
            for parts in range(1, min(self._most_parts, workers, items) + 1):
                service_s = predictor.tail_time_s(-(-items // parts), SAFEGUARD)
                ways.append(_Way(price * parts * service_s, server_type, parts, service_s))
        ways.sort()
        return ways

    def _plan(self, fleet: Fleet, now: float) -> tuple[list[_Planned], list[list[float]]]:
        """The way of each query in the window, and when workers of each type are free of all that, ascending."""
        first_free_s: list[list[float]] = [[] for _ in fleet.types]
        for worker in fleet.workers:
            at_s = max(worker.busy_until_s, now + _OVERDUE_S) if worker.taken else now
            first_free_s[worker.server_type].append(at_s)
        for of_type in first_free_s:
            of_type.sort()
        for drops_left in range(_MOST_DROPS, -1, -1):
            free_s = [of_type.copy() for of_type in first_free_s]
            planned: list[_Planned] = []
            for waiting in self._window.entries:
                way = _first_in_time(waiting, free_s, self._spare_s)
                if way is None and drops_left and _first_in_time(waiting, first_free_s, self._spare_s) is not None:
                    dearest = max(planned, key=_price_if_planned, default=None)
                    if dearest is not None and _price_if_planned(dearest) > waiting.ways[0].price:
                        self._late.add(dearest.waiting.sub_query)
                        self._window.entries.remove(dearest.waiting)
                        break
                planned.append(_Planned(waiting, way, _reserve(way, free_s, now) if way is not None else 0))
            else:
                break
        return planned, free_s

    def _send(
        self, planned: list[_Planned], fleet: Fleet, now: float, free_s: list[list[float]], placed: Placements
    ) -> list[_Waiting]:
        """Send what starts now; returns what is left to wait."""
        left = []
        for plan in planned:
            waiting, way = plan.waiting, plan.way
            part = waiting.sub_query
            if way is None:
                # Within the safeguard only: sent while it can be, as nothing may happen before its deadline.
                way = _idle_way(waiting.ways, part.query.deadline_s, fleet, free_s, now)
                if way is not None:
                    _reserve(way, free_s, now)
                    _send_parts(part, way, way.parts, fleet, placed)
                elif now + min(way.service_s for way in waiting.ways) > part.query.deadline_s:
                    self._late.add(part)
                else:  # a worker may be done sooner than predicted
                    left.append(waiting)
            elif not plan.start_now:
                left.append(waiting)
            else:
                rest = _send_parts(part, way, plan.start_now, fleet, placed)
                if rest is not None:
                    left.append(self._with_ways(rest, fleet))
        return left

    def _fill_idle(self, fleet: Fleet, now: float, free_s: list[list[float]], placed: Placements) -> list[_Waiting]:
        """Give idle workers that the plan does not need now to queries that wait for others; returns what is left."""
        left = []
        for waiting in self._window.entries:
            dearest = WORTH_FILLING * waiting.ways[0].price
            worth = [way for way in waiting.ways if way.price <= dearest]
            way = _idle_way(worth, waiting.sub_query.query.deadline_s - self._spare_s, fleet, free_s, now)
            if way is None:
                left.append(waiting)
            else:
                _reserve(way, free_s, now)
                _send_parts(waiting.sub_query, way, way.parts, fleet, placed)
        return left

    def _send_late(self, fleet: Fleet, now: float, placed: Placements) -> None:
        """A short part of the query that is late longest, to the idle type where it whole would cost least; all of it,
        if only the tail's time says that it will be late."""
        late = self._late.take()
        whole = [way for way in self._ways(late.items, fleet) if way.parts == 1 and fleet.idle(way.server_type)]
        kind, parts, part_s = whole[0].server_type, 1, whole[0].service_s
        if now + fleet.service_time_s(kind, late.items) > late.query.deadline_s:
            most_s = _MOST_LATE_WORK * part_s
            while part_s > self._late_part_s and parts < late.items:
                part_s = fleet.predictors[kind].tail_time_s(-(-late.items // (parts + 1)), SAFEGUARD)
                if (parts + 1) * part_s > most_s:
                    break
                parts += 1
        stop = late.start - (-late.items // parts)
        placed.append((SubQuery(late.query, late.start, stop), fleet.take(kind)))
        if stop < late.stop:
            self._late.put_back(SubQuery(late.query, stop, late.stop))


def _price_if_planned(planned: _Planned) -> float:
    return planned.waiting.ways[0].price if planned.way is not None else -1.0


def _first_in_time(waiting: _Waiting, free_s: list[list[float]], spare_s: float) -> _Way | None:
    """The cheapest way whose last part ends in time on workers that are free at `free_s` [types][workers]."""
    by_s = waiting.sub_query.query.deadline_s - spare_s
    for way in waiting.ways:
        if free_s[way.server_type][way.parts - 1] + way.service_s <= by_s:
            return way
    return None


def _idle_way(ways: list[_Way], by_s: float, fleet: Fleet, free_s: list[list[float]], now: float) -> _Way | None:
    """The cheapest way that ends in time on workers that are idle now and that the plan does not need."""
    for way in ways:
        idle = fleet.idle(way.server_type) >= way.parts and free_s[way.server_type][way.parts - 1] <= now
        if idle and now + way.service_s <= by_s:
            return way
    return None


def _reserve(way: _Way, free_s: list[list[float]], now: float) -> int:
    """Keep the workers of this way that are free first; returns how many of them are idle now."""
    free = free_s[way.server_type]
    taken = free[: way.parts]
    del free[: way.parts]
    for at_s in taken:
        insort(free, at_s + way.service_s)
    return bisect_right(taken, now)


def _send_parts(sub_query: SubQuery, way: _Way, parts: int, fleet: Fleet, placed: Placements) -> SubQuery | None:
    """Send the first `parts` of the way's; returns the rest of the query, None if that is all."""
    if way.parts == 1:
        placed.append((sub_query, fleet.take(way.server_type)))
        return None
    start = sub_query.start
    for part in range(1, parts + 1):
        stop = sub_query.start + sub_query.items * part // way.parts
        placed.append((SubQuery(sub_query.query, start, stop), fleet.take(way.server_type)))
        start = stop
    return SubQuery(sub_query.query, start, sub_query.stop) if parts < way.parts else None
