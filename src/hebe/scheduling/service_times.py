"""How long batches take on the workers of one server, by what these run of the model, learned while serving."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.hand_over import HandOver
from hebe.scheduling.latency_prediction import LatencyPredictor
from hebe.scheduling.places import PlacedWorkers


class ServiceTimes:
    """A predictor for each stage. `profiles` is what is known beforehand.

    Where some workers run the whole model and others a pipeline, a query is taken to go one way or the other with the
    chances of their throughputs: what is done sooner takes the next batch sooner.
    """

    def __init__(self, workers: PlacedWorkers, profiles: Mapping[Stage, LatencyProfile] = MappingProxyType({})) -> None:
        self._workers = workers
        self._of = {stage: LatencyPredictor(profiles.get(stage)) for stage in Stage}

    def observe(self, stage: Stage, items: int, service_s: float) -> None:
        """A batch of `items` took so many seconds on a worker of this stage that nothing ran beside."""
        self._of[stage].observe(items, service_s)

    def batch_s(self, role: WorkerRole, items: int) -> float:
        """Seconds that a batch of `items` should take on a worker."""
        return self._of[role.stage].service_time_s(items)

    def rest_s(self, role: WorkerRole, items: int) -> float:
        """Seconds from the start on a worker that takes queries until the scores are there, if nothing waits."""
        seconds = self._of[role.stage].service_time_s(items)
        return seconds + self._of[Stage.DENSE].service_time_s(items) if role.stage is Stage.SPARSE else seconds

    def first_s(self, items: int) -> float:
        """Seconds of a batch on one of the workers that take queries, of which faster ones take more: as many places
        that all took so long would do together what these do.
        """
        stages = self._workers.stages
        if len(stages) == 1:
            return self._of[next(iter(stages))].service_time_s(items)
        share = self._sparse_share(items)
        sparse_s, whole_s = (self._of[stage].service_time_s(items) for stage in (Stage.SPARSE, Stage.WHOLE))
        return share * sparse_s + (1 - share) * whole_s

    def left_s(self, items: int, now: float) -> float:
        """Seconds that what runs on the places that take queries should still take; where they are unlike, as if it ran
        on places that all took `first_s` for a batch of `items`.
        """
        places = self._workers.places
        if len(self._workers.stages) == 1:
            return sum(place.left_s(now) for place in places)
        batches = sum(
            place.left_s(now) / self._of[stage].service_time_s(items)
            for place, stage in places.items()
            if place.running
        )
        return batches * self.first_s(items)

    def way_s(self, items: int) -> float:
        """Seconds of a batch from its start until its scores are there, if nothing waits."""
        return self.done_s(items, self.first_s(items), 0.0)

    def done_s(self, items: int, first_s: float, dense_ahead_s: float) -> float:
        """Seconds until a batch is done, whose first stage, or all of it, is done after `first_s`: a dense worker that
        is to run the second one has other work up to `dense_ahead_s`.
        """
        share = self._sparse_share(items)
        if not share:
            return first_s
        return first_s + share * (max(dense_ahead_s - first_s, 0.0) + self._of[Stage.DENSE].service_time_s(items))

    def _sparse_share(self, items: int) -> float:
        """The share of batches of `items` that go to sparse workers, which dense ones may hold back."""
        stages = self._workers.stages
        if len(stages) == 1 or Stage.SPARSE not in stages:
            return float(Stage.SPARSE in stages)
        sparse_s, whole_s = (self._of[stage].service_time_s(items) for stage in (Stage.SPARSE, Stage.WHOLE))
        dense_per_s = 0.0
        for dense in self._workers.dense.values():
            most = _most_items(dense[0].role, items)
            dense_per_s += len(dense) * most / items / self._of[Stage.DENSE].service_time_s(most)
        sparse_per_s = min(stages[Stage.SPARSE] / sparse_s, dense_per_s)
        return sparse_per_s / (sparse_per_s + stages[Stage.WHOLE] / whole_s)

    def dense_ahead_s(self, hand_over: HandOver, items_waiting: float, batch_size: int, now: float) -> float:
        """Seconds until the dense workers are done with what was handed on, what sparse workers run, and
        `items_waiting` that these will take first, in batches of `batch_size`, or as large as those are that fuse."""
        if Stage.SPARSE not in self._workers.stages:
            return 0.0
        lanes = self._workers.dense
        workers = sum(map(len, lanes.values()))
        if not workers:
            return 0.0
        sparse = [worker for worker in self._workers.running if worker.role.stage is Stage.SPARSE]
        waiting = items_waiting * self._sparse_share(batch_size)
        time_s = self._of[Stage.DENSE].service_time_s
        work_s = 0.0
        for lane, dense in lanes.items():
            items = waiting * len(dense) / workers + hand_over.items(lane)
            items += sum(worker.batch.items for worker in sparse if worker.batch and worker.role.lane == lane)
            most = _most_items(dense[0].role, batch_size)
            full, rest = divmod(items, most)
            work_s += full * time_s(most) + (time_s(int(rest)) if rest >= 1 else 0.0)
            work_s += sum(worker.place.left_s(now) for worker in dense)
        return work_s / workers


def _most_items(dense: WorkerRole, batch_size: int) -> int:
    """Of what is handed on in batches of `batch_size`, so many items make a batch of a dense worker."""
    return max(dense.batch_size, batch_size) if dense.fuse else batch_size
