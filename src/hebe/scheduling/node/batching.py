"""Fusing: whether a query that waits shares the batch of those before it.

All that wait save a batch's fixed cost by it, and what it takes to begin one and to hear of it (`handling`). All that
are in the batch already are answered later by what its items take. So the longer the queue, the larger batches are. To
fill them whenever something waits costs much where a full one takes a good part of the SLA target: in simulation, of
two workers that need 20 µs an item, batches of 1,024 and 20 ms, a third of the throughput.
"""

from __future__ import annotations

from collections.abc import Sequence

from hebe.query import SubQuery
from hebe.scheduling.events import WorkerRole
from hebe.scheduling.node.handling import Handling
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
