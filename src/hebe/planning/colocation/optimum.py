"""The fewest servers that meet a demand, over all sets of models that a server may hold and all its splits.

A pattern is one way to fill a server: a set of models, its split, and the rates that they serve. The integer program

    minimise  sum of x_p      subject to  sum of x_p * qps[p, m] >= demand[m] for each model m,  x_p whole

has far too many patterns to be written down. Its relaxation is solved by column generation: the dual price of a
model's demand is what one query/s of it is worth, and patterns worth more than a server join the program. They are
found by trying every set in every split (`best_splits`), so the relaxation's optimum is exact, and rounded up it is a
proven lower bound for any plan made of such servers. HiGHS then solves the integer program over the patterns that
joined.

What fills the last servers best may be best at no price, and never joins. Where the plan is above the bound, all
patterns that no other one dominates join, if they are few, and HiGHS' answer is the optimum; else those that are best
at the prices of what whole servers leave over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csc_array

from hebe.planning.colocation.colocation import (
    ColocationPlan,
    ServerGroup,
    demand_array,
    hera,
    one_model_a_server,
    tenants_of,
    utilization_weights,
)
from hebe.planning.colocation.shared_server import (
    BestSplits,
    ScalabilityTables,
    all_sets,
    all_splits,
    best_splits,
    rates_of,
    splits_of,
)
from hebe.planning.error import Parameter, PlanningError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

MOST_TRIED = 100_000_000
"""More (set, split) pairs than this are refused: every one is tried in every round, which takes many seconds then."""

_MOST_ENUMERATED = 20_000
"""Of so few (set, split) pairs all that count join."""
_MOST_ROUNDS = 500
_MOST_TRIED_FOR_REST = 1_000_000
"""Of more, what is left over is not priced again: every one is tried in every round, and no clock is looked at."""
_MOST_ROUNDS_OF_REST = 20
_JOIN_A_ROUND = 200
_JOIN_AT_ENDS = 2000
_WORTH_MORE = 1e-7
_LEAST_SHARE = 1e-6
"""Of what a server alone serves, that a demand is taken to be at least: any place on a server meets less as well, and
HiGHS refuses a share of the demand that is too large."""


def optimal_colocation(
    tables: ScalabilityTables, demand_qps: Mapping[str, float], most_models: int = 2, time_limit_s: float = 10.0
) -> ColocationPlan:
    """The fewest servers with at most `most_models` models on each, and `least_servers`, the proven lower bound.

    `servers == least_servers` proves the plan optimal; with a server more it may still be. The integer program is
    given up after `time_limit_s`, with the best plan so far, which is never worse than `hera`'s. Raises
    `PlanningError` for a bad demand, `most_models` or `time_limit_s`, and where there are more sets and splits
    than `MOST_TRIED`.
    """
    demand = demand_array(tables, demand_qps)
    wanted = np.flatnonzero(demand)
    tables = tables.only(wanted)
    demand_qps = {model: float(demand_qps[model]) for model in tables.models}
    sets = _sets_to_try(tables, most_models)
    if isinstance(time_limit_s, bool) or not isinstance(time_limit_s, int | float) or not time_limit_s > 0:
        raise PlanningError(f"time_limit_s is {time_limit_s!r}: must be a positive number of seconds")
    patterns = _Patterns(tables, np.maximum(demand[wanted], _LEAST_SHARE * tables.alone))
    for of_one_size in sets:  # each set at its largest EMU, as the other policies use it: none of them can be better
        patterns.join(of_one_size, utilization_weights(tables), _JOIN_AT_ENDS, 0.0)
    bound = _solve_relaxation(patterns, sets)
    greedy = hera(tables, demand_qps) if len(sets) > 1 else one_model_a_server(tables, demand_qps)
    plan, bound = _fewest_servers(patterns, sets, bound, time_limit_s)
    groups = greedy.groups if plan is None or sum(group.servers for group in plan) > greedy.servers else plan
    return ColocationPlan("optimal", demand_qps, tuple(groups), min(bound, sum(group.servers for group in groups)))


def _fewest_servers(
    patterns: _Patterns, sets: Sequence[IntArray], least: int, time_limit_s: float
) -> tuple[list[ServerGroup] | None, int]:
    """The best plan found, or None, and how many servers are needed at least: `least`, or more if that is proven."""
    found, _ = patterns.fewest_servers(least, time_limit_s / 2)
    if found is None or found.sum() <= least:
        return (None if found is None else patterns.groups(found)), least
    tried = patterns.tried(sets)
    complete = tried <= _MOST_ENUMERATED
    if complete:
        patterns.join_all(sets)
    elif tried <= _MOST_TRIED_FOR_REST:
        patterns.join_for_rest(sets)
    better, proven = patterns.fewest_servers(least, time_limit_s / 2)
    if better is None or better.sum() > found.sum():
        better = found  # new patterns come after those it is of
    return patterns.groups(better), max(least, proven) if complete else least


def _sets_to_try(tables: ScalabilityTables, most_models: int) -> list[IntArray]:
    """All sets of one model, of two, ... of `most_models`."""
    if not isinstance(most_models, int) or isinstance(most_models, bool) or most_models < 1:
        raise PlanningError(Parameter("most_models"), f" is {most_models!r}: must be a whole number of at least 1")
    count = len(tables.models)
    sizes = range(1, min(most_models, count, tables.server.cores, tables.server.cache_ways) + 1)
    tried = 0
    for size in sizes:
        tried += math.comb(count, size) * splits_of(tables, size)
        if tried > MOST_TRIED:
            raise PlanningError(
                Parameter("most_models"),
                f" is {most_models}: {size} out of {count} models in all splits of a server are {tried:,}"
                f" cases, more than {MOST_TRIED:,}: allow fewer models a server, or plan the models in groups",
            )
    return [all_sets(count, size) for size in sizes]


def _solve_relaxation(patterns: _Patterns, sets: Sequence[IntArray]) -> int:
    """Let patterns join until none is worth more than its server; returns the lower bound on whole servers.

    Of any prices, the relaxation's value over the largest worth of a pattern at them is a bound (Farley 1990), so
    what is returned is proven even where the rounds run out.
    """
    bound = 0.0
    for _ in range(_MOST_ROUNDS):
        value, prices = patterns.relaxation()
        worth = max(patterns.join(of_one_size, prices, _JOIN_A_ROUND, 1 + _WORTH_MORE) for of_one_size in sets)
        bound = max(bound, value / max(worth, 1.0))
        if worth <= 1 + _WORTH_MORE:
            for of_one_size in sets:  # what is worth nearly a server helps to round
                patterns.join(of_one_size, prices, _JOIN_AT_ENDS, 0.9)
            break
    return math.ceil(bound * (1 - 1e-6))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One way to fill a server: models as rows of the tables, and the cores, cache ways and qps of each."""

    models: tuple[int, ...]
    cores: tuple[int, ...]
    ways: tuple[int, ...]
    qps: tuple[float, ...]


class _Patterns:
    """The patterns that joined so far, none twice, and the programs over them."""

    def __init__(self, tables: ScalabilityTables, demand: FloatArray) -> None:
        self._tables = tables
        self._demand = demand
        self._known: dict[_Pattern, None] = {}

    def join(self, sets: IntArray, weights: FloatArray, most: int, above: float) -> float:
        """Let the best splits under `weights` join, at most `most` of those worth more than `above`.

        Returns the largest worth of any set.
        """
        splits: BestSplits = best_splits(self._tables, sets, weights)
        best_first = np.argsort(-splits.value, kind="stable")[:most]
        for row in best_first[splits.value[best_first] > above].tolist():
            self._add(sets[row], splits.cores[row], splits.cache_ways[row], splits.qps[row])
        return float(splits.value.max())

    def tried(self, sets: Sequence[IntArray]) -> int:
        """How many (set, split) pairs there are."""
        return sum(len(of_one_size) * splits_of(self._tables, of_one_size.shape[1]) for of_one_size in sets)

    def join_all(self, sets: Sequence[IntArray]) -> None:
        """Let every pattern join, but those that serve no more of any model than another one."""
        listed, shares = [], []
        for of_one_size in sets:
            cores, ways, qps = all_splits(self._tables, of_one_size)
            for members, rates in zip(of_one_size, qps, strict=True):
                listed += [(members, *split) for split in zip(cores, ways, rates, strict=True)]
                share = np.zeros((len(rates), len(self._demand)))
                # more than all of the demand is as good as that
                share[:, members] = np.minimum(rates / self._demand[members], 1.0)
                shares.append(share)
        for at in _undominated(np.concatenate(shares)):
            self._add(*listed[at])

    def join_for_rest(self, sets: Sequence[IntArray]) -> None:
        """Let patterns join that are worth more than a server for what the relaxation's whole servers leave over.

        Of a model no more counts than what is left of its demand, so that what fits that is worth most.
        """
        cover = self._cover()
        whole = np.floor(self._relax(cover).x + 1e-6)
        for kept in (whole, np.maximum(whole - 1, 0)):
            rest = np.maximum(1 - cover @ kept, 0.0) * self._demand
            wanted = np.flatnonzero(rest > 1e-9 * self._demand)
            tables = replace(self._tables, qps=np.minimum(self._tables.qps, rest[:, None, None]))
            for _ in range(_MOST_ROUNDS_OF_REST):
                known = len(self._known)
                if len(wanted):
                    self._join_for(rest, wanted, tables, sets)
                if len(self._known) == known:
                    break

    def _join_for(
        self, rest: FloatArray, wanted: IntArray, tables: ScalabilityTables, sets: Sequence[IntArray]
    ) -> None:
        """Let the patterns join that are worth more than a server for the `rest` of the demand, at the prices of those
        known; `tables` serve no more than that, `wanted` are the models of which there is some."""
        share = self._cover().toarray()[wanted] * (self._demand / np.maximum(rest, 1e-300))[wanted, None]
        answer = self._relax(csc_array(np.minimum(share, 1.0)))
        prices = np.zeros(len(rest))
        prices[wanted] = np.maximum(-answer.ineqlin.marginals, 0.0) / rest[wanted]
        for of_one_size in sets:
            splits = best_splits(tables, of_one_size, prices)
            best_first = np.argsort(-splits.value, kind="stable")[:_JOIN_A_ROUND]
            rows = best_first[splits.value[best_first] > 1 + _WORTH_MORE]
            members, cores, ways = of_one_size[rows], splits.cores[rows], splits.cache_ways[rows]
            for pattern in zip(members, cores, ways, rates_of(self._tables, members, cores, ways), strict=True):
                self._add(*pattern)

    def _add(self, models: IntArray, cores: IntArray, ways: IntArray, qps: FloatArray) -> None:
        fields = (tuple(part.tolist()) for part in (models, cores, ways, qps))
        self._known[_Pattern(*fields)] = None

    def relaxation(self) -> tuple[float, FloatArray]:
        """The servers needed if parts of servers could be had, and what one query/s of each model is worth."""
        answer = self._relax(self._cover())
        return float(answer.fun), np.maximum(-answer.ineqlin.marginals, 0.0) / self._demand

    def fewest_servers(self, least: int, time_limit_s: float) -> tuple[IntArray | None, int]:
        """The best plan of whole servers found in that time, how many of each pattern, or None, and how many servers
        of these patterns are needed at least; `least` is known to be.

        The relaxation's whole parts are kept first, then all but one of each, then nothing of it: what is left for
        HiGHS to round grows from a few servers, which it solves at once, to the program itself.
        """
        cover = self._cover()
        parts = self._relax(cover).x
        best: IntArray | None = None
        proven = least
        for kept in (np.floor(parts + 1e-6), np.maximum(np.floor(parts + 1e-6) - 1, 0), np.zeros_like(parts)):
            last = not kept.any()
            answer = milp(
                np.ones(len(parts)),
                integrality=np.ones(len(parts)),
                bounds=Bounds(0, np.inf),
                constraints=[
                    LinearConstraint(cover, lb=np.maximum(1 - cover @ kept, 0.0)),
                    LinearConstraint(np.ones((1, len(parts))), lb=max(least - kept.sum(), 0.0)),
                ],
                options={"time_limit": time_limit_s / 3, "mip_rel_gap": 0.0},
            )
            if last and answer.mip_dual_bound is not None and math.isfinite(answer.mip_dual_bound):
                proven = max(least, math.ceil(answer.mip_dual_bound - 1e-6))
            if answer.x is not None:
                servers = (np.rint(answer.x) + kept).astype(np.intp)
                enough = bool(np.all(cover @ servers >= 1 - 1e-9))  # HiGHS' own tolerance is wider
                if enough and (best is None or servers.sum() < best.sum()):
                    best = servers
            if last or (best is not None and best.sum() <= least):
                break
        return best, proven

    def groups(self, servers: IntArray) -> list[ServerGroup]:
        """A plan of so many servers of each pattern, of the first that joined."""
        known = list(self._known)
        worth = utilization_weights(self._tables)
        groups = []
        for at in np.flatnonzero(servers):
            pattern = known[at]
            tenants = tenants_of(self._tables, pattern.models, pattern.cores, pattern.ways, pattern.qps)
            utilization = float(sum(worth[list(pattern.models)] * pattern.qps))
            groups.append(ServerGroup(tenants, int(servers[at]), utilization))
        return sorted(groups, key=lambda group: -group.servers)

    @staticmethod
    def _relax(cover: csc_array) -> Any:
        answer = linprog(np.ones(cover.shape[1]), A_ub=-cover, b_ub=-np.ones(cover.shape[0]), method="highs")
        if answer.status != 0:
            raise PlanningError(f"the relaxation over {cover.shape[1]} patterns was not solved: {answer.message}")
        return answer

    def _cover(self) -> csc_array:
        """The share of each model's demand that one server of each pattern meets, sparse `[models, patterns]`."""
        known = list(self._known)
        models = np.array([model for pattern in known for model in pattern.models], dtype=np.intp)
        columns = np.repeat(np.arange(len(known)), [len(pattern.models) for pattern in known])
        qps = np.array([rate for pattern in known for rate in pattern.qps])
        return csc_array((qps / self._demand[models], (models, columns)), shape=(len(self._demand), len(known)))


def _undominated(shares: FloatArray) -> list[int]:
    """The rows that are not below another one in all places, of equal ones the first: `shares` `[rows, places]`."""
    order = np.argsort(-shares.sum(axis=1), kind="stable")
    shares = shares[order]
    found = []
    while len(order):
        found.append(int(order[0]))
        beyond = (shares > shares[0]).any(axis=1)
        order, shares = order[beyond], shares[beyond]
    return found
