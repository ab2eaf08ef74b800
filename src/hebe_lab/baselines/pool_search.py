"""Searches for the best pool that measure pools one by one: Kairos+, exhaustive and random search, the genetic
algorithm, simulated annealing and Bayesian optimisation.

Each search is given the pools to choose from, counts `[pools, types]`, and `evaluate(pool) -> queries/s`, and counts
how often it calls it. Like Kairos' comparison (section 8.3), every search may skip the sub-pools of what it measured: a
pool that has no more servers of any type than another cannot be better. That is right if `evaluate` grows with the
pool; a noisy measurement of a sub-pool may be higher all the same.

The last three know nothing of a pool but what it measured at. They move on the grid of counts; a move that leaves the
pools to choose from ends at the nearest one that is still worth measuring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import ndtr

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


def genetic_search(
    pools: Ints,
    evaluate: Evaluate,
    rng: np.random.Generator,
    *,
    population: int = 8,
    mutation: float = 0.3,
    most_evaluations: int | None = None,
    prune: bool = True,
) -> SearchResult:
    """A steady-state genetic algorithm: the children of two pools, each the better of two drawn from the population,
    take every count from either, changed by one with probability `mutation`; a child replaces the worst pool."""
    if population < 2:
        raise PlanningError(f"population is {population}: must be at least 2")
    if not 0 <= mutation <= 1:
        raise PlanningError(f"mutation is {mutation}: must lie in [0, 1]")
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    alive: list[int] = []
    while not trials.done:
        if len(alive) < population:
            at = int(rng.choice(np.flatnonzero(trials.open)))
        else:
            first, second = (_better_of_two(trials, alive, rng) for _ in range(2))
            mixed = rng.random(trials.pools.shape[1]) < 0.5
            child = np.where(mixed, trials.pools[first], trials.pools[second])
            changed = rng.random(len(child)) < mutation
            at = _nearest_open(trials, child + changed * rng.choice([-1, 1], len(child)), rng)
        value = trials.measure(at)
        alive.append(at)
        if len(alive) > population:
            worst = min(alive[:-1], key=lambda pool: trials.values[pool])
            alive.remove(worst if trials.values[worst] <= value else at)
    return trials.result()


def annealing_search(
    pools: Ints,
    evaluate: Evaluate,
    rng: np.random.Generator,
    *,
    heat: float = 0.3,
    cooling: float = 0.97,
    most_evaluations: int | None = None,
    prune: bool = True,
) -> SearchResult:
    """Simulated annealing: one count up or down, or a server of one type for one of another. A worse pool is accepted
    with probability exp(-loss / temperature); the temperature starts at `heat` times the best and falls by `cooling`
    with each measurement."""
    if not (math.isfinite(heat) and heat > 0):
        raise PlanningError(f"heat is {heat}: must be positive")
    if not 0 < cooling < 1:
        raise PlanningError(f"cooling is {cooling}: must lie between 0 and 1, both excluded")
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    here = int(rng.choice(np.flatnonzero(trials.open)))
    value = trials.measure(here)
    temperature = heat
    while not trials.done:
        step = np.zeros(trials.pools.shape[1], dtype=np.int64)
        step[rng.integers(len(step))] += rng.choice([-1, 1])
        if rng.random() < 0.5:
            step[rng.integers(len(step))] += rng.choice([-1, 1])
        at = _nearest_open(trials, trials.pools[here] + step, rng)
        found = trials.measure(at)
        loss = (value - found) / max(trials.best_qps, 1e-300)
        temperature *= cooling
        if loss <= 0 or rng.random() < math.exp(-loss / temperature):
            here, value = at, found
    return trials.result()


def bayesian_search(
    pools: Ints,
    evaluate: Evaluate,
    rng: np.random.Generator,
    *,
    most_evaluations: int | None = None,
    prune: bool = True,
) -> SearchResult:
    """Bayesian optimisation, as Ribbon does: a Gaussian process over the counts, Matern 5/2, its length scale by
    maximum likelihood, and the pool of the highest expected improvement next. The first few are drawn at random."""
    trials = Trials(pools, evaluate, most_evaluations, prune=prune)
    places = trials.pools / np.maximum(trials.pools.max(axis=0), 1)
    measured: list[int] = []
    while not trials.done:
        choices = np.flatnonzero(trials.open)
        if len(measured) < _AT_RANDOM:
            at = int(rng.choice(choices))
        else:
            gain = _expected_improvement(places[measured], trials.values[measured], places[choices])
            at = int(choices[gain.argmax()])
        trials.measure(at)
        measured.append(at)
    return trials.result()


def _better_of_two(trials: Trials, alive: list[int], rng: np.random.Generator) -> int:
    one, other = rng.choice(alive, size=2).tolist()
    return int(one if trials.values[one] >= trials.values[other] else other)


def _nearest_open(trials: Trials, counts: Ints, rng: np.random.Generator) -> int:
    """The pool worth measuring that is nearest to these counts; one of equals by chance."""
    choices = np.flatnonzero(trials.open)
    distance = ((trials.pools[choices] - counts) ** 2).sum(axis=1)
    return int(rng.choice(choices[distance == distance.min()]))


_AT_RANDOM = 5
"""Pools that are measured before the process is fitted."""
_LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
_NOISE = 1e-4
"""Variance of a measurement, relative to that of the process."""


def _expected_improvement(places: Floats, values: Floats, candidates: Floats) -> Floats:
    """Of each candidate, float64 `[candidates]`, in standard deviations of `values`."""
    spread = float(values.std())
    if spread == 0:
        spread = 1.0
    scaled = (values - values.mean()) / spread
    best_likelihood, fit = -math.inf, None
    for length in _LENGTHS:
        root = cholesky(_matern(places, places, length) + _NOISE * np.eye(len(places)), lower=True)
        weights = cho_solve((root, True), scaled)
        likelihood = -0.5 * float(scaled @ weights) - float(np.log(np.diag(root)).sum())
        if likelihood > best_likelihood:
            best_likelihood, fit = likelihood, (length, root, weights)
    assert fit is not None
    length, root, weights = fit
    covariance = _matern(candidates, places, length)
    mean = covariance @ weights
    reduced = solve_triangular(root, covariance.T, lower=True)
    deviation = np.sqrt(np.maximum(1 - (reduced**2).sum(axis=0), 1e-12))
    gain = mean - scaled.max()
    z = gain / deviation
    improvement: Floats = gain * ndtr(z) + deviation * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return improvement


def _matern(left: Floats, right: Floats, length: float) -> Floats:
    """The Matern 5/2 kernel of unit variance, float64 `[left, right]`."""
    distance = cdist(left, right) * (math.sqrt(5) / length)
    kernel: Floats = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return kernel
