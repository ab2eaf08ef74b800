"""What configurations of a server should reach, from measured service times: which of them are worth measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.profile import LatencyProfile
from hebe.profiling.files.points import TimeBatches
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.simulation.node.profiled_server import ProfiledServer
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import QuerySizes

_STEP = 4
"""From one batch size that is timed to the next."""
_EACH = 4
"""So many cores per worker at most are each timed."""


def predictor(
    time_batches: TimeBatches,
    space: ParallelismSpace,
    sizes: QuerySizes,
    sla: SlaTarget,
    *,
    on_run: Callable[[], object] | None = None,
) -> ProfiledServer:
    """A predictor for all of `space`: `time_batches` times some sizes on workers of each kind, with one worker of each
    stage at work and with as many as there is room for, which takes seconds for a kind; queries have these `sizes`.
    `on_run` is called after each run that is simulated.
    """
    profiles: dict[tuple[Placement, int], dict[int, dict[Stage, LatencyProfile]]] = {}
    batch_sizes = _timed(space.batch_sizes)
    for lane in _lanes(space):
        of_kind = profiles.setdefault((lane.placement, lane.cores_per_worker), {})
        of_kind.setdefault(lane.cores, {}).update(time_batches(lane, batch_sizes))
    return ProfiledServer(profiles, sizes, sla, on_run=on_run)


def _timed(batch_sizes: tuple[int, ...]) -> list[int]:
    """A factor apart, from the largest down to less than the smallest: queries' last batches are not full."""
    timed = [batch_sizes[-1]]
    while timed[-1] >= batch_sizes[0] and timed[-1] > 1:
        timed.append(max(timed[-1] // _STEP, 1))
    return timed[::-1]


def _lanes(space: ParallelismSpace) -> Iterator[Lane]:
    """For each placement, and cores per worker up to `_EACH` and then a factor of two apart, the fewest workers that
    there can be, and most of them, which suffice where all lanes of the space use nearly all cores; beside an
    accelerator's lane those of the host may take the cores that it leaves.
    """
    left = space.cores - 1 if space.on_accelerator else 0
    beside = host_placements(left) if left else ()
    for placement in dict.fromkeys((*space.placements, *beside)):
        largest = space.batch_sizes[-1]
        fused = max(space.fused_items) if placement.on_accelerator else 0
        most_dense = max(space.co_located) if placement.on_accelerator else space.cores
        if placement is Placement.HOT_SPARSE_ON_ACCELERATOR:
            for dense in sorted({1, min(most_dense, space.cores)}):
                yield Lane(placement, 0, 1, largest, dense, fused)
        least_dense = 0 if placement is Placement.MODEL_ON_HOST else 1
        for each in _apart(space.worker_cores(space.cores - least_dense)):
            if not least_dense:
                counts = {(1, 0), (space.cores // each, 0)}
            else:
                workers = max(space.cores // (2 * each), 1)
                counts = {(1, 1), (workers, min(space.cores - workers * each, most_dense))}
            for workers, dense in [max(counts)] if space.most_spare is not None else sorted(counts):
                yield Lane(placement, workers, each, largest, dense, fused)


def _apart(counts: Sequence[int]) -> list[int]:
    """Of these, ascending, those up to `_EACH`, then each that is twice the last one or more, and the largest."""
    kept: list[int] = []
    for count in counts:
        if count <= _EACH or not kept or count >= 2 * kept[-1] or count == counts[-1]:
            kept.append(count)
    return kept
