"""How one server is split for a model: a search over model-, op- and data-parallelism under an SLA and a power budget
(Hercules, section IV.B, Algorithm 1).

What a configuration reaches is a function's to say, be it a measurement or a simulator. The search asks it as seldom
as it can, asks again where two candidates are within its noise, and notes all that it was told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.server_split.space import ParallelismSpace, steps_around, steps_on_device, steps_on_host
from hebe.server_configuration import Lane, Placement

Configuration = tuple[Lane, ...]
"""One lane, or two side by side."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What a configuration reaches.

    `qps` is its latency-bounded throughput, 0 if it cannot keep the SLA target at all; `power_watts` is drawn at that
    load; `tail_latency_ms` is that of the lightest load, or where it reaches nothing what a large query takes alone, by
    which such ones are told apart. `low_qps` and `high_qps` bound the 95% confidence interval of `qps`, None where it
    is not known. `power_source` says where
    the watts are from, None where nobody said; `power_estimated` unless they were read. `bandwidth_bytes_per_s` is the
    memory traffic at that load, None where it is not known, and estimated likewise. `cpu_share` is the share, 0 to 1,
    of the cores' time that was used then; None where it is not known. `runs_of_nothing`: of the runs that this is
    typical of, those that reached nothing though it reaches something; the interval is of the others.
    """

    qps: float
    power_watts: float = 0.0
    tail_latency_ms: float = math.inf
    low_qps: float | None = None
    high_qps: float | None = None
    power_source: str | None = None
    power_estimated: bool = True
    bandwidth_bytes_per_s: float | None = None
    bandwidth_estimated: bool = True
    cpu_share: float | None = None
    runs_of_nothing: int = 0


Evaluate = Callable[[Configuration], Reached]
"""What a configuration reaches; asked again for the same one, it measures again."""
RUNS, QUICK_RUNS = 3, 2
"""How often a configuration is asked for at most, where it cannot be told from another; for a first look."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Beside the SLA target, which is in what is reached: the provisioned power. `noise`: relative differences of
    throughput that say nothing; candidates so close, or whose confidence intervals overlap, are asked for up to `runs`
    times, and compared by their medians. `latency_ms`: the SLA target's, by which a measurement of 0 is doubted; 0,
    where there is nothing to doubt.
    """

    power_budget_watts: float = math.inf
    noise: float = 0.0
    runs: int = RUNS
    latency_ms: float = 0.0

    def keeps(self, reached: Reached) -> bool:
        """Whether the SLA target was reached within the power budget."""
        return reached.qps > 0 and reached.power_watts <= self.power_budget_watts

    def doubts(self, run: Reached) -> bool:
        """Whether one run says too little to reject a configuration: nothing was reached, though without load it is
        within the SLA target, as where the machine stalled; or the watts are over the budget by no more than noise."""
        if run.qps <= 0:
            return run.tail_latency_ms <= self.latency_ms
        return 0 < run.power_watts - self.power_budget_watts <= self.noise * self.power_budget_watts

    def alike(self, one: Reached, other: Reached) -> bool:
        """Whether nothing tells which of them reaches more."""
        if self.noise and abs(one.qps - other.qps) <= self.noise * max(one.qps, other.qps):
            return True
        if one.low_qps is None or one.high_qps is None or other.low_qps is None or other.high_qps is None:
            return False
        return one.low_qps <= other.high_qps and other.low_qps <= one.high_qps


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a search: what was tried from `at`, where it stood, None where it began; and what it took, None if
    it ended there."""

    at: Configuration | None
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


LEADERS = 5
"""Of a search that compares nothing on its way, how many of the best are told apart at its end."""


@dataclass(slots=True)
class Trials:
    """What has been asked for, and answered. From `most_evaluations` on nothing is asked for again to tell it from
    another."""

    evaluate: Evaluate
    limits: Limits
    most_evaluations: float = math.inf
    runs: dict[Configuration, list[Reached]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @property
    def evaluations(self) -> int:
        """How often was asked."""
        return sum(len(runs) for runs in self.runs.values())

    def reached(self, configuration: Configuration) -> Reached:
        """What it reaches, by the median of its runs; asked for if it was not yet, and where that is not to be relied
        on, until most of as many runs as the limits allow agree on whether it keeps them."""
        if configuration not in self.runs:
            self.runs[configuration] = runs = [self.evaluate(configuration)]
            while len(runs) < self.limits.runs and any(map(self.limits.doubts, runs)):
                kept = sum(map(self.limits.keeps, runs))
                if 2 * max(kept, len(runs) - kept) > self.limits.runs:
                    break
                runs.append(self.evaluate(configuration))
        return typical(self.runs[configuration], self.limits.noise)

    def ask_fully(self, configuration: Configuration) -> None:
        """Ask until there are as many runs of it as the limits allow."""
        self.reached(configuration)
        while len(self.runs[configuration]) < self.limits.runs:
            self.runs[configuration].append(self.evaluate(configuration))

    def keeps(self, configuration: Configuration) -> bool:
        """Whether it keeps the SLA target and the power budget."""
        return self.limits.keeps(self.reached(configuration))

    def better(self, one: Configuration, other: Configuration) -> bool:
        """Whether `one` is the better of two: more throughput within limits, or else closer to them."""
        if one == other:
            return False
        if self.keeps(one) and self.keeps(other):
            self._tell_apart(one, other, self.limits.runs, self.most_evaluations)
        return self._rank(one) > self._rank(other)

    def best_of(self, candidates: Sequence[Configuration]) -> Configuration:
        """The best one; of equals, the first."""
        best = candidates[0]
        self.reached(best)  # also where there is no other to compare it with
        for candidate in candidates[1:]:
            if self.better(candidate, best):
                best = candidate
        return best

    def improvement(self, candidates: Sequence[Configuration], on: Configuration) -> Configuration | None:
        """The best of `candidates`; None where there is none, or none that is better than `on`."""
        if not candidates:
            return None
        best = self.best_of(candidates)
        return best if self.better(best, on) else None

    def goes_on(self, at: Configuration | None, there: Configuration, *, asks_again: bool = True) -> bool:
        """Step from `at`, None at the beginning, to `there` if that is better; whether it is. `asks_again` where they
        are within the noise; else the runs so far decide."""
        self.reached(there)
        better = at is None or (self.better(there, at) if asks_again else self._rank(there) > self._rank(at))
        self.steps.append(Step(at, (there,), there if better else None))
        return better

    def tell_leaders_apart(self) -> None:
        """Ask again for the best ones while nothing tells which of them is the best: up to `LEADERS` of them at a time,
        none a third time before all were asked a second time, and in all as often as that takes once. Whoever was lucky
        the first time is found out, and others lead."""
        most_evaluations = min(self.most_evaluations, self.evaluations + LEADERS * self.limits.runs)
        for runs in range(2, self.limits.runs + 1):
            asked = -1
            while asked < self.evaluations:
                asked = self.evaluations
                best, *rivals = sorted(self.runs, key=self._rank, reverse=True)[:LEADERS]
                for rival in filter(self.keeps, rivals):
                    self._tell_apart(rival, best, runs, most_evaluations)

    def result(self) -> SearchResult:
        """Of all that was tried."""
        closest = max(self.runs, key=self._rank)
        best = closest if self.keeps(closest) else None
        tried = {configuration: typical(runs, self.limits.noise) for configuration, runs in self.runs.items()}
        return SearchResult(best, tried[closest], closest, tried, tuple(self.steps), self.evaluations)

    def _rank(self, configuration: Configuration) -> tuple[bool, float, float, float]:
        """Larger is better: within the limits by throughput; else closer to the power budget, of those that are as
        close by throughput too; and of those that reach nothing, by latency."""
        reached = self.reached(configuration)
        if self.keeps(configuration):
            return True, 0.0, reached.qps, 0.0
        over_watts = max(reached.power_watts - self.limits.power_budget_watts, 0.0) if reached.qps > 0 else math.inf
        return False, -over_watts, reached.qps, -reached.tail_latency_ms

    def _tell_apart(self, one: Configuration, other: Configuration, runs: int, most_evaluations: float) -> None:
        """Ask again for both while they are alike: `runs` times each, and `most_evaluations` times in all, at most."""
        while self.limits.alike(self.reached(one), self.reached(other)):
            fewest = min((one, other), key=lambda each: len(self.runs[each]))
            if len(self.runs[fewest]) >= runs or self.evaluations >= most_evaluations:
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
    trials = Trials(evaluate, limits or Limits())
    climb(space, trials, refines=refines)
    return trials.result()


def climb(space: ParallelismSpace, trials: Trials, *, refines: bool = True) -> None:
    """What `gradient_search` does; what was tried before is not asked for again."""
    ends: list[Configuration] = []
    for placement in space.placements:
        best = _search_placement(space, placement, trials, ())
        if refines:
            starts = [best, _climb_batches(space, trials, ())] if placement is Placement.MODEL_ON_HOST else [best]
            best = _refine(space, trials, trials.best_of(starts))
        ends.append(best)
        left = space.cores - sum(lane.cores for lane in best)
        if placement.on_accelerator and left > 0 and trials.keeps(best):
            beside = replace(space, cores=left)
            for other in (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST):
                if left > 1 or other is Placement.MODEL_ON_HOST:
                    ends.append(_search_placement(beside, other, trials, best))
    trials.best_of(ends)  # whichever was lucky, of those that are alike


def beating(
    found: SearchResult, others: Mapping[Configuration, Sequence[Reached]], limits: Limits
) -> list[Configuration]:
    """Which of `others` beat what was found beyond the noise, by the median of their runs, from the best one on."""
    ahead: dict[Configuration, float] = {}
    for other, runs in others.items():
        reached = typical(runs, limits.noise)
        if other != found.best and limits.keeps(reached):
            more = reached.qps > found.reached.qps and not limits.alike(reached, found.reached)
            if more or found.best is None:
                ahead[other] = reached.qps
    return sorted(ahead, key=ahead.__getitem__, reverse=True)


MOST_RIVALS = 3
"""How many configurations are held against the best of a search at most."""


def held_against(
    found: SearchResult,
    asked: Mapping[Configuration, Sequence[Reached]],
    others: Mapping[Configuration, Sequence[Reached]],
    evaluate: Evaluate,
    limits: Limits,
) -> SearchResult:
    """`found`, by a search that has `asked` for these runs, held against `others`: runs that were measured beside it.

    Which of these beat the best one beyond the noise, `MOST_RIVALS` of them at most, are asked for, and so is the best
    one, until there are as many runs of both as the limits allow; the medians decide. Each time is a step from the best
    one. Returns `found` itself where none beats it, or was asked for as often.
    """
    trials = Trials(evaluate, limits, runs={each: list(runs) for each, runs in asked.items()}, steps=list(found.steps))
    held = found
    for _ in range(MOST_RIVALS):
        left = {other: runs for other, runs in others.items() if len(trials.runs.get(other, ())) < limits.runs}
        if not (ahead := beating(held, left, limits)):
            break
        trials.ask_fully(ahead[0])
        if held.best is not None:
            trials.ask_fully(held.best)
        trials.goes_on(held.closest, ahead[0], asks_again=False)
        held = trials.result()
    return held


def deeprecsys_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """DeepRecSys' hill climbing: a worker on every core, larger batches until throughput falls (Psp(D))."""
    trials = Trials(evaluate, limits or Limits())
    _climb_batches(space, trials, ())
    return trials.result()


def baymax_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """Baymax' co-location: more workers on the accelerator until throughput falls, queries one at a time; then
    DeepRecSys on the cores that are left.

    The accelerator runs the whole model where the space allows that, else the DenseNet beside one sparse worker.
    Raises `PlanningError` where the space has no accelerator.
    """
    if Placement.HOT_SPARSE_ON_ACCELERATOR in space.placements:
        placement, workers = Placement.HOT_SPARSE_ON_ACCELERATOR, 0
    elif Placement.SPARSE_ON_HOST in space.placements:
        placement, workers = Placement.SPARSE_ON_HOST, 1
    else:
        raise PlanningError("co-location is for accelerators: the space has no placement on one")
    trials = Trials(evaluate, limits or Limits())
    best: Configuration | None = None
    for count in space.co_located:
        lane = Lane(placement, workers, 1, space.batch_sizes[-1 if workers else 0], count)
        if lane not in space:
            break
        if not trials.goes_on(best, (lane,)):
            break
        best = (lane,)
    if best is None:
        raise PlanningError(f"{space.cores} cores cannot launch on an accelerator")
    left = space.cores - best[0].cores
    if left > 0 and trials.keeps(best):
        _climb_batches(replace(space, cores=left), trials, best)
    return trials.result()


def exhaustive_search(space: ParallelismSpace, evaluate: Evaluate, limits: Limits | None = None) -> SearchResult:
    """Every lane alone; then the best ones are told apart. Raises `PlanningError` where there is none."""
    trials = Trials(evaluate, limits or Limits())
    for lane in _every_lane(space):
        trials.reached((lane,))
    trials.tell_leaders_apart()
    return trials.result()


def random_search(
    space: ParallelismSpace, evaluate: Evaluate, evaluations: int, seed: int, limits: Limits | None = None
) -> SearchResult:
    """So many lanes drawn from the space, none twice; then the best ones are told apart. Raises `PlanningError` where
    there is none."""
    trials = Trials(evaluate, limits or Limits())
    every = _every_lane(space)
    for place in np.random.default_rng(seed).permutation(len(every))[: max(evaluations, 1)].tolist():
        trials.reached((every[place],))
    trials.tell_leaders_apart()
    return trials.result()


def _every_lane(space: ParallelismSpace) -> list[Lane]:
    every = list(space.every_lane())
    if not every:
        raise PlanningError(f"{space.cores} cores are too few for {', '.join(space.placements)}")
    return every


def _search_placement(
    space: ParallelismSpace, placement: Placement, trials: Trials, beside: Configuration
) -> Configuration:
    """Algorithm 1's outer loop, over cores per worker, with the lanes of `beside` as they are."""
    best: Configuration | None = None
    for cores_per_worker in range(1, space.cores + 1):
        starts = space.first_lanes(placement, cores_per_worker)
        if not starts:
            break
        climbed = _climb(space, trials, beside, starts)
        if best is not None and not trials.better(climbed, best):
            break
        best = climbed
    if best is None:
        raise PlanningError(f"{space.cores} cores are too few for {placement}")
    return best


def _climb(space: ParallelismSpace, trials: Trials, beside: Configuration, starts: Sequence[Lane]) -> Configuration:
    """Algorithm 1's inner loop: Psp(M + D) for one count of cores per worker."""
    on_accelerator = starts[0].placement.on_accelerator
    origins = [(*beside, lane) for lane in starts]
    here = trials.best_of(origins)
    trials.steps.append(Step(None, tuple(origins), here))
    if on_accelerator:
        here = _climb_device(space, trials, here)
    while True:
        candidates = [(*beside, lane) for lane in steps_on_host(space, here[-1])]
        better = trials.improvement(candidates, here)
        trials.steps.append(Step(here, tuple(candidates), better))
        if on_accelerator and candidates:
            # What the host gains may show only when the accelerator takes more.
            ahead = [better] if better is not None else candidates
            better = trials.improvement([_climb_device(space, trials, candidate) for candidate in ahead], here)
        if better is None:
            return here
        here = better


def _refine(space: ParallelismSpace, trials: Trials, here: Configuration) -> Configuration:
    """On from where Algorithm 1 ended, by steps that it does not know: back along an axis, cores from sparse to dense
    workers or back, and other counts of cores per worker at the same allotment."""
    while True:
        candidates = [(*here[:-1], lane) for lane in dict.fromkeys(steps_around(space, here[-1]))]
        better = trials.improvement(candidates, here)
        trials.steps.append(Step(here, tuple(candidates), better))
        if better is None:
            return here
        here = better


def _climb_device(space: ParallelismSpace, trials: Trials, here: Configuration) -> Configuration:
    """The search over co-location and fusion that follows each step of the host's."""
    while True:
        candidates = [(*here[:-1], lane) for lane in steps_on_device(space, here[-1])]
        better = trials.improvement(candidates, here)
        if better is None:
            return here
        trials.steps.append(Step(here, tuple(candidates), better))
        here = better


def _climb_batches(space: ParallelismSpace, trials: Trials, beside: Configuration) -> Configuration:
    """DeepRecSys: every core a worker, larger batches while that helps."""
    best: Configuration | None = None
    for batch_size in space.batch_sizes:
        here = (*beside, Lane(Placement.MODEL_ON_HOST, space.cores, 1, batch_size))
        if trials.goes_on(best, here):
            best = here
        elif best is not None and trials.keeps(best):
            break
    assert best is not None, "a space has a batch size"
    return best


def typical(runs: Sequence[Reached], noise: float) -> Reached:
    """The median of throughput, and of all else in those runs that reached something as it does, or nothing; their
    confidence is that of the run that is least sure, and estimated is what any run estimated.

    What disturbs a machine makes it slower: where two are in the middle, the lower one counts as no further below the
    other than by `noise`, by which that may have been lucky. So a run that reaches more never makes it less.
    """
    if len(runs) == 1:
        return runs[0]
    ranked = sorted(run.qps for run in runs)
    lower, upper = ranked[(len(runs) - 1) // 2], ranked[len(runs) // 2]
    qps = (max(lower, (1 - noise) * upper) + upper) / 2
    alike = [run for run in runs if (run.qps > 0) == (qps > 0)]
    lows = [run.low_qps for run in alike if run.low_qps is not None]
    highs = [run.high_qps for run in alike if run.high_qps is not None]
    sources = [run.power_source for run in alike if run.power_source is not None]
    traffic = [run.bandwidth_bytes_per_s for run in alike if run.bandwidth_bytes_per_s is not None]
    used = [run.cpu_share for run in alike if run.cpu_share is not None]
    return Reached(
        qps,
        median(run.power_watts for run in alike),
        median(run.tail_latency_ms for run in alike),
        min(*lows, qps) if len(lows) == len(alike) else None,
        max(highs) if len(highs) == len(alike) else None,
        "; and ".join(dict.fromkeys(sources)) if len(sources) == len(alike) else None,
        any(run.power_estimated for run in alike),
        median(traffic) if len(traffic) == len(alike) else None,
        any(run.bandwidth_estimated for run in alike),
        median(used) if len(used) == len(alike) else None,
        len(runs) - len(alike) if qps > 0 else 0,
    )
