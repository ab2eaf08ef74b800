"""Which lanes are one step from another: the neighbourhoods that the search for a server's split walks through
(Hercules, section IV.B, Algorithm 1 and Figure 12)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hebe.planning.server_split.space import ParallelismSpace
from hebe.server_configuration import Lane, Placement

_Axis = Callable[[ParallelismSpace, Lane], Lane | None]


def steps_on_host(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    """Larger batches, more workers, in a pipeline more dense workers: one step along each, and along several at once.

    With two axes these are Algorithm 1's three candidates.
    """
    axes = [_larger_batch, _more_workers]
    if lane.placement is Placement.PIPELINE_ON_HOST:
        axes.append(_more_dense_workers)
    yield from _steps(space, lane, axes)


def steps_on_device(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    """More co-located workers, more items fused, both; and as many items as may be."""
    yield from _steps(space, lane, [_more_co_located, _more_fused])
    if lane.fused_items < space.fused_items[-1]:  # a bound that few queries fit into is worse than none
        yield replace(lane, fused_items=space.fused_items[-1])


def steps_around(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    """Steps that Algorithm 1 does not know: back along an axis, cores from sparse to dense workers or back, and other
    counts of cores per worker at the same allotment. A lane may come twice."""
    workers, dense = lane.workers, lane.dense_workers
    moves: list[dict[str, Any]] = []
    if workers:
        moves += [{"batch_size": each} for each in _neighbours(space.batch_sizes, lane.batch_size)]
    moves += [{"workers": workers + step} for step in (-1, 1)]
    if lane.placement.on_accelerator:
        moves += [{"dense_workers": each} for each in _neighbours(space.co_located, dense)]
        moves += [{"fused_items": each} for each in _neighbours(space.fused_items, lane.fused_items)]
    if lane.placement is Placement.PIPELINE_ON_HOST:
        for step in (-1, 1):
            moves.append({"dense_workers": dense + step})
            moves.append({"workers": workers + step, "dense_workers": dense - step * lane.cores_per_worker})
            each = (space.cores - dense - step) // workers
            if each > 0:
                moves.append({"cores_per_worker": each, "dense_workers": dense + step})
    if workers:
        left = space.cores - dense
        moves += [{"cores_per_worker": each, "workers": left // each} for each in range(1, left + 1)]
    fewest = 0 if lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR else 1
    for move in moves:
        if move.get("workers", workers) < fewest or (dense and move.get("dense_workers", dense) < 1):
            continue
        there = replace(lane, **move)
        if not there.workers:  # then neither says anything
            there = replace(there, cores_per_worker=1, batch_size=space.batch_sizes[0])
        if there in space and there != lane:
            yield there


def _neighbours(values: Sequence[int], value: int) -> list[int]:
    place = values.index(value)
    return [values[at] for at in (place - 1, place + 1) if 0 <= at < len(values)]


def _steps(space: ParallelismSpace, lane: Lane, axes: Sequence[_Axis]) -> Iterator[Lane]:
    """One step along each axis, and along several at once."""
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            there: Lane | None = lane
            for axis in chosen:
                there = None if there is None else axis(space, there)
            if there is not None and there in space:
                yield there


def _larger_batch(space: ParallelismSpace, lane: Lane) -> Lane | None:
    larger = _next(space.batch_sizes, lane.batch_size) if lane.workers else None
    return None if larger is None else replace(lane, batch_size=larger)


def _more_workers(_space: ParallelismSpace, lane: Lane) -> Lane:
    return replace(lane, workers=lane.workers + 1)


def _more_dense_workers(_space: ParallelismSpace, lane: Lane) -> Lane:
    return replace(lane, dense_workers=lane.dense_workers + 1)


def _more_co_located(space: ParallelismSpace, lane: Lane) -> Lane | None:
    more = _next(space.co_located, lane.dense_workers)
    return None if more is None else replace(lane, dense_workers=more)


def _more_fused(space: ParallelismSpace, lane: Lane) -> Lane | None:
    more = _next(space.fused_items, lane.fused_items)
    return None if more is None else replace(lane, fused_items=more)


def _next(values: Sequence[int], value: int) -> int | None:
    return next((each for each in values if each > value), None)
