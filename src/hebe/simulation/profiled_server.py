"""A server of which it was measured how long its workers take for a batch: what its configurations should reach.

The live server's scheduler runs in virtual time over the measured service times. Not in it: what workers on different
cores cost each other, and the front end. So it ranks configurations of a server rather than telling what they reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hebe.planning.parallelism import Configuration, Reached
from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.lane_roles import roles_of
from hebe.scheduling.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.simulation.capacity import largest_rate_qps
from hebe.simulation.node_run import ServiceTime, profiled_service, run_node
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import QuerySizes

Profiles = Mapping[tuple[Placement, Stage, int], LatencyProfile]
"""By where a worker stands, what it runs, and its cores."""

_QUERIES = 300
_TOLERANCE = 0.04
"""Few and coarse: what they decide is only what is measured first."""


class ProfiledServer:
    """An `Evaluate`: the latency-bounded throughput that the scheduler reaches in virtual time. Lanes on an accelerator
    take its dense workers' profiles as well. The same queries for every configuration and rate (common random numbers).

    Raises ValueError for a configuration of which no profile is known.
    """

    def __init__(self, profiles: Profiles, sizes: QuerySizes, sla: SlaTarget, seed: int = 0) -> None:
        self._profiles, self._sla = profiles, sla
        rng = np.random.default_rng(seed)
        self._sizes = sizes.draw(_QUERIES, rng)
        self._arrivals = np.cumsum(rng.exponential(1.0, _QUERIES))
        self._max_items = sizes.largest

    def __call__(self, configuration: Configuration) -> Reached:
        """What it should reach."""
        workers: list[WorkerRole] = []
        service: dict[Stage, ServiceTime] = {}
        for number, lane in enumerate(configuration):
            workers += self._add(lane, number, service)
        config = NodeConfig(configuration[0].batch_size, sla_s=self._sla.latency_s, percentile=self._sla.percentile)
        first = [role for role in workers if role.stage is not Stage.DENSE]
        items_per_s = sum(role.batch_size / service[role.stage](role.batch_size, 0.0) for role in first)
        guess_qps = 0.7 * items_per_s / float(self._sizes.mean())

        def holds(rate_qps: float) -> bool:
            run = run_node(self._arrivals / rate_qps, self._sizes, config, service, workers=workers)
            return run.attainment(self._sla.latency_s) >= self._sla.percentile / 100

        qps = largest_rate_qps(holds, guess_qps, _TOLERANCE)
        alone = max(self._sizes) if not qps else 0
        return Reached(qps, 0.0, 1e3 * sum(take(int(alone), 0.0) for take in service.values()) if alone else 0.0)

    def _add(self, lane: Lane, number: int, service: dict[Stage, ServiceTime]) -> Sequence[WorkerRole]:
        """The workers of a lane; their service times are put into `service`."""
        first, dense = roles_of(lane, number, self._max_items)
        service[first.stage] = self._service(lane.placement, first.stage, lane.cores_per_worker)
        if dense is None:
            return [first] * (lane.workers or lane.dense_workers)
        service[dense.stage] = self._service(lane.placement, dense.stage, 1)
        return [first] * lane.workers + [dense] * lane.dense_workers

    def _service(self, placement: Placement, stage: Stage, cores: int) -> ServiceTime:
        profile = self._profiles.get((placement, stage, cores))
        if profile is None:
            raise ValueError(f"no latency profile of {stage} workers on {cores} cores, {placement}")
        return profiled_service(profile, np.random.default_rng(1))
