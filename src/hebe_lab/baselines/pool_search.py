"""Searches for the best pool that measure pools one by one: Kairos+, exhaustive, random; and what all searches share.

Each search is given the pools to choose from, counts `[pools, types]`, and `evaluate(pool) -> queries/s`, and counts
how often it calls it. Like Kairos' comparison (section 8.3), every search may skip the sub-pools of what it measured:
a pool that has no more servers of any type than another cannot be better. That is right if `evaluate` grows with the
pool; a noisy measurement of a sub-pool may be higher all the same.
`hebe_lab.baselines.pool_search_baselines` has the genetic algorithm, simulated annealing and Bayesian optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import Bools, Floats, Ints

Evaluate = Callable[[tuple[int, ...]], float]
"""Measures one pool: counts per type to queries/s, finite and at least 0."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search measured: `path`, (pool, queries/s) in the order of measuring; the best of it, the first of equals.

    `complete` says that every pool was measured or ruled out, so that no other is better.
    """

    best: tuple[int, ...]
    best_qps: float
    path: tuple[tuple[tuple[int, ...], float], ...]
    complete: bool

    @property
    def evaluations(self) -> int:
        """How many pools were measured."""
        return len(self.path)


class Trials:
    """The pools of a search, what was measured of them, and which are still worth measuring.

    `pools` int64 `[pools, types]`; `values` float64 `[pools]`, NaN where not measured; `open` bool `[pools]`, neither
    measured nor ruled out. Raises `PlanningError` for pools that are none or not counts.
    """

    def __init__(self, pools: Ints, evaluate: Evaluate, most_evaluations: int | None, *, prune: bool) -> None:
        self.pools = np.asarray(pools)
        if self.pools.ndim != 2 or not self.pools.size:
            raise PlanningError(f"pools have shape {list(self.pools.shape)}: must be at least one pool by types")
        if not np.issubdtype(self.pools.dtype, np.integer) or self.pools.min() < 0:
            raise PlanningError("pools must be whole counts of at least 0")
        if most_evaluations is not None and most_evaluations < 1:
            raise PlanningError(f"most_evaluations is {most_evaluations}: must be at least 1")
        self._evaluate = evaluate
        self._most = len(self.pools) if most_evaluations is None else most_evaluations
        self._prune = prune
        self._path: list[tuple[tuple[int, ...], float]] = []
        self._best = -1
        self.values: Floats = np.full(len(self.pools), np.nan)
        self.open: Bools = np.ones(len(self.pools), dtype=np.bool_)

    @property
    def best_qps(self) -> float:
        """The most that a pool was measured to reach; 0 at first."""
        return float(self.values[self._best]) if self._path else 0.0

    @property
    def done(self) -> bool:
        """Nothing is left to measure, or no measurement is left."""
        return len(self._path) >= self._most or not self.open.any()

    def measure(self, at: int) -> float:
        """Queries/s of pool `at`, measured if that was not done; closes it, and its sub-pools if these are pruned."""
        if not math.isnan(self.values[at]):
            return float(self.values[at])
        pool = tuple(self.pools[at].tolist())
        value = float(self._evaluate(pool))
        if not (math.isfinite(value) and value >= 0):
            raise PlanningError(f"evaluate gave {value} for the pool {pool}: must be queries/s, finite and at least 0")
        better = value > self.best_qps or not self._path
        self.values[at] = value
        self._path.append((pool, value))
        if better:
            self._best = at
        self.open[at] = False
        if self._prune:
            self.open &= ~(self.pools <= self.pools[at]).all(axis=1)
        return value

    def worth_measuring(self, order: Iterable[int]) -> Iterator[int]:
        """Of some pools those that are still open when it is their turn, until the search is done."""
        for at in order:
            if self.done:
                break
            if self.open[at]:
                yield at

    def result(self) -> SearchResult:
        """What was found; at least one pool must have been measured."""
        best = tuple(self.pools[self._best].tolist())
        return SearchResult(best, self.best_qps, tuple(self._path), not self.open.any())


def kairos_plus(
    pools: Ints, bounds: Floats, evaluate: Evaluate, *, most_evaluations: int | None = None, prune: bool = True
) -> SearchResult:
    """Kairos' Algorithm 1: measures pools by falling upper bound and drops those whose bound the best found reaches.

    `bounds` float64 `[pools]` in queries/s. If they are true bounds, and sub-pools are no better or `prune` is off,
    the best is the best of all pools. Of pools with equal bounds those with more servers come first: they rule out
    more.
    """
    bounds = np.asarray(bounds, dtype=np.float64)
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    if bounds.shape != (len(trials.pools),):
        raise PlanningError(
            f"bounds have shape {list(bounds.shape)}: must be one for each of {len(trials.pools)} pools"
        )
    if np.isnan(bounds).any() or bounds.min() < 0:
        raise PlanningError("bounds must be queries/s of at least 0")
    for at in trials.worth_measuring(np.lexsort((-trials.pools.sum(axis=1), -bounds)).tolist()):
        before = trials.best_qps
        if trials.measure(at) > before:
            trials.open &= bounds > trials.best_qps
    return trials.result()


def exhaustive(
    pools: Ints, evaluate: Evaluate, *, most_evaluations: int | None = None, prune: bool = False
) -> SearchResult:
    """Measures the pools in the order given."""
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    for at in trials.worth_measuring(range(len(trials.pools))):
        trials.measure(at)
    return trials.result()


def random_search(
    pools: Ints,
    evaluate: Evaluate,
    rng: np.random.Generator,
    *,
    most_evaluations: int | None = None,
    prune: bool = True,
) -> SearchResult:
    """Measures pools in random order."""
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    for at in trials.worth_measuring(rng.permutation(len(trials.pools)).tolist()):
        trials.measure(at)
    return trials.result()
