"""The best configuration of an analytic server by trying them: the efficiency tuples of a fleet that nobody here owns.

Coarse grids over m x o x d and all placements, tried one after another; a lane whose capacity, or whose latency at the
best throughput so far, rules it out costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hebe.planning.server_split.search import Configuration, Evaluate, Reached
from hebe.planning.server_split.space import FINE_BATCH_SIZES
from hebe.profile import EfficiencyTuple
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.simulation.analytic.analytic_server import AnalyticServer, Evaluation
from hebe.spec import SlaTarget


@dataclass(frozen=True, slots=True)
class SearchGrid:
    """What is tried: cores per worker, batch sizes on a host, co-located workers and fused items on an accelerator."""

    cores_per_worker: tuple[int, ...] = (1, 2, 3, 4, 6, 10)
    batch_sizes: tuple[int, ...] = FINE_BATCH_SIZES
    co_located: tuple[int, ...] = (1, 2, 3, 4)
    fused_items: tuple[int, ...] = (16_384,)


COARSE = SearchGrid((1, 2, 4), (8, 32, 128, 512), (1, 2), (16_384,))
"""For a first look: some per cent below what the full grid finds."""


def evaluation_on(server: AnalyticServer, sla: SlaTarget) -> Evaluate:
    """What `planning.server_split.search` asks, answered by an analytic server."""

    def evaluate(configuration: Configuration) -> Reached:
        evaluation = server.evaluate(configuration, sla)
        if evaluation.qps > 0:
            return Reached(evaluation.qps, evaluation.power_watts)
        unloaded_s = min(server.tail_latency_s(lane, 0.0, sla.percentile) for lane in configuration)
        return Reached(0.0, evaluation.power_watts, 1e3 * unloaded_s)

    return evaluate


def best_configuration(server: AnalyticServer, sla: SlaTarget, grid: SearchGrid | None = None) -> Evaluation:
    """The greatest latency-bounded throughput over all placements and m x o x d (Hercules' search space).

    An accelerator's lane leaves cores over, which run the whole model beside it. A `qps` of 0 says that no
    configuration keeps the SLA target.
    """
    grid = grid or SearchGrid()
    cores = server.server.cores
    best = _best_alone(server, sla, _host_lanes(cores, grid))
    if server.server.accelerator is None:
        return best
    for left_over in sorted({0, cores // 4, cores // 2, (3 * cores) // 4}):
        main = _best_alone(server, sla, _accelerator_lanes(cores - left_over, grid))
        if main.qps > 0:
            best = max(best, main, *_beside(server, sla, main, grid), key=lambda tried: tried.qps)
    return best


def best_one_stage(server: AnalyticServer, sla: SlaTarget, grid: SearchGrid | None = None) -> Evaluation:
    """The best configuration in which a query has one stage, so that one number by its size says how long it takes:
    the whole model on the host, or on the accelerator a query at a time. `AnalyticServer.query_stage` tells it."""
    return _best_alone(server, sla, _one_stage_lanes(server, grid or SearchGrid()))


def least_latency_s(server: AnalyticServer, percentile: float, grid: SearchGrid = COARSE) -> float:
    """The least tail latency without load of the configurations in which a query has one stage."""
    return min(server.tail_latency_s(lane, 0.0, percentile) for lane in _one_stage_lanes(server, grid))


def baseline_configuration(server: AnalyticServer, sla: SlaTarget, grid: SearchGrid | None = None) -> Evaluation:
    """Hercules' baseline: the whole model on every core with the best batch size (DeepRecSys); on an accelerator
    co-location without fusion (Baymax), and DeepRecSys on the cores that are left."""
    grid = grid or SearchGrid()
    cores = server.server.cores
    best = _best_alone(server, sla, _data_parallel_lanes(cores, grid))
    if server.server.accelerator is None:
        return best
    placement = Placement.HOT_SPARSE_ON_ACCELERATOR
    mains = [Lane(placement, 0, dense_workers=k) for k in grid.co_located if k <= cores]
    mains += [
        Lane(placement, workers, 1, batch_size, k)
        for k in grid.co_located
        for workers in sorted({1, cores // 4, cores // 2, cores - k})
        for batch_size in grid.batch_sizes
        if 0 < workers <= cores - k
    ]
    main = _best_alone(server, sla, mains)
    if main.qps <= 0:
        return best
    left_over = cores - main.lanes[0].cores
    both = [server.evaluate([*main.lanes, lane], sla) for lane in _data_parallel_lanes(left_over, grid)]
    return max(best, main, *both, key=lambda tried: tried.qps)


def efficiency_tuple(server: AnalyticServer, evaluation: Evaluation) -> EfficiencyTuple:
    """The tuple that planning takes."""
    settings = to_dict(evaluation.lanes if evaluation.qps > 0 else ())
    return EfficiencyTuple(
        server.model.name, server.server.name, evaluation.qps, evaluation.power_watts, settings, estimated=True
    )


def _best_alone(server: AnalyticServer, sla: SlaTarget, lanes: Iterable[Lane]) -> Evaluation:
    best: Evaluation | None = None
    for lane in lanes:
        # A thousandth more is not worth a change; and the first of equals has the fewest workers and cores.
        if best is None or server.reaches(lane, sla, max(1.001 * best.qps, 1e-9)):
            best = server.evaluate([lane], sla)
    if best is None:
        raise ValueError("no lane was given")
    return best


def _beside(server: AnalyticServer, sla: SlaTarget, main: Evaluation, grid: SearchGrid) -> Iterator[Evaluation]:
    left_over = server.server.cores - main.lanes[0].cores
    for lane in _model_lanes(left_over, grid):
        if (lane.workers + 1) * lane.cores_per_worker > left_over:
            yield server.evaluate([*main.lanes, lane], sla)


def _counts(most: int) -> list[int]:
    """Whole numbers up to `most`: all small ones, then every second, then each about a sixteenth more."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count += 1 if count < 6 else max(2, count // 16)
    return [*counts, most] if most > 0 else []


def _few_counts(most: int) -> list[int]:
    """Whole numbers up to `most`, each about half as much again as the one before."""
    return sorted({count for count in (1, 2, 3, 4, 6, 9, 13, most) if 0 < count <= most})


def _model_lanes(cores: int, grid: SearchGrid) -> Iterator[Lane]:
    for each in grid.cores_per_worker:
        for workers in _counts(cores // each):
            for batch_size in grid.batch_sizes:
                yield Lane(Placement.MODEL_ON_HOST, workers, each, batch_size)


def _one_stage_lanes(server: AnalyticServer, grid: SearchGrid) -> list[Lane]:
    lanes = list(_model_lanes(server.server.cores, grid))
    if server.server.accelerator is not None:
        placement = Placement.HOT_SPARSE_ON_ACCELERATOR
        lanes += [Lane(placement, 0, dense_workers=k) for k in grid.co_located if k <= server.server.cores]
    return lanes


def _data_parallel_lanes(cores: int, grid: SearchGrid) -> list[Lane]:
    if cores < 1:
        return []
    return [Lane(Placement.MODEL_ON_HOST, cores, 1, batch_size) for batch_size in grid.batch_sizes]


def _host_lanes(cores: int, grid: SearchGrid) -> Iterator[Lane]:
    yield from _model_lanes(cores, grid)
    for each in grid.cores_per_worker:
        for workers in _counts((cores - 1) // each):
            for dense in _counts(cores - workers * each):
                for batch_size in grid.batch_sizes:
                    yield Lane(Placement.PIPELINE_ON_HOST, workers, each, batch_size, dense)


def _accelerator_lanes(cores: int, grid: SearchGrid) -> Iterator[Lane]:
    fused: Sequence[int] = (*grid.fused_items, 0)
    for dense in grid.co_located:
        for items in fused:
            if dense <= cores:
                yield Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=dense, fused_items=items)
        for each in grid.cores_per_worker:
            for workers in _few_counts((cores - dense) // each):
                for placement in (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR):
                    for items in fused:
                        for batch_size in grid.batch_sizes:
                            yield Lane(placement, workers, each, batch_size, dense, items)
