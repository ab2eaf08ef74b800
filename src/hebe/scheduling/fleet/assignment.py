"""Which waiting query goes to which server type: the exact minimum-cost matching (Kairos section 5.1, Eq. 4-8).

Kairos matches queries with instances by the Jonker-Volgenant algorithm, whose time grows with the cube of their
number. But idle instances of one type are alike, so few types make it a transportation problem with as many prices as
types. Large ones are solved in two steps: prices at which each type, in turn, is wanted by as many queries as it has
instances (the dual's coordinate ascent); and from there, since ties and rounds too few leave some types wanted by too
many, shortest augmenting paths over the types, which make it exact. Each path moves all queries that cost the same.

Busy instances are not alike: each is free at a time of its own. While they are few each is a column of its own, as in
the paper. Where that would take long, those of one type become one column, free after their mean time: what is matched
there is not sent anyway. On Kairos' five models, with 88 to 224 instances near their capacity, the share of queries in
time was that of the exact matching within 0.3 points, as often above as below.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from hebe.spec import SAFEGUARD

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LATE_PENALTY = 10.0
"""Eq. 8: what a late completion costs, in SLAs."""
_PRICE_ROUNDS = 6
"""A round takes about as long as a path; on Kairos' costs more rounds save no more. About three paths are left after
these where all instances are idle, five to ten where half are busy."""
_SCIPY_WORK = 45_000
"""SciPy is faster while (smaller side)^2 * larger side stays under this times types^2: 90 x 90 with four types."""
_MOST_WORK = 600_000
"""(Smaller side)^2 * larger side up to which busy instances are columns of their own: under half a millisecond."""


def matching_cost(
    service_s: Floats,
    waited_s: Floats,
    coefficients: Floats,
    sla_s: float,
    *,
    busy_types: Indices | None = None,
    busy_remaining_s: Floats | None = None,
    safeguard: float = SAFEGUARD,
    late_at_least: float = 0.0,
) -> Floats:
    """C_j * L_ij, with L_ij replaced by 10 SLAs where the query would be late (Eq. 4 and 8): the columns of a matching.

    By Eq. 8 to be late on a type more than ten times slower than the base costs less than to be in time on the base,
    and such a fleet's large queries would all be late beside idle base instances. So `late_at_least` times the SLA is
    what late costs anywhere: with the largest coefficient there, more than in time on any type.

    `service_s`      [queries, types] predicted seconds of each query on an idle instance of each type
    `waited_s`       [queries] seconds since each query arrived
    `coefficients`   [types] heterogeneity coefficient C_j
    `sla_s`          latency bound in seconds; late is what would end after `safeguard` times it
    `busy_types`, `busy_remaining_s`  [busy] type, and seconds until it is idle, of each busy column (`busy_columns`)

    Returns float64 [queries, types + busy]: one column a type, for its idle instances, then the busy columns.
    """
    if busy_types is None or busy_remaining_s is None:
        ends_s = service_s.copy()
    else:
        idle = service_s.shape[1]
        ends_s = np.empty((service_s.shape[0], idle + busy_types.size))
        ends_s[:, :idle] = service_s
        np.add(service_s[:, busy_types], busy_remaining_s, out=ends_s[:, idle:])
        coefficients = np.concatenate((coefficients, coefficients[busy_types]))
    late = ends_s > (safeguard * sla_s - waited_s)[:, None]
    np.putmask(ends_s, late, LATE_PENALTY * sla_s)
    ends_s *= coefficients
    if late_at_least > LATE_PENALTY * coefficients.min():
        np.maximum(ends_s, late_at_least * sla_s, out=ends_s, where=late)
    return ends_s


def busy_columns(
    queries: int, idle: int, busy_types: Indices, busy_remaining_s: Floats
) -> tuple[Indices, Floats, list[int]]:
    """The columns for busy instances: their types, seconds until they are idle, and how many instances each stands for.

    `queries` are to be matched, with `idle` idle instances and those whose `busy_types` and `busy_remaining_s` [busy]
    are given. One column each if that is a small matching, else one a type.
    """
    instances = idle + busy_types.size
    if queries * instances * min(queries, instances) <= _MOST_WORK:
        return busy_types, busy_remaining_s, [1] * busy_types.size
    counts = np.bincount(busy_types)
    types = np.flatnonzero(counts)
    total_s = np.bincount(busy_types, busy_remaining_s)
    return types, total_s[types] / counts[types], counts[types].tolist()


def match_queries(cost: Floats, counts: Indices) -> Indices:
    """Match queries with types so that the total cost is least and min(queries, instances) queries are matched.

    `cost` is float64 [queries, types], finite; `counts` int64 [types], how many instances each type offers, each for
    one query. Returns int64 [queries]: the type of each query, or -1 where it is not matched. Deterministic.
    Raises `ValueError` for shapes that do not fit, costs that are not finite, or negative counts.
    """
    if cost.ndim != 2 or counts.shape != cost.shape[1:]:
        raise ValueError(f"cost {cost.shape} and counts {counts.shape}: give [queries, types] and [types]")
    if not math.isfinite(cost.sum()):
        raise ValueError("cost: every cost must be finite; price what should not be with a penalty")
    queries = cost.shape[0]
    if counts.size and counts.min() < 0:
        raise ValueError(f"counts {counts.tolist()}: must not be negative")
    offered = np.minimum(counts, queries)  # a type can match no more than all queries
    instances = int(offered.sum())
    types = np.flatnonzero(offered)
    if queries * instances * min(queries, instances) <= _SCIPY_WORK * types.size**2:
        return _match_each(cost, offered)
    matched = _match_types(np.ascontiguousarray(cost.T[types]), offered[types])
    return np.append(types, -1)[matched]


def _match_each(cost: Floats, counts: Indices) -> Indices:
    """The matching with one column an instance."""
    matched = np.full(cost.shape[0], -1)
    types = np.repeat(np.arange(counts.size), counts)
    rows, columns = linear_sum_assignment(cost[:, types])
    matched[rows] = types[columns]
    return matched


def _match_types(cost: Floats, counts: Indices) -> Indices:
    """The matching by prices and paths, of cost [types, queries] and counts that are all positive.

    Made balanced: queries too many go to one more type, the last, at no cost; instances too many take "blanks",
    queries that cost nothing anywhere and are only counted.
    """
    surplus = cost.shape[1] - int(counts.sum())
    if surplus > 0:
        cost = np.vstack((cost, np.zeros(cost.shape[1])))
        counts = np.append(counts, surplus)
    prices = _prices(cost, counts, may_stay_idle=surplus < 0)
    return _Flow(cost, counts, prices, max(-surplus, 0)).balanced()


def _prices(cost: Floats, counts: Indices, may_stay_idle: bool) -> Floats:
    """Prices [types] at which about as many queries as there are instances find a type the cheapest.

    In turn, each type takes the price at which the `counts`-th keenest query still wants it, the others' prices
    given. Where instances may stay idle, no price falls below zero.
    """
    queries = cost.shape[1]
    prices = np.zeros(counts.size)
    asked = cost.copy()
    for _ in range(_PRICE_ROUNDS):
        for kind, count in enumerate(counts.tolist()):
            asked[kind] = np.inf
            price = 0.0
            if count < queries:
                keenness = asked.min(axis=0)
                keenness -= cost[kind]
                keenness.partition((queries - count - 1, queries - count))
                price = 0.5 * float(keenness[queries - count - 1] + keenness[queries - count])
                if may_stay_idle:
                    price = max(price, 0.0)
            prices[kind] = price
            np.add(cost[kind], price, out=asked[kind])
    return prices


class _Flow:
    """Queries by type, cheapest at the given prices, and the paths that bring their numbers to the counts.

    `steps[s, t]` is the least that moving a query from s to t costs; prices keep every step's reduced cost
    (step + price of t - price of s) at or above zero, which proves the flow cheapest for its numbers.
    """

    def __init__(self, cost: Floats, counts: Indices, prices: Floats, blanks: int) -> None:
        self.cost = cost
        self.prices = prices
        types = counts.size
        chosen = (cost + prices[:, None]).argmin(axis=0)
        self.members = [np.flatnonzero(chosen == kind) for kind in range(types)]
        self.excess = np.array([members.size for members in self.members]) - counts
        self.blanks = self._spread(blanks)
        self.excess += self.blanks
        self.extra: list[Floats] = [np.empty(0)] * types
        self.steps = np.empty((types, types))
        for kind in range(types):
            self._weigh(kind)

    def balanced(self) -> Indices:
        """Move queries until every type has its count; return int64 [queries]."""
        while (self.excess > 0).any():
            path = self._shortest_path()
            self._move_along(path)
            for kind in path:
                self._weigh(kind)
        matched = np.empty(self.cost.shape[1], np.int64)
        for kind, members in enumerate(self.members):
            matched[members] = kind
        return matched

    def _spread(self, blanks: int) -> Indices:
        """Blanks by type: only where the price is lowest, and there first where queries are missing."""
        spread = np.zeros(self.excess.size, np.int64)
        for kind in np.flatnonzero(self.prices == self.prices.min()):
            spread[kind] = min(blanks, max(-int(self.excess[kind]), 0))
            blanks -= int(spread[kind])
        spread[self.prices.argmin()] += blanks
        return spread

    def _weigh(self, kind: int) -> None:
        """Work out what it costs to move each query of this type, and the least, to every other type."""
        costs = self.cost[:, self.members[kind]]
        self.extra[kind] = costs - costs[kind]
        self.steps[kind] = self.extra[kind].min(axis=1, initial=0.0 if self.blanks[kind] else np.inf)

    def _shortest_path(self) -> list[int]:
        """The cheapest way from a type with too many queries to one with too few; prices become its distances."""
        reduced = np.maximum(self.steps + self.prices - self.prices[:, None], 0.0)
        distance = np.where(self.excess > 0, 0.0, np.inf)
        before = np.full(distance.size, -1)
        every = np.arange(distance.size)
        while True:
            through = distance[:, None] + reduced
            nearest = through.argmin(axis=0)
            found = through[nearest, every]
            shorter = found < distance
            if not shorter.any():
                break
            distance = np.where(shorter, found, distance)
            before = np.where(shorter, nearest, before)
        end = int(np.where(self.excess < 0, distance, np.inf).argmin())
        self.prices -= np.minimum(distance, distance[end])
        path = [end]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        return path[::-1]

    def _move_along(self, path: list[int]) -> None:
        """Move along each step of the path as many queries (or blanks) as can go at its least cost."""
        moved = min(int(self.excess[path[0]]), -int(self.excess[path[-1]]))
        movers: list[tuple[int, int, Indices | None]] = []
        for source, target in pairwise(path):
            least = self.steps[source, target]
            if self.blanks[source] and least == 0.0:
                moved = min(moved, int(self.blanks[source]))
                movers.append((source, target, None))
            else:
                places = np.flatnonzero(self.extra[source][target] == least)
                moved = min(moved, places.size)
                movers.append((source, target, places))
        for source, target, leaving in reversed(movers):  # from its end, so that nothing comes before others went
            if leaving is None:
                self.blanks[source] -= moved
                self.blanks[target] += moved
            else:
                members = self.members[source]
                stays = np.ones(members.size, np.bool_)
                stays[leaving[:moved]] = False
                self.members[target] = np.concatenate((self.members[target], members[leaving[:moved]]))
                self.members[source] = members[stays]
        self.excess[path[0]] -= moved
        self.excess[path[-1]] += moved
