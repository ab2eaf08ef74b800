"""What a pool of servers is planned from: prices, service times, query sizes, the SLA target.

A pool is a tuple of counts, one per server type, in the order of `PoolProblem.types`. Query sizes are columns: column
0 is one item, the last column the largest query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.planning.error import Parameter, PlanningError
from hebe.profile import LatencyProfile
from hebe.spec import SAFEGUARD

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BUDGET_SLACK = 1e-9
"""Share of the budget by which a pool may exceed it: prices are decimal fractions, sums of floats are not."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolProblem:
    """One model's offer of server types, and its demand.

    `types` names server types; `price_per_hour` float64 `[types]`; `service_s` float64 `[types, sizes]`, the mean
    seconds that a server needs for a query of 1, 2, ... items; `size_weights` float64 `[sizes]`, the share of queries
    of each size, summing to 1; `sla_s` the latency bound in seconds; a query is planned to take at most
    `xi * sla_s`. `workers` `[types]` is how many queries a server works at at once, each for its `service_s` (empty:
    one). Raises `PlanningError` naming the field.
    """

    types: tuple[str, ...]
    price_per_hour: Floats
    service_s: Floats
    size_weights: Floats
    sla_s: float
    xi: float = SAFEGUARD
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.types:
            raise PlanningError("pool problem: types is empty: name at least one server type")
        if len(set(self.types)) < len(self.types):
            twice = sorted({name for name in self.types if self.types.count(name) > 1})
            raise PlanningError(f"pool problem: types names {', '.join(twice)} more than once")
        prices = _numbers("price_per_hour", self.price_per_hour, 1)
        service_s = _numbers("service_s", self.service_s, 2)
        weights = _numbers("size_weights", self.size_weights, 1)
        if len(prices) != len(self.types):
            raise PlanningError(f"pool problem: price_per_hour has {len(prices)} entries for {len(self.types)} types")
        for name, price in zip(self.types, prices.tolist(), strict=True):
            if price <= 0:
                raise PlanningError(f"pool problem: price_per_hour of {name} is {price}: must be positive")
        if len(service_s) != len(self.types):
            raise PlanningError(
                f"pool problem: service_s has shape {list(service_s.shape)}: must be {len(self.types)} server types"
                " by at least one query size"
            )
        for name, row in zip(self.types, service_s, strict=True):
            if row.min() <= 0:
                items = int(row.argmin()) + 1
                raise PlanningError(
                    f"pool problem: service_s of {name} at {items} items is {row.min()}: must be positive seconds"
                )
        if weights.shape != service_s.shape[1:]:
            raise PlanningError(
                f"pool problem: size_weights has {len(weights)} entries, service_s {service_s.shape[1]} query sizes"
            )
        if weights.min() < 0:
            raise PlanningError(f"pool problem: size_weights has a negative entry, {weights.min()}")
        if not math.isclose(weights.sum(), 1, abs_tol=1e-6):
            raise PlanningError(f"pool problem: size_weights sums to {weights.sum():.6g}: must be 1")
        if not (math.isfinite(self.sla_s) and self.sla_s > 0):
            raise PlanningError(
                "pool problem: ", Parameter("sla_s"), f" is {self.sla_s}: must be a positive number of seconds"
            )
        if not 0 < self.xi <= 1:
            raise PlanningError(f"pool problem: xi is {self.xi}: must lie in (0, 1]")
        if service_s.min() > self.xi * self.sla_s:
            raise PlanningError(
                "pool problem: ",
                Parameter("sla_s"),
                f" is {self.sla_s:g} (times xi {self.xi:g}), below the fastest service time of any"
                f" server type and query size, {service_s.min():g}: nothing can be served in time",
            )
        if len(self.workers) not in (0, len(self.types)) or any(count < 1 for count in self.workers):
            raise PlanningError(f"pool problem: workers is {self.workers}: must be at least 1 of each server type")
        for field, values in (("price_per_hour", prices), ("service_s", service_s), ("size_weights", weights)):
            object.__setattr__(self, field, values)

    @classmethod
    def from_profiles(
        cls,
        model: str,
        price_per_hour: Mapping[str, float],
        profiles: Mapping[tuple[str, str], LatencyProfile],
        size_weights: Floats,
        sla_s: float,
        xi: float = SAFEGUARD,
    ) -> PoolProblem:
        """The problem of `model` on the server types that have a price, from measured `profiles` by (model, server
        type), as many sizes as `size_weights` has. Raises `PlanningError` for a pair that was not measured."""
        largest = len(size_weights)
        rows = []
        for name in price_per_hour:
            profile = profiles.get((model, name))
            if profile is None:
                raise PlanningError(
                    f"profiles: none of model {model} on server type {name}: measure it, or take {name} off the prices"
                )
            rows.append([profile.service_time_s(items) for items in range(1, largest + 1)])
        table = np.array(rows, dtype=np.float64).reshape(len(rows), largest)
        return cls(tuple(price_per_hour), np.array(list(price_per_hour.values())), table, size_weights, sla_s, xi)

    @property
    def workers_per_server(self) -> Ints:
        """Queries that a server works at at once, int64 `[types]`."""
        return np.array(self.workers or [1] * len(self.types), dtype=np.int64)

    @property
    def limit_s(self) -> float:
        """Seconds that a query may be planned to take."""
        return self.xi * self.sla_s

    @property
    def largest(self) -> int:
        """Items of the largest query."""
        return int(self.service_s.shape[1])

    @property
    def in_time(self) -> Bools:
        """Whether a type serves a size in time, bool `[types, sizes]`."""
        in_time: Bools = self.service_s <= self.limit_s
        return in_time

    @property
    def reach(self) -> Ints:
        """Items up to which a type serves every size in time, int64 `[types]`: Kairos' s. A size that no query has
        counts only beyond those that queries have and the type serves in time: before them it is noise."""
        late = self._late
        reach: Ints = np.where(late.any(axis=1), late.argmax(axis=1), self.largest)
        return reach

    @property
    def _late(self) -> Bools:
        """Which sizes end a type's reach, bool `[types, sizes]`."""
        sent = self.size_weights > 0
        sent_beyond = np.maximum.accumulate((self.in_time & sent)[:, ::-1], axis=1)[:, ::-1]
        late: Bools = ~self.in_time & (sent | ~sent_beyond)
        return late

    def base_type(self) -> int:
        """Index of the base type: of those that serve every size in time, the one whose homogeneous pool costs least
        per query. Raises `PlanningError` if there is none."""
        whole = np.flatnonzero(self.reach == self.largest)
        if not len(whole):
            service_s = np.where(self.in_time | self._late, self.service_s, 0.0)
            nearest = int(service_s.max(axis=1).argmin())
            items = int(service_s[nearest].argmax()) + 1
            raise PlanningError(
                f"no server type meets the SLA of {self.sla_s:g} s (times xi {self.xi:g}) at every query size up to"
                f" {self.largest} items; {self.types[nearest]} comes nearest with {service_s[nearest].max():g} s"
                f" at {items} items: raise ",
                Parameter("sla_s"),
                ", offer a faster server type, bound the query size, or allow splitting",
            )
        per_worker = self.price_per_hour[whole] / self.workers_per_server[whole]
        per_query = per_worker * (self.service_s[whole] @ self.size_weights)
        return int(whole[per_query.argmin()])

    def cost_per_hour(self, pools: Ints) -> Floats:
        """Price of each pool, float64 `[pools]`, of counts `[pools, types]`."""
        cost: Floats = pools @ self.price_per_hour
        return cost

    def checked_counts(self, counts: Sequence[int] | Ints) -> Ints:
        """One pool's counts as int64 `[types]`; raises `PlanningError` if they are not whole and at least 0."""
        pool: Ints = self.checked_pools(np.asarray(counts)[np.newaxis])[0]
        return pool

    def checked_pools(self, pools: Ints) -> Ints:
        """Counts of many pools, int64 `[pools, types]`; raises `PlanningError` if they are not whole, at least 0."""
        given = np.asarray(pools)
        if given.ndim != 2 or given.shape[1] != len(self.types):
            raise PlanningError(f"pool counts have shape {list(given.shape)}: must be pools by {len(self.types)} types")
        if not np.issubdtype(given.dtype, np.integer):
            raise PlanningError(f"pool counts are {given.dtype}: must be whole numbers")
        if given.size and given.min() < 0:
            raise PlanningError(f"pool counts: {given.min()} is negative")
        return given.astype(np.int64, copy=False)


def checked_budget(budget_per_hour: float) -> float:
    """The budget, if it is one; else raises `PlanningError`."""
    if not (math.isfinite(budget_per_hour) and budget_per_hour > 0):
        raise PlanningError(Parameter("budget_per_hour"), f" is {budget_per_hour}: must be a positive price per hour")
    return float(budget_per_hour)


def checked_limits(problem: PoolProblem, most_counts: Sequence[int] | None) -> list[int] | None:
    """Most servers of each type, if that is limited; raises `PlanningError` if the limits make no sense."""
    if most_counts is None:
        return None
    if len(most_counts) != len(problem.types):
        raise PlanningError(
            Parameter("most_counts"), f" has {len(most_counts)} entries for {len(problem.types)} server types"
        )
    for name, most in zip(problem.types, most_counts, strict=True):
        if most < 0:
            raise PlanningError(Parameter("most_counts"), f" of {name} is {most}: must be at least 0")
    return [int(most) for most in most_counts]


def _numbers(field: str, values: Floats, dimensions: int) -> Floats:
    """A read-only float64 copy with that many dimensions, all finite."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as fault:
        raise PlanningError(f"pool problem: {field} is not an array of numbers: {fault}") from None
    if array.ndim != dimensions:
        raise PlanningError(f"pool problem: {field} has {array.ndim} dimensions: must have {dimensions}")
    if array.size == 0:
        raise PlanningError(f"pool problem: {field} is empty")
    if not np.isfinite(array).all():
        raise PlanningError(f"pool problem: {field} holds NaN or an infinity")
    array.setflags(write=False)
    return array
