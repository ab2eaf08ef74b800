"""The fleet as the router sees it: which workers of which instances are idle, and until when the others are busy.

An instance runs as many sub-queries at a time as it has workers; workers of one server type are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hebe.profile import LatencyProfile
from hebe.query import SubQuery
from hebe.scheduling.node.latency_prediction import LatencyPredictor


class FleetWorker:
    """One worker of an instance: what it runs, and when it is predicted to be done (seconds, driver's clock)."""

    __slots__ = ("busy_until_s", "instance_id", "server_type", "sub_query", "taken")

    def __init__(self, instance_id: int, server_type: int) -> None:
        self.instance_id = instance_id
        self.server_type = server_type
        self.sub_query: SubQuery | None = None
        self.busy_until_s = 0.0
        self.taken = False
        """Whether it runs a sub-query or has just been taken for one."""


class Fleet:
    """Workers by server type. `types` are the names, in the order of preference of policies that have none: base first.

    `profiles` are service times known beforehand, by name of the type; the rest is learned from what finishes.
    Raises ValueError for no types, or one named twice.
    """

    def __init__(self, types: Sequence[str], profiles: Mapping[str, LatencyProfile] | None = None) -> None:
        if not types or len(set(types)) != len(types):
            raise ValueError(f"server types {list(types)}: give at least one, each once")
        self.types = tuple(types)
        self.index = {name: at for at, name in enumerate(self.types)}
        known = profiles or {}
        self.predictors = [LatencyPredictor(known.get(name)) for name in self.types]
        self.workers: list[FleetWorker] = []
        self._idle: list[list[FleetWorker]] = [[] for _ in self.types]
        self.idle_workers = 0

    def service_time_s(self, server_type: int, items: int) -> float:
        """Predicted seconds for a sub-query of `items` on a worker of the type."""
        return self.predictors[server_type].service_time_s(items)

    def coefficients(self, largest: int) -> list[float]:
        """Kairos' heterogeneity coefficient of each type (Definition 1): the shortest predicted time of a query of the
        `largest` size over the type's own."""
        largest_s = [predictor.service_time_s(largest) for predictor in self.predictors]
        return [min(largest_s) / own_s for own_s in largest_s]

    def idle(self, server_type: int) -> int:
        """How many workers of the type are idle."""
        return len(self._idle[server_type])

    def take(self, server_type: int) -> FleetWorker:
        """An idle worker of the type, idle no longer. Raises IndexError if there is none."""
        worker = self._idle[server_type].pop()
        worker.taken = True
        self.idle_workers -= 1
        return worker

    def take_worker(self, worker: FleetWorker) -> None:
        """This idle worker, idle no longer. Raises ValueError if it is not idle."""
        self._idle[worker.server_type].remove(worker)
        worker.taken = True
        self.idle_workers -= 1

    def release(self, worker: FleetWorker) -> None:
        """A worker that is done is idle again."""
        worker.sub_query = None
        worker.taken = False
        self._idle[worker.server_type].append(worker)
        self.idle_workers += 1

    def add(self, instance_id: int, server_type: str, workers: int) -> list[FleetWorker]:
        """The new, idle workers of an instance. Raises KeyError for an unknown type."""
        kind = self.index[server_type]
        added = [FleetWorker(instance_id, kind) for _ in range(workers)]
        self.workers.extend(added)
        self._idle[kind].extend(added)
        self.idle_workers += workers
        return added

    def put_back(self, busy: Iterable[FleetWorker]) -> None:
        """Busy workers that were removed are there again."""
        self.workers.extend(busy)

    def remove(self, worker: FleetWorker) -> None:
        """Forget a worker, whatever it does."""
        self.workers.remove(worker)
        if not worker.taken:
            self.take_worker(worker)
