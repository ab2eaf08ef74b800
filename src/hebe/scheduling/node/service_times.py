"""How long batches take on the workers of one server, by what each kind of them does, learned while serving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType

from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.lane_choice import FreeWay, Way, Ways
from hebe.scheduling.node.latency_prediction import LatencyPredictor
from hebe.scheduling.node.stage_queue import HandOver


class ServiceTimes:
    """A predictor for each role: workers of one lane and stage are alike, those of another lane have other cores, or an
    accelerator. `profiles` is what is known beforehand of a stage; `fuse`, whether queries may share a batch of workers
    whose role does not say.
    """

    def __init__(
        self,
        workers: PlacedWorkers,
        profiles: Mapping[Stage, LatencyProfile] = MappingProxyType({}),
        *,
        fuse: bool = True,
    ) -> None:
        self._workers = workers
        self._profiles = profiles
        self._fuse = fuse
        self._of: dict[WorkerRole, LatencyPredictor] = {}
        self._ways = Ways((), workers)
        """Worked out anew when the workers have changed, and its shares after an observation, not for each query."""
        self._among: tuple[object, object] = (None, None)
        self._shares_known = False

    def observe(self, role: WorkerRole, items: int, service_s: float) -> None:
        """A batch of `items` took so many seconds on a worker of this role that nothing ran beside."""
        self._predictor(role).observe(items, service_s)
        self._shares_known = False

    def forget_but(self, roles: Collection[WorkerRole]) -> None:
        """Forget all other roles, as after the server was split anew; unless there is no worker at all."""
        if roles:
            self._of = {role: predictor for role, predictor in self._of.items() if role in roles}

    def batch_s(self, role: WorkerRole, items: int) -> float:
        """Seconds that a batch of `items` should take on a worker."""
        return self._predictor(role).service_time_s(items)

    def rest_s(self, role: WorkerRole, items: int) -> float:
        """Seconds from the start on a worker until the scores are there, if nothing waits."""
        dense = self._dense_predictor(role)
        return self.batch_s(role, items) + (dense.service_time_s(items) if dense is not None else 0.0)

    def cost_s(self, role: WorkerRole) -> tuple[float, float]:
        """Seconds that a batch costs on its way, whatever its size, and that each of its items costs."""
        first, dense = self._predictor(role), self._dense_predictor(role)
        if dense is None:
            return first.fixed_s, first.per_item_s
        return first.fixed_s + dense.fixed_s, first.per_item_s + dense.per_item_s

    @property
    def ways(self) -> Ways:
        """Where queries may go, with the chances as of now."""
        workers = self._workers
        roles, dense = self._among
        if roles is not workers.roles or dense is not workers.dense:
            self._ways = Ways(tuple(self._way(role, places) for role, places in workers.roles.items()), workers)
            self._among = workers.roles, workers.dense
            self._shares_known = False
        if not self._shares_known:
            self._share_out()
        return self._ways

    def _way(self, role: WorkerRole, places: int) -> Way:
        fuses = self._fuse if role.fuse is None else role.fuse
        dense_workers = len(self._workers.dense.get(role.lane, ())) if role.stage is Stage.SPARSE else 0
        return Way(role, places, self._predictor(role), self._dense_predictor(role), dense_workers, fuses)

    def free(self, ways: Ways, hand_over: HandOver, batch_size: int, now: float) -> list[FreeWay]:
        """Each of them, with when it has nothing to do, going by what runs and was handed on."""
        dense_ahead_s = self.dense_ahead_s(hand_over, 0, batch_size, now, overdue=True)
        free_in_s = self._workers.free_in_s
        return [FreeWay(way, free_in_s(way.role, now), dense_ahead_s.get(way.role.lane, 0.0)) for way in ways.each]

    def dense_ahead_s(
        self, hand_over: HandOver, items_waiting: float, batch_size: int, now: float, *, overdue: bool = False
    ) -> Mapping[int, float]:
        """Seconds until the dense workers of each lane are done with what was handed on, what its sparse workers run,
        and the share of `items_waiting` that these will take first, in batches of `batch_size` where their role does
        not say, or as large as those are that fuse. With `overdue`, what runs counts as in `Place.free_in_s`."""
        ahead_s: dict[int, float] = {}
        if not self._workers.dense:
            return ahead_s
        of_sparse: Counter[int] = Counter()
        for worker in self._workers.running:
            if worker.batch and worker.role.stage is Stage.SPARSE:
                of_sparse[worker.role.lane] += worker.batch.items
        for way in self.ways.each:
            lane = way.role.lane
            dense = self._workers.dense.get(lane)
            if way.dense is None or not dense:
                continue
            items = items_waiting * way.share + hand_over.items(lane) + of_sparse[lane]
            most = _most_items(dense[0].role, way.role.batch_size or batch_size)
            full, rest = divmod(items, most)
            time_s = way.dense.service_time_s
            work_s = full * time_s(most) + (time_s(int(rest)) if rest >= 1 else 0.0)
            places = (worker.place for worker in dense)
            work_s += sum(place.free_in_s(now) if overdue else place.left_s(now) for place in places)
            ahead_s[lane] = work_s / len(dense)
        return ahead_s

    def _predictor(self, role: WorkerRole) -> LatencyPredictor:
        predictor = self._of.get(role)
        if predictor is None:
            predictor = self._of[role] = LatencyPredictor(self._profiles.get(role.stage))
        return predictor

    def _dense_predictor(self, role: WorkerRole) -> LatencyPredictor | None:
        """Of the workers to which those of this role hand on."""
        dense = self._workers.dense.get(role.lane) if role.stage is Stage.SPARSE else None
        return self._predictor(dense[0].role) if dense else None

    def _share_out(self) -> None:
        """Each way's share of the items, going by full batches; dense workers may hold sparse ones back, and with none
        of them left nothing goes there."""
        each = self._ways.each
        if len(each) > 1:
            usual = max(way.role.batch_size for way in each) or 1
            per_s = [self._items_per_s(way, way.role.batch_size or usual) for way in each]
            whole = sum(per_s)
            for way, own in zip(each, per_s, strict=True):
                way.share = own / whole if whole else 1.0 / len(each)
        self._shares_known = True

    def _items_per_s(self, way: Way, items: int) -> float:
        per_s = way.places * items / way.first.service_time_s(items)
        if way.role.stage is not Stage.SPARSE:
            return per_s
        dense = self._workers.dense.get(way.role.lane)
        if way.dense is None or not dense:
            return 0.0
        most = _most_items(dense[0].role, items)
        return min(per_s, len(dense) * most / way.dense.service_time_s(most))


def _most_items(dense: WorkerRole, batch_size: int) -> int:
    """Of what is handed on in batches of `batch_size`, so many items make a batch of a dense worker."""
    return max(dense.batch_size, batch_size) if dense.fuse else batch_size
