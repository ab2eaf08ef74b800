"""What configurations of a server should reach, from measured service times: which of them are worth measuring."""

from __future__ import annotations

from hebe.planning.parallelism import Configuration
from hebe.planning.parallelism_space import ParallelismSpace
from hebe.profile import LatencyProfile
from hebe.profiling.evaluator import ServerEvaluator
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.simulation.profiled_server import ProfiledServer
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import QuerySizes


def predictor(live: ServerEvaluator, space: ParallelismSpace, sizes: QuerySizes, sla: SlaTarget) -> ProfiledServer:
    """A predictor for all of `space`: batches of the largest size are timed on a worker of each kind, which takes
    seconds; queries have these `sizes`.
    """
    profiles: dict[tuple[Placement, Stage, int], LatencyProfile] = {}
    for placement in space.placements:
        for configuration in _kinds(space, placement):
            for stage, profile in live.latency_profiles(configuration).items():
                cores = 1 if stage == Stage.DENSE else configuration[0].cores_per_worker
                profiles[placement, Stage(stage), cores] = profile
    return ProfiledServer(profiles, sizes, sla)


def _kinds(space: ParallelismSpace, placement: Placement) -> list[Configuration]:
    """One configuration for each kind of worker that a placement has, with the largest batches."""
    most = max(space.fused_items) if placement.on_accelerator else 0
    dense = 0 if placement is Placement.MODEL_ON_HOST else 1
    lanes = [
        Lane(placement, 1, cores, space.batch_sizes[-1], dense, most) for cores in range(1, space.cores - dense + 1)
    ]
    if placement is Placement.HOT_SPARSE_ON_ACCELERATOR:
        lanes.append(Lane(placement, 0, 1, space.batch_sizes[-1], dense, most))
    return [(lane,) for lane in lanes]
