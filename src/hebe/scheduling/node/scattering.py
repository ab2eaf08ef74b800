"""Spreading: a query that finds several places idle is split over them where that answers it sooner.

Each part pays a batch's fixed cost anew, and holds a place that another query may need. So spreading may add little
work as a rule; more on places that are not needed meanwhile, going by how many queries have found busy of late. And
what batches take does not tell all that it costs: workers have to be woken, and hinder each other as they begin and
end. That is learned from how much later than predicted queries are done that were spread, and that were not. As it is
the interpreter lock above all that they wait for, of which there is one, the others that run meanwhile are hindered as
much, and a query is spread only if that saves it more than what all of them pay.

Nor is there more than one thread that begins batches and hears of their ends, so that a part more keeps all others
waiting (`handling`): a query is spread only as far as each part saves it more than that.
"""

from __future__ import annotations

import math

from hebe.scheduling.node.batching import Handling
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.service_times import ServiceTimes

_WORTH_SPREADING_S = 0.5e-3
"""A query that one worker answers within this is not spread: waking the others costs as much as they save."""
_EXTRA_WORK = 1.25
"""Spreading may cost this multiple of the query's work on one worker."""
_SPARE_EXTRA_WORK = 2.0
"""And this multiple on places to spare, where each part more saves some time, which a batch's fixed cost does not."""
_WORTH_A_PART_S = 0.1e-3
"""The least that it must save then."""
_SPARE = 0.95
"""Places are to spare if with this probability those that are left are as many as the queries to come need."""
_RECENT = 32
"""Queries over which the number of busy places is averaged, with weights that fade."""
_TRY = 32
"""Of so many queries that might have been spread further but for what that is thought to cost, one is, twice as far:
what is known of small batches may be of a warm-up, and is not learned anew while none is run."""
_RARELY = 1024
"""And after `_TRY` queries that were spread, after twice as many and so on, in the end of so many, one is spread less:
of large batches the same is true. That one may be answered late."""


class Spreading:
    """Decides into how many parts a query is split. What it is given is the node's, which keeps it."""

    def __init__(self, workers: PlacedWorkers, service_times: ServiceTimes, handling: Handling) -> None:
        self._workers = workers
        self._service_times = service_times
        self._handling = handling
        self._busy_places = 1.0
        """As queries found them: about as many are busy with others at any time of a query's own."""
        self._spread_less = self._spread = 0
        """Queries that were not spread as far as places were idle, and those that were."""
        self._tries_at = _TRY
        """So many of the latter."""
        self._late_s: dict[bool, float] = {}
        """How much later than predicted queries are done that find nothing to wait for, by whether they are spread."""

    def parts(self, items: int, fewest: int, *, waits: bool, arrives: bool) -> int:
        """Into how many a query of `items`, which needs `fewest` by the size of batches, is split. It is not spread if
        others wait.

        One that `arrives`, rather than being asked about, is counted; now and then it is spread twice as far, to learn
        what that costs.
        """
        if arrives:
            places = len(self._workers.places)
            busy = places if waits else places - self._workers.idle_places
            self._busy_places += (busy - self._busy_places) / _RECENT
        most = fewest if waits else self._most_parts(items, fewest)
        if most == fewest:
            return fewest
        parts = self._parts_worth_it(items, fewest, most)
        if not arrives:
            return parts
        if parts < most:
            self._spread_less += 1
            return min(2 * parts, most) if self._spread_less % _TRY == 0 else parts
        self._spread += 1
        if self._spread < self._tries_at:
            return parts
        self._tries_at += min(self._tries_at, _RARELY)
        return parts - 1

    def observe(self, predicted_s: float, took_s: float, *, spread: bool) -> None:
        """A query that found nothing to wait for is done. A stall counts as at most twice what was predicted: it says
        little about the next query.
        """
        late_s = min(took_s - predicted_s, predicted_s)
        known_s = self._late_s.setdefault(spread, late_s)
        self._late_s[spread] = known_s + (late_s - known_s) / _RECENT

    @property
    def _cost_s(self) -> float:
        """Seconds that spreading costs a query beside what its parts take; none before both kinds were seen."""
        return max(self._late_s[True] - self._late_s[False], 0.0) if len(self._late_s) == 2 else 0.0

    def _parts_worth_it(self, items: int, fewest: int, most: int) -> int:
        parts, part_s, spare = most, self._part_s(items, most), self._spare_places
        part_cost_s = self._handling.cost_s
        whole_s = self._part_s(items, fewest)
        work_s = fewest * whole_s
        while parts > fewest:
            longer_s = self._part_s(items, parts - 1)
            saved_s = longer_s - part_s
            extra_work = _SPARE_EXTRA_WORK if parts <= spare and saved_s >= _WORTH_A_PART_S else _EXTRA_WORK
            if saved_s >= part_cost_s and parts * part_s <= extra_work * work_s:
                break
            parts, part_s = parts - 1, longer_s
        return parts if whole_s - part_s > self._cost_s * (1 + self._busy_places) else fewest

    def _part_s(self, items: int, parts: int) -> float:
        """Seconds of the largest of so many parts, from its start until its scores are there."""
        return self._service_times.ways.way_s(-(-items // parts))

    def _most_parts(self, items: int, fewest: int) -> int:
        """With a part for each idle place."""
        idle = self._workers.idle_places
        if idle <= fewest:
            return fewest
        ways = self._service_times.ways
        if (alone_s := ways.way_s(items)) < _WORTH_SPREADING_S:
            return fewest
        # One that is slower with a part than another with all of it is of no use.
        return max(min(ways.able(-(-items // idle), alone_s).idle_places, items), fewest)

    @property
    def _spare_places(self) -> int:
        """Idle places that others, which come like a Poisson process, will most likely not need meanwhile."""
        left, most = 0, self._workers.idle_places
        so_many = enough = math.exp(-self._busy_places)
        while enough < _SPARE and left < most:
            left += 1
            so_many *= self._busy_places / left
            enough += so_many
        return most - left
