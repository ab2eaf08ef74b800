"""A search that measures only what may win: a prediction ranks all configurations, measurements decide.

Beyond Hercules, whose search measures every step. Predictions are off by about the same factor for all configurations
of a server, so the largest factor that was seen bounds what those that were not measured can reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hebe.planning.parallelism import (
    Configuration,
    Evaluate,
    Limits,
    Reached,
    SearchResult,
    Trials,
    climb,
    exhaustive_search,
    gradient_search,
)
from hebe.planning.parallelism_space import ParallelismSpace
from hebe.server_configuration import Placement

MOST_PREDICTED = 2_000
"""Lanes that are all predicted; in a larger space those that Hercules' search comes by."""
MOST_SHARE = 0.2
FEWEST = 3
"""At most so large a share of the space is measured, unless told otherwise, but so many of any: one measurement does
not show it where predictions are off by unlike factors, since small batches hinder each other, say. Repeats have what
that leaves of the share, and beyond it once as many as there are leaders: a winner that was measured once may have been
lucky."""


def guided_search(
    space: ParallelismSpace,
    predict: Evaluate,
    evaluate: Evaluate,
    limits: Limits | None = None,
    *,
    most_share: float = MOST_SHARE,
) -> SearchResult:
    """Measure configurations from the one that is predicted to be best downwards, `FEWEST` of them at least, until none
    is left that could still be better than the best one measured; then the best ones are told apart. A worker on every
    core, as DeepRecSys has it, is among these: what is proposed was measured to be no worse, whatever was predicted.

    One could that is predicted to reach so much that, with the largest ratio of measured to predicted so far and the
    limits' noise on top, it would. Where nothing that was measured keeps the limits, Algorithm 1 goes on: it comes from
    the side of the fewest workers and the smallest batches, and knows no predictions that may be wrong.
    """
    limits = limits or Limits()
    if space.size() <= MOST_PREDICTED:
        predicted = exhaustive_search(space, predict).tried
    else:
        predicted = gradient_search(space, predict).tried
    ranked = sorted(predicted, key=lambda configuration: _promise(predicted[configuration]), reverse=True)
    if (place := _every_core(space, ranked)) >= FEWEST:
        ranked.insert(FEWEST - 1, ranked.pop(place))
    most = max(FEWEST, int(most_share * space.size()))
    trials = Trials(evaluate, limits, most)
    best: Configuration | None = None
    ratio = 0.0
    for measured, candidate in enumerate(ranked):
        if measured >= FEWEST and best is not None:
            hoped_qps = predicted[candidate].qps * ratio * (1 + limits.noise)
            beaten = trials.keeps(best) and hoped_qps <= trials.reached(best).qps
            if beaten or not predicted[candidate].qps or measured >= most:
                break
        # Others come first: repeats to tell the best ones apart have what they leave of the share.
        best = candidate if trials.goes_on(best, candidate, asks_again=False) else best
        if predicted[candidate].qps > 0:
            ratio = max(ratio, trials.reached(candidate).qps / predicted[candidate].qps)
    trials.tell_leaders_apart()
    if trials.result().best is None:
        trials.most_evaluations = math.inf
        climb(space, trials)
    return trials.result()


def _every_core(space: ParallelismSpace, ranked: Sequence[Configuration]) -> int:
    """The place of the first that has a worker on every core; 0 where there is none."""
    for place, (lane, *beside) in enumerate(ranked):
        if lane.placement is Placement.MODEL_ON_HOST and lane.workers == space.cores and not beside:
            return place
    return 0


def _promise(reached: Reached) -> tuple[float, float]:
    return reached.qps, -reached.tail_latency_ms if math.isfinite(reached.tail_latency_ms) else -math.inf
