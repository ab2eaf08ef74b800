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

    Where some workers run the whole model and others a pipeline, a query is taken to go one way or the other with equal
    chances.
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
        """Seconds of a batch on one of the workers that take queries."""
        stages = self._workers.stages
        if len(stages) == 1:
            return self._of[stages[0]].service_time_s(items)
        return sum(self._of[stage].service_time_s(items) for stage in stages) / max(len(stages), 1)

    def way_s(self, items: int) -> float:
        """Seconds of a batch from its start until its scores are there, if nothing waits."""
        return self.first_s(items) + self.dense_s(items)

    def dense_s(self, items: int) -> float:
        """Seconds of a batch on a dense worker; 0 where none has to run."""
        stages = self._workers.stages
        if Stage.SPARSE not in stages:
            return 0.0
        return self._of[Stage.DENSE].service_time_s(items) / len(stages)

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
        waiting = items_waiting / len(self._workers.stages)
        time_s = self._of[Stage.DENSE].service_time_s
        work_s = 0.0
        for lane, dense in lanes.items():
            items = waiting * len(dense) / workers + hand_over.items(lane)
            items += sum(worker.batch.items for worker in sparse if worker.batch and worker.role.lane == lane)
            most = (dense[0].role.fuse and dense[0].role.batch_size) or batch_size
            full, rest = divmod(items, most)
            work_s += full * time_s(most) + (time_s(int(rest)) if rest >= 1 else 0.0)
            work_s += sum(worker.place.left_s(now) for worker in dense)
        return work_s / workers
