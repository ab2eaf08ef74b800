"""A search that measures only what may win: a prediction ranks all configurations, measurements decide.

Beyond Hercules, whose search measures every step. Predictions are off by about the same factor for all configurations
of a server, so the largest factor that was seen bounds what those that were not measured can reach.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Protocol

from hebe.planning.server_split.search import (
    Configuration,
    Evaluate,
    Limits,
    Reached,
    SearchResult,
    Trials,
    climb,
    gradient_search,
)
from hebe.planning.server_split.space import ParallelismSpace
from hebe.server_configuration import Placement

MOST_RANKED = 50_000
"""Lanes that are all ranked; in a larger space those that Hercules' search comes by."""
MOST_SHARE = 0.2
FEWEST = 3
FEWEST_REPEATS = 2
"""Measurements are at most so large a share of how many configurations there are, unless told otherwise, but so many
configurations of any space: one does not show it where predictions are off by unlike factors, since small batches
hinder each other, say. And so many of the measurements are left for repeats of the best ones that are alike: a winner
that was measured once may have been lucky."""


class Prediction(Protocol):
    """What configurations should reach."""

    def __call__(self, configuration: Configuration, /) -> Reached:
        """Worked out anew each time, which may take a while."""
        ...

    def narrow(self, configuration: Configuration, /) -> Generator[float, None, Reached]:
        """The same, step by step: yields what it reaches at most by what is known so far, the first at once, and
        returns what it reaches."""
        ...


def guided_search(
    space: ParallelismSpace,
    predict: Prediction,
    evaluate: Evaluate,
    limits: Limits | None = None,
    *,
    most_share: float = MOST_SHARE,
) -> SearchResult:
    """Measure configurations from the one that is predicted to be best downwards, `FEWEST` of them at least, until none
    is left that could still be better than the best one measured; then the best ones are told apart, in
    `FEWEST_REPEATS` measurements or what else `most_share` leaves. A worker on every core, as DeepRecSys has it, is
    among these: what is proposed was measured to be no worse, whatever was predicted.

    One could that is predicted to reach so much that, with the largest ratio of measured to predicted so far and the
    limits' noise on top, it would. What must draw too much by what others drew is passed over, every core or not.
    Where nothing that was measured keeps the limits, Algorithm 1 goes on: it comes from the side of the fewest workers
    and the smallest batches, and knows no predictions that may be wrong.
    """
    limits = limits or Limits()
    most = max(FEWEST + FEWEST_REPEATS, int(most_share * space.size()))
    trials = Trials(evaluate, limits, most)
    passed_over = partial(_must_draw_too_much, trials)
    if space.size() <= MOST_RANKED:
        ranked = _ranked(((lane,) for lane in space.every_lane()), predict, passed_over)
    else:
        climbed = gradient_search(space, predict).tried
        in_order = sorted(climbed.items(), key=lambda one: _promise(one[1]), reverse=True)
        ranked = (one for one in in_order if not passed_over(one[0]))
    best: Configuration | None = None
    ratio = 0.0
    for measured, (candidate, predicted) in enumerate(_with_every_core(space, ranked, predict, passed_over)):
        if measured >= FEWEST and best is not None:
            hoped_qps = predicted.qps * ratio * (1 + limits.noise)
            beaten = trials.keeps(best) and hoped_qps <= trials.reached(best).qps
            if beaten or not predicted.qps or measured >= most - FEWEST_REPEATS:
                break
        # Others come first: repeats to tell the best ones apart have what they leave.
        best = candidate if trials.goes_on(best, candidate, asks_again=False) else best
        if predicted.qps > 0:
            ratio = max(ratio, trials.reached(candidate).qps / predicted.qps)
    trials.tell_leaders_apart()
    if trials.result().best is None:
        trials.most_evaluations = math.inf
        climb(space, trials)
    return trials.result()


def _must_draw_too_much(trials: Trials, candidate: Configuration) -> bool:
    """Whether one of its placement on the host drew so much that the candidate draws more than the power budget, beyond
    the noise: with as many cores or more no less, with fewer cores no less than their share, since what a server draws
    when idle stays.
    """
    lane = candidate[0]
    most_watts = trials.limits.power_budget_watts * (1 + trials.limits.noise)
    if lane.placement.on_accelerator or math.isinf(most_watts):  # a GPU's power does not go by the host's cores
        return False
    others = ((other[0], trials.reached(other)) for other in trials.runs if other[0].placement is lane.placement)
    return any(
        reached.qps > 0 and reached.power_watts * min(lane.cores / other.cores, 1.0) > most_watts
        for other, reached in others
    )


def _ranked(
    every: Iterable[Configuration], predict: Prediction, passed_over: Callable[[Configuration], bool]
) -> Iterator[tuple[Configuration, Reached]]:
    """All from the one that is predicted to be best downwards, with what is predicted; without what is `passed_over` by
    the time that it is its turn. It is worked out no further than it takes to know the next one: of most it is soon
    known that others reach more.
    """
    line: list[tuple[float, float, int, Configuration, Generator[float, None, Reached] | Reached | None]] = []
    for place, configuration in enumerate(every):
        line.append((-next(predict.narrow(configuration)), -math.inf, place, configuration, None))
    heapq.heapify(line)
    while line:
        most, _, place, configuration, known = heapq.heappop(line)
        if passed_over(configuration):
            continue
        if isinstance(known, Reached):
            yield configuration, known
            continue
        if known is None:  # of most no step is taken: there may be tens of thousands
            known = predict.narrow(configuration)
            next(known)
        try:
            heapq.heappush(line, (max(most, -next(known)), -math.inf, place, configuration, known))
        except StopIteration as end:
            qps, less_ms = _promise(end.value)
            heapq.heappush(line, (-qps, -less_ms, place, configuration, end.value))


def _with_every_core(
    space: ParallelismSpace,
    ranked: Iterator[tuple[Configuration, Reached]],
    predict: Prediction,
    passed_over: Callable[[Configuration], bool],
) -> Iterator[tuple[Configuration, Reached]]:
    """`ranked`, but that the best one with a worker on every core is among the first `FEWEST`, unless that is
    `passed_over`."""
    host = space.lanes(Placement.MODEL_ON_HOST) if Placement.MODEL_ON_HOST in space.placements else ()
    every_core: list[Configuration] = [(lane,) for lane in host if lane.workers == space.cores]
    awaited, brought_forward = bool(every_core), None
    for place, (configuration, reached) in enumerate(ranked):
        awaited = awaited and configuration not in every_core
        if awaited and place == FEWEST - 1:
            for brought_forward, its in itertools.islice(_ranked(every_core, predict, passed_over), 1):
                yield brought_forward, its
            awaited = False
        if configuration != brought_forward:
            yield configuration, reached


def _promise(reached: Reached) -> tuple[float, float]:
    return reached.qps, -reached.tail_latency_ms if math.isfinite(reached.tail_latency_ms) else -math.inf
