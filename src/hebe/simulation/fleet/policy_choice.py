"""The policies that distribute queries over a pool: their names, and what each needs to be made.

Command lines, plan files, the planner that chooses by simulation, and studies all name them so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, FluidBound, fluid_bound
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.scheduling.fleet.distribution import DistributionPolicy, EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.partitioning import partitions_for
from hebe.scheduling.fleet.splitting import PricedSplitting


class PolicyKind(StrEnum):
    """By name: first come, first served (Ribbon); a size threshold (DeepRecSys); the earliest finish (Clockwork);
    Kairos' matching; splitting by the fluid bound's prices (Hebe's own)."""

    FCFS = "fcfs"
    THRESHOLD = "threshold"
    CLOCKWORK = "clockwork"
    MATCHING = "matching"
    SPLITTING = "splitting"

    @property
    def most_parts(self) -> int:
        """Into how many parts the policy may split a query, as the fluid bound counts them."""
        return DEFAULT_PARTS if self is PolicyKind.SPLITTING else 1

    def partitions(self, workers: Sequence[int]) -> int:
        """Into how many fleets a pool of `workers` [types] is dealt: one, but where decisions take longer in a larger
        fleet."""
        return partitions_for(workers) if self in (PolicyKind.MATCHING, PolicyKind.SPLITTING) else 1


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its parameters: `threshold_items` is the threshold's, `prices_qps` by server type, what a server's
    time is worth, are splitting's."""

    kind: PolicyKind
    threshold_items: int = 0
    prices_qps: Mapping[str, float] = field(default_factory=dict)

    def make(self, types: Sequence[str], sla_s: float, largest: int) -> DistributionPolicy:
        """A new policy for a fleet of these types, base first, and queries of at most `largest` items."""
        match self.kind:
            case PolicyKind.FCFS:
                return FirstComeFirstServed()
            case PolicyKind.THRESHOLD:
                return SizeThreshold(self.threshold_items)
            case PolicyKind.CLOCKWORK:
                return EarliestFinish()
            case PolicyKind.MATCHING:
                return CostMatching(sla_s, largest)
            case PolicyKind.SPLITTING:
                return PricedSplitting(sla_s, [self.prices_qps[name] for name in types], largest=largest)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file: the name, and the parameters that the policy has."""
        named: dict[str, Any] = {"name": str(self.kind)}
        if self.kind is PolicyKind.THRESHOLD:
            named["threshold_items"] = self.threshold_items
        if self.kind is PolicyKind.SPLITTING:
            named["prices_qps"] = dict(self.prices_qps)
        return named


def splitting_choice(problem: PoolProblem, bound: FluidBound) -> PolicyChoice:
    """Splitting by the prices of a pool's fluid bound."""
    prices_qps = dict(zip(problem.types, bound.splitting_prices_qps(), strict=True))
    return PolicyChoice(PolicyKind.SPLITTING, prices_qps=prices_qps)


def policy_for_pool(
    kind: PolicyKind, problem: PoolProblem, counts: Sequence[int], threshold_items: int | None = None
) -> PolicyChoice:
    """The policy with parameters that fit a pool of `counts` [types] servers.

    A threshold that is not given is the largest size that every auxiliary type of the pool serves in time, the base
    type being the problem's first. The prices of splitting are those of the pool's fluid bound. Raises `PlanningError`
    where it would split, and the pool serves some query in time neither whole nor split.
    """
    if kind is PolicyKind.THRESHOLD:
        reach = [int(items) for items, count in zip(problem.reach[1:], counts[1:], strict=True) if count]
        return PolicyChoice(kind, min(reach, default=0) if threshold_items is None else threshold_items)
    if kind is PolicyKind.SPLITTING:
        bound = fluid_bound(problem, counts, most_parts=kind.most_parts)
        if bound.unserved_items:
            raise PlanningError(
                f"splitting: the pool cannot serve queries of {bound.unserved_items} items within the SLA of"
                f" {problem.sla_s * 1e3:g} ms, split or not"
            )
        return splitting_choice(problem, bound)
    return PolicyChoice(kind)
