"""How one server is split for a model: a search over model-, op- and data-parallelism under an SLA and a power budget
(Hercules, section IV.B, Algorithm 1).

What a configuration reaches is a function's to say, be it a measurement or a simulator. The search asks it as seldom
as it can, asks again where two candidates are within its noise, and notes all that it was told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from hebe.planning.error import PlanningError
from hebe.server_configuration import Lane, Placement

Configuration = tuple[Lane, ...]
"""One lane, or two side by side."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What a configuration reaches.

    `qps` is its latency-bounded throughput, 0 if it cannot keep the SLA target at all; `power_watts` is drawn at that
    load; `tail_latency_ms` is that of the lightest load, by which those that reach nothing are told apart.
    """

    qps: float
    power_watts: float = 0.0
    tail_latency_ms: float = math.inf


NOTHING = Reached(0.0)

Evaluate = Callable[[Configuration], Reached]
"""What a configuration reaches; asked again for the same one, it measures again."""


@dataclass(frozen=True, slots=True)
class ParallelismSpace:
    """All that may be tried on a server of `cores` cores: Psp(M + D + O) of each of `placements`.

    `batch_sizes` in items, ascending. On an accelerator `co_located` workers, and `fused_items` of a batch, 0 for a
    query at a time; both ascending. Raises `PlanningError` for a space without a configuration.
    """

    cores: int
    batch_sizes: tuple[int, ...]
    placements: tuple[Placement, ...] = (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST)
    co_located: tuple[int, ...] = (1, 2, 3, 4)
    fused_items: tuple[int, ...] = (0, 256, 1024, 4096, 16_384)

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

    def lanes(self, placement: Placement) -> Iterator[Lane]:
        """Every lane of one placement."""
        host_only = not placement.on_accelerator
        devices = [(0, 0)] if placement is Placement.MODEL_ON_HOST else []
        if placement is Placement.PIPELINE_ON_HOST:
            devices = [(dense, 0) for dense in range(1, self.cores)]
        elif not host_only:
            devices = list(itertools.product(self.co_located, self.fused_items))
        for dense, fused in devices:
            left = self.cores - dense
            if placement is Placement.HOT_SPARSE_ON_ACCELERATOR and left >= 0:
                yield Lane(placement, 0, 1, self.batch_sizes[0], dense, fused)
            for each in range(1, left + 1):
                for workers, batch_size in itertools.product(range(1, left // each + 1), self.batch_sizes):
                    yield Lane(placement, workers, each, batch_size, dense, fused)

    def size(self) -> int:
        """How many lanes there are."""
        return sum(1 for placement in self.placements for _ in self.lanes(placement))


@dataclass(frozen=True, slots=True)
class Limits:
    """Beside the SLA target, which is in what is reached: the provisioned power. `noise`: relative differences of
    throughput that say nothing; candidates so close are asked for up to `runs` times, and compared by their medians.
    """

    power_budget_watts: float = math.inf
    noise: float = 0.0
    runs: int = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a search: what was tried from where it stood, and what it took; None if it ended there."""

    candidates: tuple[Configuration, ...]
    taken: Configuration | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`best` is None if no configuration keeps both limits; `closest` is then the one that came closest.

    `tried` is every configuration that was asked for, in order, with what it reached (medians of several runs);
    `evaluations` counts the asking.
    """

    best: Configuration | None
    reached: Reached
    closest: Configuration
    tried: dict[Configuration, Reached]
    steps: tuple[Step, ...]
    evaluations: int


@dataclass(slots=True)
class _Trials:
    """What has been asked for, and answered."""

    evaluate: Evaluate
    limits: Limits
    runs: dict[Configuration, list[Reached]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def reached(self, configuration: Configuration) -> Reached:
        """What it reaches, by the median of its runs; asked for if it was not yet."""
        if configuration not in self.runs:
            self.runs[configuration] = [self.evaluate(configuration)]
        return _typical(self.runs[configuration])

    def keeps(self, configuration: Configuration) -> bool:
        reached = self.reached(configuration)
        return reached.qps > 0 and reached.power_watts <= self.limits.power_budget_watts

    def better(self, one: Configuration, other: Configuration) -> bool:
        """Whether `one` is the better of two: more throughput within limits, or else closer to them."""
        if self.keeps(one) and self.keeps(other):
            self._tell_apart(one, other)
        return self._rank(one) > self._rank(other)

    def best_of(self, candidates: Sequence[Configuration]) -> Configuration:
        """The best one; of equals, the first."""
        best = candidates[0]
        for candidate in candidates[1:]:
            if self.better(candidate, best):
                best = candidate
        return best

    def result(self) -> SearchResult:
        """Of all that was tried."""
        closest = max(self.runs, key=self._rank)
        best = closest if self.keeps(closest) else None
        tried = {configuration: _typical(runs) for configuration, runs in self.runs.items()}
        return SearchResult(
            best, tried[closest], closest, tried, tuple(self.steps), sum(len(runs) for runs in self.runs.values())
        )

    def _rank(self, configuration: Configuration) -> tuple[bool, float, float]:
        reached = self.reached(configuration)
        if self.keeps(configuration):
            return True, reached.qps, 0.0
        over_watts = max(reached.power_watts - self.limits.power_budget_watts, 0.0) if reached.qps > 0 else math.inf
        return False, -over_watts, -reached.tail_latency_ms

    def _tell_apart(self, one: Configuration, other: Configuration) -> None:
        while True:
            first, second = self.reached(one).qps, self.reached(other).qps
            if abs(first - second) > self.limits.noise * max(first, second):
                return
            fewest = min((one, other), key=lambda each: len(self.runs[each]))
            if len(self.runs[fewest]) >= self.limits.runs or not self.limits.noise:
                return
            self.runs[fewest].append(self.evaluate(fewest))


def gradient_search(
    space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None, *, refines: bool = True
) -> SearchResult:
    """Hercules' search: Algorithm 1 for each placement, and for the cores that an accelerator's lane leaves.

    For one more core per worker at a time: from the fewest workers and the smallest batches, take the best of what
    one step along each axis, and along several at once, reaches (three candidates where there are two axes), until none
    is better. The loop over cores per worker ends when its best falls. In an S-D pipeline dense workers are a third
    axis, by which both allotments come to equilibrium; beside an accelerator each step on the host is followed by a
    search over co-location and fusion there (Figure 12).
    """
    trials = _Trials(evaluate, limits or Limits())
    for placement in space.placements:
        best = _search_placement(space, placement, trials, ())
        if refines:
            starts = [best, _climb_batches(space, trials, ())] if placement is Placement.MODEL_ON_HOST else [best]
            best = _refine(space, trials, trials.best_of(starts))
        left = space.cores - sum(lane.cores for lane in best)
        if placement.on_accelerator and left > 0 and trials.keeps(best):
            beside = replace(space, cores=left)
            for other in (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST):
                if left > 1 or other is Placement.MODEL_ON_HOST:
                    _search_placement(beside, other, trials, best)
    return trials.result()


def deeprecsys_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """DeepRecSys' hill climbing: a worker on every core, larger batches until throughput falls (Psp(D))."""
    trials = _Trials(evaluate, limits or Limits())
    _climb_batches(space, trials, ())
    return trials.result()


def baymax_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """Baymax' co-location: more workers on the accelerator until throughput falls, queries one at a time; then
    DeepRecSys on the cores that are left. Raises `PlanningError` where the space has no accelerator.
    """
    on_device = [placement for placement in space.placements if placement.on_accelerator]
    if not on_device:
        raise PlanningError("co-location is for accelerators: the space has no placement on one")
    trials = _Trials(evaluate, limits or Limits())
    workers = 0 if Placement.HOT_SPARSE_ON_ACCELERATOR in on_device else 1
    best: Configuration | None = None
    for count in space.co_located:
        lane = Lane(on_device[-1], workers, 1, space.batch_sizes[-1], count)
        if lane not in space:
            break
        trials.reached((lane,))
        if best is not None and not trials.better((lane,), best):
            break
        best = (lane,)
    if best is None:
        raise PlanningError(f"{space.cores} cores cannot launch on an accelerator")
    left = space.cores - best[0].cores
    if left > 0 and trials.keeps(best):
        _climb_batches(replace(space, cores=left), trials, best)
    return trials.result()


def exhaustive_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """Every lane alone."""
    trials = _Trials(evaluate, limits or Limits())
    for placement in space.placements:
        for lane in space.lanes(placement):
            trials.reached((lane,))
    return trials.result()


def random_search(
    space: ParallelismSpace, evaluate: Evaluate, evaluations: int, seed: int, limits: Limits | None = None
) -> SearchResult:
    """So many lanes drawn from the space, without repeats."""
    trials = _Trials(evaluate, limits or Limits())
    every = [lane for placement in space.placements for lane in space.lanes(placement)]
    for place in np.random.default_rng(seed).permutation(len(every))[: max(evaluations, 1)].tolist():
        trials.reached((every[place],))
    return trials.result()


def _search_placement(
    space: ParallelismSpace, placement: Placement, trials: _Trials, beside: Configuration
) -> Configuration:
    """Algorithm 1's outer loop, over cores per worker, with the lanes of `beside` as they are."""
    best: Configuration | None = None
    for cores_per_worker in range(1, space.cores + 1):
        start = _origin(space, placement, cores_per_worker)
        if start not in space:
            break
        climbed = _climb(space, trials, beside, start)
        if best is not None and not trials.better(climbed, best):
            break
        best = climbed
    if best is None:
        raise PlanningError(f"{space.cores} cores are too few for {placement}")
    return best


def _climb(space: ParallelismSpace, trials: _Trials, beside: Configuration, start: Lane) -> Configuration:
    """Algorithm 1's inner loop: Psp(M + D) for one count of cores per worker."""
    starts = [start]
    if start.placement is Placement.HOT_SPARSE_ON_ACCELERATOR and start.cores_per_worker == 1:
        starts.insert(0, replace(start, workers=0))  # where all rows fit, the host has nothing to do
    origins = [(*beside, lane) for lane in starts]
    here = trials.best_of(origins)
    trials.steps.append(Step(tuple(origins), here))
    if start.placement.on_accelerator:
        here = _climb_device(space, trials, here)
    while True:
        candidates = [(*beside, lane) for lane in _steps_on_host(space, here[-1])]
        better = trials.best_of(candidates) if candidates else None
        if better is not None and not trials.better(better, here):
            better = None
        trials.steps.append(Step(tuple(candidates), better))
        if start.placement.on_accelerator and candidates:
            # What the host gains may show only when the accelerator takes more.
            ahead = [better] if better is not None else candidates
            better = trials.best_of([_climb_device(space, trials, candidate) for candidate in ahead])
            better = better if trials.better(better, here) else None
        if better is None:
            return here
        here = better


def _refine(space: ParallelismSpace, trials: _Trials, here: Configuration) -> Configuration:
    """On from where Algorithm 1 ended, by steps that it does not know: back along an axis, cores from sparse to dense
    workers or back, and other counts of cores per worker at the same allotment."""
    while True:
        candidates = [(*here[:-1], lane) for lane in dict.fromkeys(_steps_around(space, here[-1]))]
        better = trials.best_of(candidates) if candidates else None
        if better is None or not trials.better(better, here):
            trials.steps.append(Step(tuple(candidates), None))
            return here
        trials.steps.append(Step(tuple(candidates), better))
        here = better


def _climb_device(space: ParallelismSpace, trials: _Trials, here: Configuration) -> Configuration:
    """The search over co-location and fusion that follows each step of the host's."""
    while True:
        candidates = [(*here[:-1], lane) for lane in _steps_on_device(space, here[-1])]
        better = trials.best_of(candidates) if candidates else None
        if better is None or not trials.better(better, here):
            return here
        trials.steps.append(Step(tuple(candidates), better))
        here = better


def _climb_batches(space: ParallelismSpace, trials: _Trials, beside: Configuration) -> Configuration:
    """DeepRecSys: every core a worker, larger batches while that helps."""
    best: Configuration | None = None
    for batch_size in space.batch_sizes:
        here = (*beside, Lane(Placement.MODEL_ON_HOST, space.cores, 1, batch_size))
        trials.reached(here)
        if best is None or trials.better(here, best):
            best = here
        elif trials.keeps(best):
            break
    assert best is not None, "a space has a batch size"
    return best


def _origin(space: ParallelismSpace, placement: Placement, cores_per_worker: int) -> Lane:
    dense = 0 if placement is Placement.MODEL_ON_HOST else 1
    if placement.on_accelerator:
        dense = space.co_located[0]
    fused = space.fused_items[0] if placement.on_accelerator else 0
    return Lane(placement, 1, cores_per_worker, space.batch_sizes[0], dense, fused)


def _steps_on_host(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    axes = [_larger_batch, _more_workers]
    if lane.placement is Placement.PIPELINE_ON_HOST:
        axes.append(_more_dense_workers)
    yield from _steps(space, lane, axes)


def _steps_on_device(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    yield from _steps(space, lane, [_more_co_located, _more_fused])
    if lane.fused_items < space.fused_items[-1]:  # a bound that few queries fit into is worse than none
        yield replace(lane, fused_items=space.fused_items[-1])


def _steps_around(space: ParallelismSpace, lane: Lane) -> Iterator[Lane]:
    """What `_refine` tries."""
    workers, dense = lane.workers, lane.dense_workers
    moves: list[dict[str, int]] = [{"batch_size": each} for each in _neighbours(space.batch_sizes, lane.batch_size)]
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
        there = Lane(
            lane.placement,
            move.get("workers", workers),
            move.get("cores_per_worker", lane.cores_per_worker),
            move.get("batch_size", lane.batch_size),
            move.get("dense_workers", dense),
            move.get("fused_items", lane.fused_items),
        )
        if there in space and there != lane:
            yield there


def _neighbours(values: Sequence[int], value: int) -> list[int]:
    place = values.index(value)
    return [values[at] for at in (place - 1, place + 1) if 0 <= at < len(values)]


_Axis = Callable[[ParallelismSpace, Lane], Lane | None]


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
    larger = _next(space.batch_sizes, lane.batch_size)
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


def _typical(runs: Sequence[Reached]) -> Reached:
    """Medians."""
    if len(runs) == 1:
        return runs[0]
    return Reached(
        median(run.qps for run in runs),
        median(run.power_watts for run in runs),
        median(run.tail_latency_ms for run in runs),
    )
