"""The short forms in which a command line names pools and distribution policies: `gpu=1,cpu=13`, `threshold:300`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hebe.cli.plan_files import PlanFileError
from hebe.planning.error import PlanningError
from hebe.planning.fluid_bound import DEFAULT_PARTS, fluid_bound
from hebe.planning.pool_problem import PoolProblem
from hebe.scheduling.distribution import DistributionPolicy, EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.matching import CostMatching
from hebe.scheduling.splitting import PricedSplitting

POLICY_FORMS = ("fcfs", "threshold[:ITEMS]", "clockwork", "matching", "splitting")
MOST_INSTANCES = 10_000


def parse_counts(text: str, option: str) -> dict[str, int]:
    """Counts by server type from `TYPE=COUNT,TYPE=COUNT`; `option` begins the message if it is none."""
    counts: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, number = (part.strip() for part in entry.rpartition("="))
        if not equals or not name or not number.isascii() or not number.isdigit():
            raise PlanFileError(f"{option}: {entry.strip()!r}: must be TYPE=COUNT, separated by commas")
        if name in counts:
            raise PlanFileError(f"{option}: server type {name} is given twice")
        if len(number) > 9:
            raise PlanFileError(f"{option}: {name}={number}: at most 999,999,999")
        counts[name] = int(number)
    return counts


def parse_types(text: str, option: str) -> list[str]:
    """Names of server types, separated by commas, each once."""
    names = [name.strip() for name in text.split(",")]
    for at, name in enumerate(names):
        if not name:
            raise PlanFileError(f"{option}: {text!r}: must be names separated by commas")
        if name in names[:at]:
            raise PlanFileError(f"{option}: server type {name} is given twice")
    return names


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A distribution policy by name, with its parameters as plain data, as a plan file carries them."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def make(self, types: Sequence[str], sla_s: float, largest: int) -> DistributionPolicy:
        """A new policy for a fleet of these types, base first, and queries of at most `largest` items."""
        match self.name:
            case "fcfs":
                return FirstComeFirstServed()
            case "threshold":
                return SizeThreshold(int(self.parameters["threshold_items"]))
            case "clockwork":
                return EarliestFinish()
            case "matching":
                return CostMatching(sla_s, largest)
            case "splitting":
                worth = self.parameters["prices_qps"]
                return PricedSplitting(sla_s, [float(worth[name]) for name in types], largest=largest)
        raise PlanFileError(f"policy {self.name!r}: must be one of {', '.join(POLICY_FORMS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file."""
        return {"name": self.name, **self.parameters}


def choose_policy(form: str, problem: PoolProblem, counts: Sequence[int]) -> PolicyChoice:
    """The policy that one of `POLICY_FORMS` names, with parameters that fit the pool.

    A threshold that is not given is the largest size that every auxiliary type of the pool serves in time, the base
    type being the problem's first. The splitting policy's prices are those of the pool's fluid bound.
    """
    name, colon, rest = form.strip().partition(":")
    if name == "threshold":
        if colon and not (rest.isascii() and rest.isdigit() and len(rest) <= 9):
            raise PlanFileError(f"--policy: {form!r}: must be threshold:ITEMS, a whole number")
        reach = [int(items) for items, count in zip(problem.reach[1:], counts[1:], strict=True) if count]
        return PolicyChoice(name, {"threshold_items": int(rest) if colon else min(reach, default=0)})
    if colon or name not in ("fcfs", "clockwork", "matching", "splitting"):
        raise PlanFileError(f"--policy: {form!r}: must be one of {', '.join(POLICY_FORMS)}")
    if name == "splitting":
        bound = fluid_bound(problem, counts, most_parts=DEFAULT_PARTS)
        if bound.unserved_items:
            raise PlanningError(
                f"--policy: splitting: the pool cannot serve queries of {bound.unserved_items} items within the SLA of"
                f" {problem.sla_s * 1e3:g} ms, split or not"
            )
        return PolicyChoice(name, {"prices_qps": dict(zip(problem.types, bound.splitting_prices_qps(), strict=True))})
    return PolicyChoice(name)
