"""Fusing: whether a query that waits shares the batch of those before it.

All that wait save a batch's fixed cost by it, and what it takes to begin one and to hear of it (`Handling`). All that
are in the batch already are answered later by what its items take. So the longer the queue, the larger batches are. To
fill them whenever something waits costs much where a full one takes a good part of the SLA target: in simulation, of
two workers that need 20 µs an item, batches of 1,024 and 20 ms, a third of the throughput.

One thread begins batches and learns of their ends for all workers, one batch after the other. What that takes is seen
by how much later than its own time a batch is heard of. Where many batches are begun and heard of, they keep each other
waiting for that thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from hebe.query import SubQuery
from hebe.scheduling.events import WorkerRole
from hebe.scheduling.node.service_times import ServiceTimes

_TRY = 32
"""Of so many parts that were not to share a batch, one does: what a batch costs is learned from batches of several
sizes, and where all queries are alike there are no others."""


class Fusing:
    """Decides whether a batch is filled further. `service_times` and `handling` are the node's, which keeps them."""

    def __init__(self, service_times: ServiceTimes, handling: Handling) -> None:
        self._service_times = service_times
        self._handling = handling
        self._kept_out = 0

    def is_worth_it(self, role: WorkerRole, part: SubQuery, gathered: Sequence[SubQuery], waiting: int) -> bool:
        """Whether `part`, which is next of the queries that are `waiting`, is to share a batch of workers of this role
        with what was gathered for it.
        """
        fixed_s, item_s = self._service_times.cost_s(role)
        delayed = sum(other.query is not part.query for other in gathered)
        if (fixed_s + self._handling.takes_s) * waiting >= item_s * part.items * delayed:
            return True
        self._kept_out += 1
        return self._kept_out % _TRY == 0


_LEAST_S = 0.1e-3
"""To begin a batch and to hear of its end takes at least about this."""
_EASED = 0.0002
"""What it takes where nothing else is to be done is the least that it took of late, and so much of the difference more
with each batch."""
_RECENT = 32
"""Batches over which what it takes is averaged, with weights that fade."""


class Handling:
    """Learns it while serving; 0 before anything was observed, as in a simulation in which it takes no time.

    `of_late_s`: seconds beside a batch's own time, until it was heard of, waiting for others among them.
    """

    def __init__(self) -> None:
        self.of_late_s = self._least_s = 0.0
        self._batches = 0

    def observe(self, beside_s: float) -> None:
        """A batch took so much longer, from its start until it was heard of, than on its worker. A stall counts as
        little more than twice as much as is usual.
        """
        self._batches += 1
        beside_s = min(max(beside_s, 0.0), 2 * self.of_late_s + _LEAST_S)
        self.of_late_s += (beside_s - self.of_late_s) / min(self._batches, _RECENT)
        if self._batches > _RECENT:
            eased_s = self._least_s + _EASED * (self.of_late_s - self._least_s)
            self._least_s = min(self.of_late_s, eased_s)
        else:
            self._least_s = self.of_late_s

    @property
    def takes_s(self) -> float:
        """Seconds that it takes by itself, where no other batch is to be begun or heard of."""
        return min(self.of_late_s, max(self._least_s, _LEAST_S))

    @property
    def cost_s(self) -> float:
        """Seconds that a batch more costs all queries by it.

        Where the thread that does it takes a time t for each, and is busy for a share r of its time, what comes waits
        for t r / 2 (1 - r) (Pollaczek-Khinchine); with w for that over t, one more takes t (1 + w) itself, and has all
        others wait for t w (1 + 2 w) in all: of a queue, one customer more delays the others by the time that he takes,
        over and over while it lasts.
        """
        takes_s = self.takes_s
        if not takes_s:
            return 0.0
        waits = self.of_late_s / takes_s - 1
        return takes_s * (1 + 2 * waits * (1 + waits))
