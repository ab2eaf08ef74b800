"""Searches that know nothing of a pool but what it measured at: genetic, annealing, Bayesian optimisation.

They take and give what `hebe_lab.baselines.pool_search` does. All of them move on the grid of counts; a move that
leaves the pools to choose from ends at the nearest one that is still worth measuring.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import Floats, Ints
from hebe_lab.baselines.pool_search import Evaluate, SearchResult, Trials


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
