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
        self._share = 0.0
        """Of sparse workers among `_share_among`; worked out anew after an observation, not for each prediction."""
        self._share_among: Mapping[Stage, int] | None = None

    def observe(self, stage: Stage, items: int, service_s: float) -> None:
        """A batch of `items` took so many seconds on a worker of this stage that nothing ran beside."""
        self._of[stage].observe(items, service_s)
        self._share_among = None

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
        share = self._sparse_share()
        whole_s = self._of[Stage.WHOLE].service_time_s(items)
        return whole_s + share * (self._of[Stage.SPARSE].service_time_s(items) - whole_s)

    def left_s(self, items: int, now: float) -> float:
        """Seconds that what runs on the places that take queries should still take; where they are unlike, as if it ran
        on places that all took `first_s` for a batch of `items`.
        """
        places = self._workers.places
        if len(self._workers.stages) == 1:
            return sum(place.left_s(now) for place in places)
        left_s = dict.fromkeys(self._workers.stages, 0.0)
        for place, stage in places.items():
            left_s[stage] += place.left_s(now)
        batches = sum(seconds / self._of[stage].service_time_s(items) for stage, seconds in left_s.items())
        return batches * self.first_s(items)

    def way_s(self, items: int) -> float:
        """Seconds of a batch from its start until its scores are there, if nothing waits."""
        return self.done_s(items, self.first_s(items), 0.0)

    def done_s(self, items: int, first_s: float, dense_ahead_s: float) -> float:
        """Seconds until a batch is done, whose first stage, or all of it, is done after `first_s`: a dense worker that
        is to run the second one has other work up to `dense_ahead_s`.
        """
        if Stage.SPARSE not in self._workers.stages:
            return first_s
        dense_s = max(dense_ahead_s - first_s, 0.0) + self._of[Stage.DENSE].service_time_s(items)
        return first_s + self._sparse_share() * dense_s

    def _sparse_share(self) -> float:
        """The share of batches that go to sparse workers, going by full ones; dense workers may hold them back."""
        stages = self._workers.stages
        if len(stages) == 1:
            return float(Stage.SPARSE in stages)
        if self._share_among is not stages:
            self._share, self._share_among = self._sparse_share_now(), stages
        return self._share

    def _sparse_share_now(self) -> float:
        items = max(worker.role.batch_size for worker in self._workers.up if worker.role.stage is Stage.SPARSE) or 1
        dense_per_s = 0.0
        for dense in self._workers.dense.values():
            most = _most_items(dense[0].role, items)
            dense_per_s += len(dense) * most / items / self._of[Stage.DENSE].service_time_s(most)
        sparse_per_s = self._workers.stages[Stage.SPARSE] / self._of[Stage.SPARSE].service_time_s(items)
        whole_per_s = self._workers.stages[Stage.WHOLE] / self._of[Stage.WHOLE].service_time_s(items)
        sparse_per_s = min(sparse_per_s, dense_per_s)
        return sparse_per_s / (sparse_per_s + whole_per_s)

    def dense_ahead_s(self, hand_over: HandOver, items_waiting: float, batch_size: int, now: float) -> float:
        """Seconds until the dense workers are done with what was handed on, what sparse workers run, and
        `items_waiting` that these will take first, in batches of `batch_size`, or as large as those are that fuse."""
        if Stage.SPARSE not in self._workers.stages:
            return 0.0
        lanes = self._workers.dense
        workers = sum(map(len, lanes.values()))
        if not workers:
            return 0.0
        of_sparse = dict.fromkeys(lanes, 0)
        for worker in self._workers.running:
            if worker.role.stage is Stage.SPARSE and worker.role.lane in of_sparse:
                of_sparse[worker.role.lane] += worker.batch.items if worker.batch else 0
        waiting = items_waiting * self._sparse_share()
        time_s = self._of[Stage.DENSE].service_time_s
        work_s = 0.0
        for lane, dense in lanes.items():
            items = waiting * len(dense) / workers + hand_over.items(lane) + of_sparse[lane]
            most = _most_items(dense[0].role, batch_size)
            full, rest = divmod(items, most)
            work_s += full * time_s(most) + (time_s(int(rest)) if rest >= 1 else 0.0)
            work_s += sum(worker.place.left_s(now) for worker in dense)
        return work_s / workers


def _most_items(dense: WorkerRole, batch_size: int) -> int:
    """Of what is handed on in batches of `batch_size`, so many items make a batch of a dense worker."""
    return max(dense.batch_size, batch_size) if dense.fuse else batch_size
