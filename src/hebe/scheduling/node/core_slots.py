"""The workers of one server, what they run, and the places that they share.

Workers on the same cores stand on one place, as the threads of a worker do: while one waits for the interpreter lock
another computes, and of two that compute each takes twice as long. So what runs in parallel is places, and time is
counted as theirs: the batches that run on a place are taken to share it evenly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hebe.query import Batch
from hebe.scheduling.events import Availability, Stage, WorkerChanged, WorkerRole


@dataclass(slots=True, eq=False)
class Place:
    """Some cores, and of the workers on them those that run a batch.

    `shared_until_s`: up to when the running batches were given their shares of its time.
    """

    cores: tuple[int, ...]
    running: list[PlacedWorker] = field(default_factory=list)
    shared_until_s: float = 0.0

    def share_out(self, now: float) -> None:
        """Give what runs its share of the time since the last call, during which the same batches ran."""
        for worker in self.running:
            worker.used_s += (now - self.shared_until_s) / len(self.running)
        self.shared_until_s = now

    def left_s(self, now: float) -> float:
        """Seconds that what runs here should still take."""
        running, since_s = self.running, now - self.shared_until_s
        if len(running) == 1:  # mostly, and asked of each place for each query
            (only,) = running
            return max(only.expected_s - only.used_s - since_s, 0.0)
        return sum(max(w.expected_s - w.used_s - since_s / len(running), 0.0) for w in running)

    def free_in_s(self, now: float) -> float:
        """As `left_s`, but what takes longer than it should is taken to need as much longer again: nobody waits for a
        worker that hangs.
        """
        running, since_s = self.running, now - self.shared_until_s
        if len(running) == 1:
            (only,) = running
            return abs(only.expected_s - only.used_s - since_s)
        return sum(abs(w.expected_s - w.used_s - since_s / len(running)) for w in running)


@dataclass(slots=True, eq=False)
class PlacedWorker:
    """A worker, and its batch if it runs one: since when, the seconds of its place that it should take, and has had.

    `handed`: of a dense worker's batch, the sparse workers' batches of which it is made.
    """

    worker_id: int
    place: Place
    role: WorkerRole
    state: Availability = Availability.UP
    batch: Batch | None = None
    handed: tuple[Batch, ...] = ()
    started_s: float = 0.0
    expected_s: float = 0.0
    used_s: float = 0.0


class PlacedWorkers:
    """All workers of a server.

    `up` are those that take queries, `places` where these stand, with the role of those there, `roles` on how many
    places each stands, all without sparse workers that have no dense ones to hand on to: `places_of` each role, and the
    `idle_places` are those on which nothing runs. Dense workers take what those hand on: `dense` are theirs by lane,
    those that drain among them.
    `draining` take nothing new. `take_queries` says whether a worker is left that took queries and whose batches can
    be finished, if it is only draining.
    """

    def __init__(self) -> None:
        self._known: dict[int, PlacedWorker] = {}
        self.up: list[PlacedWorker] = []
        self._up_of: list[list[PlacedWorker]] = []
        self.places: dict[Place, WorkerRole] = {}
        self.places_of: dict[WorkerRole, list[Place]] = {}
        self.roles: Mapping[WorkerRole, int] = {WorkerRole(): 1}
        self.idle_places = 0
        self.dense: dict[int, list[PlacedWorker]] = {}
        self.draining: list[PlacedWorker] = []
        self.take_queries = False

    def __len__(self) -> int:
        return len(self._known)

    def find(self, worker_id: int) -> PlacedWorker | None:
        """This worker, None if it is gone."""
        return self._known.get(worker_id)

    def change(self, event: WorkerChanged) -> PlacedWorker | None:
        """Take a worker in or note its new state; returns it, None if it was gone already."""
        worker = self._known.get(event.worker_id)
        if worker is None:
            if event.state is not Availability.UP:
                return None
            here = (other.place for other in self._known.values() if event.cores and other.place.cores == event.cores)
            worker = PlacedWorker(event.worker_id, next(here, None) or Place(event.cores), event.role)
            self._known[event.worker_id] = worker
        worker.state = event.state
        self._sort_out()
        return worker

    def remove(self, worker: PlacedWorker) -> None:
        """Forget a worker that runs nothing."""
        del self._known[worker.worker_id]
        self._sort_out()

    def _sort_out(self) -> None:
        self.dense = {}
        for worker in self._known.values():
            if worker.role.stage is Stage.DENSE:
                self.dense.setdefault(worker.role.lane, []).append(worker)
        self.up = [
            worker
            for worker in self._known.values()
            if worker.state is Availability.UP and worker.role.stage is not Stage.DENSE
        ]
        self.draining = [worker for worker in self._known.values() if worker.state is Availability.DRAINING]
        self.take_queries = any(
            worker.role.stage is Stage.WHOLE or (worker.role.stage is Stage.SPARSE and worker.role.lane in self.dense)
            for worker in self._known.values()
        )
        self.places = {
            worker.place: worker.role
            for worker in self.up
            if worker.role.stage is Stage.WHOLE or worker.role.lane in self.dense  # else nothing comes of its batches
        }
        self.places_of = {}
        for place, role in self.places.items():
            self.places_of.setdefault(role, []).append(place)
        self.roles = {role: len(places) for role, places in self.places_of.items()} or self.roles
        self.idle_places = sum(not place.running for place in self.places)
        up_of: dict[WorkerRole, list[PlacedWorker]] = {}
        for worker in self.up:
            up_of.setdefault(worker.role, []).append(worker)
        self._up_of = list(up_of.values())

    def start(self, worker: PlacedWorker, batch: Batch, expected_s: float, now: float) -> None:
        """Let an idle worker run `batch`, which alone on its place should take `expected_s`."""
        place = worker.place
        if not place.running and place in self.places:
            self.idle_places -= 1
        place.share_out(now)
        place.running.append(worker)
        worker.batch, worker.started_s, worker.expected_s, worker.used_s = batch, now, expected_s, 0.0

    def end(self, worker: PlacedWorker, now: float) -> float:
        """Let it run nothing any more; returns which part of its place's time the batch had, 1 if no other ran beside
        it."""
        place = worker.place
        place.share_out(now)
        place.running.remove(worker)
        if not place.running and place in self.places:
            self.idle_places += 1
        worker.batch = None
        return worker.used_s / (now - worker.started_s) if now > worker.started_s else 1.0

    @property
    def every_role(self) -> set[WorkerRole]:
        """Of all that are known."""
        return {worker.role for worker in self._known.values()}

    def free_in_s(self, role: WorkerRole, now: float) -> float:
        """Seconds until the first place of this role, of those that take queries, should have nothing to do."""
        first_s = math.inf
        for place in self.places_of.get(role, ()):
            if not place.running:
                return 0.0
            first_s = min(first_s, place.free_in_s(now))
        return first_s

    @property
    def running(self) -> list[PlacedWorker]:
        """Those with a batch."""
        return [worker for worker in self._known.values() if worker.batch is not None]

    @property
    def pipelines_run(self) -> bool:
        """Whether sparse or dense workers run anything, of those that queries may go to."""
        pipelines = any(role.stage is Stage.SPARSE for role in self.roles)
        return pipelines and any(worker.role.stage is not Stage.WHOLE for worker in self.running)

    def feeds(self, lane: int) -> bool:
        """Whether a sparse worker of this lane is left, which may hand something on."""
        return any(w.role.stage is Stage.SPARSE and w.role.lane == lane for w in self._known.values())

    @property
    def idle(self) -> list[tuple[PlacedWorker, int]]:
        """Of each role some workers of which could start a batch: the one that should, as the least runs beside it, and
        how many they are.
        """
        found: list[tuple[PlacedWorker, int]] = []
        for of_role in self._up_of:
            first: PlacedWorker | None = None
            least = count = 0
            for worker in of_role:
                if worker.batch is None:
                    count += 1
                    if first is None or (least and len(worker.place.running) < least):
                        first, least = worker, len(worker.place.running)
            if first is not None:
                found.append((first, count))
        return found
