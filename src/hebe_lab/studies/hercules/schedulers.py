"""Days of a cluster under each of the schedulers that Hercules compares, and steady loads: plans, nothing measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.baselines import provision_by_priority, provision_greedily, provision_obliviously
from hebe.planning.provisioning.day import DayPlan, Provisioner, Saving, follow_day, plan_day
from hebe.planning.provisioning.program import largest_load_factor
from hebe.planning.provisioning.provisioning import FleetOptions, ProvisioningPlan, make_program, provision

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NO_HURRY_S = 60.0
"""The program's search ends at its gap, within a second or so: were it the clock, no two runs would be the same."""

_SEED = 20_220_211
_PATIENCE = 50
_SURE_DRAWS = 20


@dataclass(frozen=True, slots=True)
class Effort:
    """`seeds` of the random schedulers, the gap at which the program's search ends, and the over-provision rate."""

    seeds: int
    target_gap: float
    rate: float


@dataclass(frozen=True, slots=True, eq=False)
class ClusterDays:
    """One cluster's day under each scheduler, the random ones' by seed."""

    fleet: FleetOptions
    edges_s: Floats
    hercules: DayPlan
    priority: DayPlan
    greedy: Sequence[DayPlan]
    oblivious: Sequence[DayPlan]

    def hercules_over_greedy(self, saving: SavingOver) -> list[Saving]:
        """By greedy's seeds."""
        return [saving(self.hercules, other) for other in self.greedy]

    def priority_over_greedy(self, saving: SavingOver) -> list[Saving]:
        """By greedy's seeds."""
        return [saving(self.priority, other) for other in self.greedy]

    def greedy_over_oblivious(self, saving: SavingOver) -> list[Saving]:
        """By seeds."""
        return [saving(greedy, other) for greedy, other in zip(self.greedy, self.oblivious, strict=True)]


SavingOver = Callable[[DayPlan, DayPlan], Saving]
"""`DayPlan.power_saving_over` or `DayPlan.capacity_saving_over`."""


class _ByChance(Protocol):
    def __call__(
        self, options: FleetOptions, demand_qps: Floats, chance: np.random.Generator, *, over_provision_rate: float
    ) -> ProvisioningPlan: ...


def cluster_days(fleet: FleetOptions, peak_qps: Floats, day: tuple[Floats, Floats], effort: Effort) -> ClusterDays:
    """Every scheduler's day under the same load: `day` is its interval edges (s) and its curve, `peak_qps` `[models]`
    the load where that is 1."""
    edges_s, curve = day
    interval_s = float(edges_s[1] - edges_s[0])
    demand = curve[:, None] * peak_qps

    def by_priority(load: Floats, _: Ints | None) -> ProvisioningPlan:
        return provision_by_priority(fleet, load, over_provision_rate=effort.rate)

    def random_days(by: _ByChance, kind: int) -> list[DayPlan]:
        return [
            follow_day(fleet, demand, interval_s, _patient(by, fleet, effort.rate, (_SEED, kind, seed)))
            for seed in range(effort.seeds)
        ]

    return ClusterDays(
        fleet,
        edges_s,
        plan_day(
            fleet,
            demand,
            interval_s,
            over_provision_rate=effort.rate,
            target_gap=effort.target_gap,
            time_limit_s=NO_HURRY_S,
        ),
        follow_day(fleet, demand, interval_s, by_priority),
        random_days(provision_greedily, 1),
        random_days(provision_obliviously, 0),
    )


def _patient(by: _ByChance, fleet: FleetOptions, rate: float, seed: tuple[int, ...]) -> Provisioner:
    """A random scheduler that draws again where its draw leaves a model without servers."""
    chance = np.random.default_rng(seed)

    def draw(load: Floats, _: Ints | None) -> ProvisioningPlan:
        for _attempt in range(_PATIENCE - 1):
            try:
                return by(fleet, load, chance, over_provision_rate=rate)
            except PlanningError:
                continue
        return by(fleet, load, chance, over_provision_rate=rate)

    return draw


def largest_oblivious_qps(fleet: FleetOptions, direction: Floats, rate: float) -> Floats:
    """The greatest load in this direction that the oblivious scheduler serves in each of twenty draws."""

    def serves(scale: float) -> bool:
        chance = np.random.default_rng((_SEED, 2))
        try:
            for _ in range(_SURE_DRAWS):
                provision_obliviously(fleet, scale * direction, chance, over_provision_rate=rate)
        except PlanningError:
            return False
        return True

    low, high = 0.0, 1.0
    while serves(high):
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low * direction


def largest_load_qps(fleet: FleetOptions, direction: Floats, rate: float) -> Floats:
    """The greatest load in this direction that any plan serves, in fractions of servers."""
    return direction * largest_load_factor(make_program(fleet, direction, rate), 0.0).fractional


@dataclass(frozen=True, slots=True)
class SteadySavings:
    """What is saved at a steady load: shares of the other's power and servers."""

    hercules_power: float
    hercules_servers: float
    greedy_power: float
    greedy_servers: float
    priority_power: float


SAVINGS: Mapping[str, str] = {
    "Hercules over greedy: power": "hercules_power",
    "Hercules over greedy: servers": "hercules_servers",
    "greedy over oblivious: power": "greedy_power",
    "greedy over oblivious: servers": "greedy_servers",
}
"""Fields of `SteadySavings` by the words that pictures and tables have for them."""


def savings_at(fleet: FleetOptions, load_qps: Floats, effort: Effort) -> SteadySavings:
    """Of Hercules over greedy, of greedy over oblivious, and of the priority-aware one over greedy; means over the
    random ones' seeds."""
    hercules = provision(
        fleet, load_qps, over_provision_rate=effort.rate, target_gap=effort.target_gap, time_limit_s=NO_HURRY_S
    )
    priority = provision_by_priority(fleet, load_qps, over_provision_rate=effort.rate)
    drawn = []
    for seed in range(effort.seeds):
        plan = partial(_patient, fleet=fleet, rate=effort.rate, seed=(_SEED, 3, seed))
        greedy, oblivious = plan(provision_greedily)(load_qps, None), plan(provision_obliviously)(load_qps, None)
        drawn.append(
            (
                1 - hercules.power_watts / greedy.power_watts,
                1 - hercules.servers / greedy.servers,
                1 - greedy.power_watts / oblivious.power_watts,
                1 - greedy.servers / oblivious.servers,
                1 - priority.power_watts / greedy.power_watts,
            )
        )
    return SteadySavings(*np.mean(drawn, axis=0).tolist())
