"""A server of which it was measured how long its workers take for a batch: what its configurations should reach.

The live server's scheduler runs in virtual time over the measured service times. Not in it: what a query costs beside
its batches, and what two lanes cost each other. So it ranks configurations of a server rather than telling what they
reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence

import numpy as np

from hebe.planning.server_split.search import Configuration, Reached
from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.node.lane_roles import roles_of
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.simulation.fleet.capacity import in_one, most_late, narrowed_rate_qps
from hebe.simulation.node.node_run import profiled_service, run_node
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import QuerySizes

Profiles = Mapping[tuple[Placement, int], Mapping[int, Mapping[Stage, LatencyProfile]]]
"""Of the workers of one lane: by its placement and cores per worker, by how many cores the lane has, and by stage."""

_QUERIES = 300
_TOLERANCE = 0.04
"""Few and coarse: what they decide is only what is measured first."""


class ProfiledServer:
    """A `Prediction`: the latency-bounded throughput that the scheduler reaches in virtual time. The same queries for
    every configuration and rate (common random numbers).

    Between lanes of few cores and of many, of which profiles are known, service times are linear in the cores; between
    workers of few and of many cores, in one over their cores, as where a part of the work is shared out (Amdahl's law).
    Raises ValueError for a configuration of which no profile is known, or none of workers of as few or as many cores.
    """

    def __init__(
        self,
        profiles: Profiles,
        sizes: QuerySizes,
        sla: SlaTarget,
        seed: int = 0,
        *,
        on_run: Callable[[], object] | None = None,
    ) -> None:
        """`on_run` is called after each simulated run."""
        self._profiles, self._sla, self._on_run = profiles, sla, on_run
        rng = np.random.default_rng(seed)
        self._sizes = sizes.draw(_QUERIES, rng)
        self._arrivals = np.cumsum(rng.exponential(1.0, _QUERIES))
        self._max_items = sizes.largest

    def __call__(self, configuration: Configuration) -> Reached:
        """What it should reach."""
        return in_one(self.narrow(configuration))

    def narrow(self, configuration: Configuration) -> Generator[float, None, Reached]:
        """The same, one simulated run at a time: yields what it reaches at most, ever less, and the first at once."""
        lanes, profiles = self._workers(configuration)
        most_qps = sum(self._saturation_qps(lane, profiles) for lane in lanes)
        yield most_qps
        workers = [role for lane in lanes for role in lane]
        config = NodeConfig(configuration[0].batch_size, sla_s=self._sla.latency_s, percentile=self._sla.percentile)
        late = most_late(_QUERIES, self._sla)

        def holds(rate_qps: float) -> bool:
            if rate_qps > most_qps:  # a run so short may be over before its queue is too long
                return False
            service = {role: profiled_service(profiles[role], np.random.default_rng(1)) for role in profiles}
            run = run_node(self._arrivals / rate_qps, self._sizes, config, service, workers=workers, give_up_late=late)
            if self._on_run is not None:
                self._on_run()
            return run.attainment(self._sla.latency_s) >= self._sla.percentile / 100

        qps = yield from narrowed_rate_qps(holds, 0.7 * most_qps, _TOLERANCE)
        if qps:
            return Reached(qps)
        alone_s = dict.fromkeys(range(len(configuration)), 0.0)
        for role, profile in profiles.items():
            alone_s[role.lane] += profile.service_time_s(int(max(self._sizes)))
        return Reached(0.0, tail_latency_ms=1e3 * min(alone_s.values()))

    def _workers(self, configuration: Configuration) -> tuple[list[list[WorkerRole]], dict[WorkerRole, LatencyProfile]]:
        """Of each lane, and what they take."""
        profiles: dict[WorkerRole, LatencyProfile] = {}
        return [self._add(lane, number, profiles) for number, lane in enumerate(configuration)], profiles

    def _add(self, lane: Lane, number: int, profiles: dict[WorkerRole, LatencyProfile]) -> list[WorkerRole]:
        """The workers of a lane; their service times are put into `profiles`."""
        first, dense = roles_of(lane, number, self._max_items)
        profiles[first] = self._profile(lane, first.stage)
        if dense is None:
            return [first] * (lane.workers or lane.dense_workers)
        profiles[dense] = self._profile(lane, dense.stage)
        return [first] * lane.workers + [dense] * lane.dense_workers

    def _saturation_qps(self, lane: Sequence[WorkerRole], profiles: Mapping[WorkerRole, LatencyProfile]) -> float:
        """What the workers of a lane do that are always at work: in batches that do the most, where they may be fused
        or cut, and as much as the slower one of two stages.
        """
        of_stage: list[float] = []
        for role, count in Counter(lane).items():
            profile = profiles[role]
            if role.stage is Stage.WHOLE and role.fuse is False:
                query_s = float(np.mean([profile.service_time_s(int(size)) for size in self._sizes]))
            else:
                sizes = [role.batch_size, *(size for size in profile.batch_sizes if size < role.batch_size)]
                item_s = min(profile.service_time_s(size) / size for size in sizes)
                query_s = item_s * float(self._sizes.mean())
            of_stage.append(count / query_s)
        return min(of_stage)

    def _profile(self, lane: Lane, stage: Stage) -> LatencyProfile:
        known = {
            each: of_stage
            for (placement, each), by_cores in self._profiles.items()
            if placement is lane.placement
            and (of_stage := {cores: by_stage[stage] for cores, by_stage in by_cores.items() if stage in by_stage})
        }
        own = lane.cores_per_worker
        fewer, more = _around(own, known)
        if not (fewer and more):
            raise ValueError(
                f"no latency profile of {stage} workers of lanes with {own} cores per worker, {lane.placement}"
            )
        profile = _at(lane.cores, known[fewer])
        if fewer == more:
            return profile
        return _between(profile, _at(lane.cores, known[more]), (1 / fewer - 1 / own) / (1 / fewer - 1 / more))


def _around(count: int, known: Collection[int]) -> tuple[int, int]:
    """Of those that are known the next one up to `count`, and the next one from it on; 0 where there is none."""
    fewer = max((each for each in known if each <= count), default=0)
    return fewer, min((each for each in known if each >= count), default=0)


def _at(cores: int, known: Mapping[int, LatencyProfile]) -> LatencyProfile:
    """The profile for so many cores, of those that are known by cores; beyond them that of the last one."""
    fewer, more = _around(cores, known)
    if not (fewer and more) or fewer == more:
        return known[fewer or more]
    return _between(known[fewer], known[more], (cores - fewer) / (more - fewer))


def _between(one: LatencyProfile, other: LatencyProfile, share: float) -> LatencyProfile:
    """From `one` so far to `other`; both are of the same batch sizes."""

    def mixed(here: tuple[float, ...], there: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(a + share * (b - a) for a, b in zip(here, there, strict=True))

    return LatencyProfile(one.batch_sizes, mixed(one.service_s, other.service_s), mixed(one.spread_s, other.spread_s))
