"""All the ways in which one server can be split for a model, by model-, op- and data-parallelism (Hercules, section
IV.B), and which of them are one step apart: the neighbourhoods that a search walks through (Algorithm 1 and Figure 12).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hebe.planning.error import PlanningError
from hebe.server_configuration import Lane, Placement

BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)
"""What is tried of a real server where nobody says: a factor of two apart, since less of one is hard to tell from the
noise of a measurement."""

FINE_BATCH_SIZES = (4, 8, *BATCH_SIZES)
"""Of a modelled server, which has no noise and is asked in no time."""


def host_placements(cores: int) -> tuple[Placement, ...]:
    """The placements without an accelerator on a server of so many cores: a pipeline takes two."""
    return (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST)[: 1 if cores < 2 else 2]


@dataclass(frozen=True, slots=True)
class ParallelismSpace:
    """All that may be tried on a server of `cores` cores: Psp(M + D + O) of each of `placements`.

    `batch_sizes` in items, ascending. On an accelerator `co_located` workers, and `fused_items` of a batch, 0 for a
    query at a time; both ascending. `cores_per_worker`: which are tried, all where it is empty. `most_spare`: how many
    cores a host's lanes may leave beside those that are too few for a further worker, all of them where it is None: on
    many cores a space is large.
    Raises `PlanningError` where there is nothing of one of them; a placement may still take more cores than there are.
    """

    cores: int
    batch_sizes: tuple[int, ...]
    placements: tuple[Placement, ...] = (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST)
    co_located: tuple[int, ...] = (1, 2, 3, 4)
    fused_items: tuple[int, ...] = (0, 256, 1024, 4096, 16_384)
    cores_per_worker: tuple[int, ...] = ()
    most_spare: int | None = None

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise PlanningError(f"cores is {self.cores}: must be at least 1")
        for name in ("batch_sizes", "co_located", "fused_items"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)):
                raise PlanningError(f"{name} is {list(values)}: give at least one value, in ascending order")
        if not self.placements:
            raise PlanningError("placements is empty: give at least one")

    def __contains__(self, lane: Lane) -> bool:
        return lane.cores <= self.cores

    @property
    def on_accelerator(self) -> bool:
        """Whether the accelerator takes part in any placement."""
        return any(placement.on_accelerator for placement in self.placements)

    def holds(self, configuration: Sequence[Lane]) -> bool:
        """Whether it is one that may be tried: a lane of this space, or beside an accelerator's one that runs on the
        cores which that leaves."""
        main, *beside = configuration
        placements = [main.placement in self.placements]
        placements += [main.placement.on_accelerator and not lane.placement.on_accelerator for lane in beside]
        return (
            all(placements)
            and sum(lane.cores for lane in configuration) <= self.cores
            and all(lane.batch_size in self.batch_sizes for lane in configuration if lane.workers)
            and (not main.placement.on_accelerator or self._holds_on_device(main))
        )

    def _holds_on_device(self, lane: Lane) -> bool:
        return lane.dense_workers in self.co_located and lane.fused_items in self.fused_items

    def first_lane(self, placement: Placement, cores_per_worker: int) -> Lane:
        """The least of a placement, where a search begins: a worker of each stage, the smallest batches. It may be
        outside of the space, if the cores do not suffice."""
        if placement.on_accelerator:
            dense, fused = self.co_located[0], self.fused_items[0]
        else:
            dense, fused = int(placement is Placement.PIPELINE_ON_HOST), 0
        return Lane(placement, 1, cores_per_worker, self.batch_sizes[0], dense, fused)

    def first_lanes(self, placement: Placement, cores_per_worker: int) -> list[Lane]:
        """Where a search begins, of what is in the space: the first lane, and before it one without sparse workers, as
        where all rows fit on an accelerator the host has nothing to do.
        """
        first = self.first_lane(placement, cores_per_worker)
        lanes = [first]
        if placement is Placement.HOT_SPARSE_ON_ACCELERATOR and cores_per_worker == 1:
            lanes.insert(0, replace(first, workers=0))
        return [lane for lane in lanes if lane in self]

    def lanes(self, placement: Placement) -> Iterator[Lane]:
        """Every lane of one placement."""
        second_stages: Iterable[tuple[int, int]] = [(0, 0)]
        if placement.on_accelerator:
            second_stages = itertools.product(self.co_located, self.fused_items)
        elif placement is Placement.PIPELINE_ON_HOST:
            second_stages = [(dense, 0) for dense in range(1, self.cores)]
        for dense, fused in second_stages:
            left = self.cores - dense
            if placement is Placement.HOT_SPARSE_ON_ACCELERATOR and left >= 0:
                yield Lane(placement, 0, 1, self.batch_sizes[0], dense, fused)
            for each in self.worker_cores(left):
                fewest = 1
                if self.most_spare is not None and not placement.on_accelerator:
                    fewest = max((left - self.most_spare) // each, 1)
                for workers, batch_size in itertools.product(range(fewest, left // each + 1), self.batch_sizes):
                    yield Lane(placement, workers, each, batch_size, dense, fused)

    def worker_cores(self, left: int) -> list[int]:
        """Cores per worker that are tried where workers have so many cores in all."""
        return [each for each in self.cores_per_worker or range(1, left + 1) if each <= left]

    def every_lane(self) -> Iterator[Lane]:
        """Those of all placements, none where the cores suffice for no lane."""
        return itertools.chain.from_iterable(map(self.lanes, self.placements))

    def size(self) -> int:
        """How many lanes there are."""
        return sum(1 for _ in self.every_lane())


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
