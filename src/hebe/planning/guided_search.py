"""A search that measures only what may win: a prediction ranks all configurations, measurements decide.

Beyond Hercules, whose search measures every step. Predictions are off by about the same factor for all configurations
of a server, so the largest factor that was seen bounds what those that were not measured can reach.
"""

from __future__ import annotations

import math

from hebe.planning.parallelism import (
    Configuration,
    Evaluate,
    Limits,
    Reached,
    SearchResult,
    Trials,
    exhaustive_search,
    gradient_search,
)
from hebe.planning.parallelism_space import ParallelismSpace

MOST_PREDICTED = 2_000
"""Lanes that are all predicted; in a larger space those that Hercules' search comes by."""
MOST_SHARE = 0.2
FEWEST = 3
"""At most so large a share of the space is measured, but so many of any: one measurement does not show it where
predictions are off by unlike factors, since small batches hinder each other, say."""


def guided_search(
    space: ParallelismSpace, predict: Evaluate, evaluate: Evaluate, limits: Limits | None = None
) -> SearchResult:
    """Measure configurations from the one that is predicted to be best downwards, `FEWEST` of them at least, until none
    is left that could still be better than the best one measured.

    One could that is predicted to reach so much that, with the largest ratio of measured to predicted so far and the
    limits' noise on top, it would. Of those that `predict` says reach nothing one is measured where no other is left.
    """
    limits = limits or Limits()
    if space.size() <= MOST_PREDICTED:
        predicted = exhaustive_search(space, predict).tried
    else:
        predicted = gradient_search(space, predict).tried
    ranked = sorted(predicted, key=lambda configuration: _promise(predicted[configuration]), reverse=True)
    most = max(FEWEST, int(MOST_SHARE * space.size()))
    trials = Trials(evaluate, limits)
    best: Configuration | None = None
    ratio = 0.0
    for measured, candidate in enumerate(ranked):
        hoped_qps = predicted[candidate].qps * ratio * (1 + limits.noise)
        beaten = best is not None and trials.keeps(best) and hoped_qps <= trials.reached(best).qps
        if trials.evaluations >= most or (beaten and measured >= FEWEST):
            break
        best = candidate if trials.goes_on(best, candidate) else best
        if predicted[candidate].qps > 0:
            ratio = max(ratio, trials.reached(candidate).qps / predicted[candidate].qps)
    return trials.result()


def _promise(reached: Reached) -> tuple[float, float]:
    return reached.qps, -reached.tail_latency_ms if math.isfinite(reached.tail_latency_ms) else -math.inf
