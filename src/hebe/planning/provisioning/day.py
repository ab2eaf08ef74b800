"""Provisioning over a day: a plan for every interval, that of the one before in mind (Hercules, IV.C).

    day = plan_day(options, demand_qps, interval_s=600, over_provision_rate=0.1, set_up_s=30)
    greedy = follow_day(options, demand_qps, 600, lambda demand, _: provision_greedily(options, demand, chance))
    day.power_saving_over(greedy).peak

A server that is started does not serve while it is set up, though it draws power: it has to be started that long before
its interval. Where that costs more than to let it run, it stays: from one interval to the next because the integer
program counts set-ups, and over dips of the load because those that are shorter than a set-up pays for are bridged.
Where no server is free that long before, one that another model gives up is late: it serves from that long after the
interval begins. A plan that would not cover the load until then is given up for one without late servers, if there is
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.program import COVERED, CoverProgram, Floats, Ints, LoadFactor, largest_load_factor
from hebe.planning.provisioning.provisioning import (
    FleetOptions,
    InfeasibleDemandError,
    Objective,
    ProvisioningPlan,
    as_numbers,
    least_cost,
    make_program,
    provision,
    search_cover,
)
from hebe.planning.provisioning.set_up import (
    SetUpProgram,
    covered_share,
    free_for_set_up,
    intervals_ahead,
    joining,
    late_start,
    late_starts,
)

_ANY_GAP = 1e9
"""A target gap for which any plan will do."""
_MOST_FAILING = 16
"""Intervals that fail and are looked at closely, for the worst."""
_IN_TIME_LIMIT_S = 0.5
"""How long HiGHS looks for any plan that is set up in time, where an interval's search is not given any time."""

Provisioner = Callable[[Floats, Ints | None], ProvisioningPlan]
"""What plans one interval: from its demand `[models]` and what runs before it `[models, types]`, if anything."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What one day saves over another, as shares of the other's: of its peak, and of its mean."""

    peak: float
    mean: float


@dataclass(frozen=True, slots=True, eq=False)
class DayPlan:
    """Servers over a day: `counts` int64 `[intervals, models, types]`, each interval `interval_s` seconds long.

    `demand_qps` `[intervals, models]` is what was to be met, without the over-provision rate. `bound`, where known, is
    what no plan's mean cost, with set-ups, is below.
    """

    options: FleetOptions
    counts: Ints
    demand_qps: Floats
    interval_s: float
    set_up_s: float
    objective: Objective
    previous: Ints | None = None
    bound: float | None = None

    @property
    def power_watts(self) -> Floats:
        """Provisioned power, float64 `[intervals]`."""
        return _summed(self.counts * self.options.power_watts)

    @property
    def price_per_hour(self) -> Floats | None:
        """Price of all servers, float64 `[intervals]`, where prices are known."""
        prices = self.options.price_per_hour
        return None if prices is None else _summed(self.counts * prices)

    @property
    def servers(self) -> Ints:
        """All servers, the paper's cluster capacity: int64 `[intervals]`."""
        servers: Ints = self.counts.sum(axis=(1, 2))
        return servers

    @property
    def servers_by_type(self) -> Ints:
        """int64 `[intervals, types]`."""
        servers: Ints = self.counts.sum(axis=1)
        return servers

    @property
    def capacity_qps(self) -> Floats:
        """What the plan can serve of each model, float64 `[intervals, models]`."""
        served: Floats = (self.counts * self.options.qps).sum(axis=2)
        return served

    @property
    def started(self) -> Ints:
        """Servers of each pair that did not run in the interval before, int64 `[intervals, models, types]`.

        None are in the first interval, unless it is known what ran before it.
        """
        before = self.counts[:1] if self.previous is None else self.previous[None]
        started: Ints = np.maximum(np.diff(self.counts, axis=0, prepend=before), 0)
        return started

    @property
    def late(self) -> Ints:
        """Those of them that other models' servers have to be taken for when the interval begins, so that they serve
        `set_up_s` after that: int64 `[intervals, models, types]`."""
        ahead = intervals_ahead(self.interval_s, self.set_up_s)
        return late_starts(self.options.available, self.counts, self.previous, ahead)

    def covered_share(self, loads_qps: Floats, step_s: float) -> Floats:
        """The share of the time in which each model's load can be served, late servers not counted before they are set
        up: float64 `[models]`. `loads_qps` `[n, models]` holds from one step of `step_s` to the next."""
        return covered_share(
            self.options.qps, self.counts, self.late, loads_qps, self.interval_s, step_s, self.set_up_s
        )

    @property
    def cost(self) -> float:
        """Mean cost over the day in the objective's unit (watts or price per hour), set-ups included."""
        cost = self.options.cost(self.objective)
        running = (self.counts * cost).sum()
        return float(running + (self.started * cost).sum() * self.set_up_s / self.interval_s) / len(self.counts)

    @property
    def gap(self) -> float | None:
        """By how much of the bound the day may be above the optimum, at most; infinite where nothing is proven, since
        the bound is 0 and the cost is not."""
        if self.bound is None:
            return None
        if self.bound > 0:
            return max(self.cost / self.bound - 1.0, 0.0)
        return math.inf if self.cost > 0 else 0.0

    @property
    def energy_kwh(self) -> float:
        """Provisioned energy over the day, set-ups included."""
        running = float(self.power_watts.sum()) * self.interval_s
        starting = float((self.started * self.options.power_watts).sum()) * self.set_up_s
        return (running + starting) / 3.6e6

    def power_saving_over(self, other: DayPlan) -> Saving:
        """What this day saves of the other's provisioned power."""
        return _saving(self.power_watts, other.power_watts)

    def capacity_saving_over(self, other: DayPlan) -> Saving:
        """What this day saves of the other's servers."""
        return _saving(self.servers.astype(np.float64), other.servers.astype(np.float64))


def plan_day(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    interval_s: float,
    *,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
    set_up_s: float = 0.0,
    previous: Ints | None = None,
    target_gap: float = 1e-3,
    time_limit_s: float = 0.5,
    seed: int = 0,
    on_interval: Callable[[int], object] | None = None,
) -> DayPlan:
    """The least power or price for `demand_qps` `[intervals, models]`.

    `set_up_s` is how long a server takes to start, or to change its model. `previous` `[models, types]` runs before the
    first interval; where it is not known, that interval's set-ups cost nothing. The other arguments are those of
    `provision`, for each interval; `on_interval` is told each interval that is planned. Raises `InfeasibleDemandError`
    that names the interval which is worst, `PlanningError` for bad input.
    """
    demand = _checked(options, demand_qps, interval_s, set_up_s)
    set_up_cost = options.cost(objective) * (set_up_s / interval_s)
    ahead = intervals_ahead(interval_s, set_up_s)
    planned: list[Ints] = []
    late: list[Ints] = []
    bounds: list[float] = []

    def missing(counts: Ints, own_late: Ints) -> Ints:
        """Of the next interval's `counts`, those that are not set up when it begins: its own and earlier late ones."""
        waiting = joining(np.stack([*planned, counts]), np.stack([*late, own_late]), len(late), interval_s, set_up_s)
        return sum((some for _, some in waiting), np.zeros_like(counts))

    def plan(load: Floats, running: Ints | None) -> ProvisioningPlan:
        made = provision(
            options,
            load,
            over_provision_rate=over_provision_rate,
            objective=objective,
            previous=running,
            set_up_cost=set_up_cost,
            target_gap=target_gap,
            time_limit_s=time_limit_s,
            seed=seed,
        )
        arguments = (options, load, over_provision_rate, objective)
        own = made.bound if ahead == 0 or not planned else None
        own_late = np.zeros_like(made.counts)
        if ahead and running is not None:
            free = free_for_set_up(options.available, planned, previous, ahead)
            own_late = late_start(free, running, made.counts)
            at_once = made.counts - missing(made.counts, own_late)
            if ((options.qps * at_once).sum(axis=1) < COVERED * load).any():
                pending = missing(running, np.zeros_like(running))
                program = make_program(*arguments, running - pending, set_up_cost)
                made = _in_time(program, free, pending, made, target_gap, time_limit_s, seed)
                own_late = late_start(free, running, made.counts)
        late.append(own_late)
        # What runs before all but the first interval is the plan's own choice, on which the bound must not rest.
        bounds.append(own or least_cost(make_program(*arguments), made.counts, target_gap, time_limit_s))
        planned.append(made.counts)
        return made

    try:
        plans = _forward(demand, interval_s, plan, previous, on_interval)
    except InfeasibleDemandError as first:
        # the largest load that fits is that of the worst interval, which need not be the first that fails
        raise (_worst_interval(options, demand, over_provision_rate, interval_s) or first) from None
    counts = np.stack([one.counts for one in plans])
    if set_up_s > interval_s:
        _bridge_dips(counts, options.available, math.ceil(set_up_s / interval_s) - 1)
    return DayPlan(options, counts, demand, interval_s, set_up_s, objective, previous, float(np.mean(bounds)))


def _in_time(
    program: CoverProgram,
    free: Ints,
    pending: Ints,
    made: ProvisioningPlan,
    target_gap: float,
    time_limit_s: float,
    seed: int,
) -> ProvisioningPlan:
    """The cheapest servers that serve already or can be set up on the `free` ones, beside those that are `pending`,
    since they are being set up still; `made` where they do not suffice."""
    if (program.previous.sum(axis=0) > program.available).any():
        return made
    limited = SetUpProgram.of(program, free)
    found = search_cover(limited.program, target_gap, time_limit_s, seed=seed, first_plan_limit_s=_IN_TIME_LIMIT_S)
    if found is None:
        return made
    counts = limited.counts(found[0]) + pending
    return ProvisioningPlan(made.options, counts, made.objective, float((program.cost * counts).sum()))


def follow_day(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    interval_s: float,
    provisioner: Provisioner,
    *,
    objective: Objective = Objective.POWER,
    set_up_s: float = 0.0,
) -> DayPlan:
    """What a provisioner does with `demand_qps` `[intervals, models]`, interval after interval: a baseline's day."""
    demand = _checked(options, demand_qps, interval_s, set_up_s)
    plans = _forward(demand, interval_s, provisioner, None, None)
    return DayPlan(options, np.stack([one.counts for one in plans]), demand, interval_s, set_up_s, objective)


def _forward(
    demand: Floats,
    interval_s: float,
    provisioner: Provisioner,
    previous: Ints | None,
    on_interval: Callable[[int], object] | None,
) -> list[ProvisioningPlan]:
    plans: list[ProvisioningPlan] = []
    for interval, load in enumerate(demand):
        plans.append(_planned(load, interval, interval_s, provisioner, previous))
        previous = plans[-1].counts
        if on_interval is not None:
            on_interval(interval)
    return plans


def _planned(
    load: Floats, interval: int, interval_s: float, provisioner: Provisioner, previous: Ints | None
) -> ProvisioningPlan:
    """One interval's plan; what is wrong with it is told with the interval."""
    try:
        return provisioner(load, previous)
    except PlanningError as fault:
        where = f"interval {interval}, from {interval * interval_s:g} s: "
        if isinstance(fault, InfeasibleDemandError):
            raise fault.in_interval(interval, where) from None
        raise PlanningError(f"{where}{fault}") from None


def _worst_interval(
    options: FleetOptions, demand: Floats, over_provision_rate: npt.ArrayLike, interval_s: float
) -> InfeasibleDemandError | None:
    """What is wrong with the interval of which the smallest share fits in whole servers; None where that is known of
    none.

    Fractions of servers bound that share from above, and rounded down from below: an interval that must fit, or fits
    better than another one, is not looked at closely. Nor are more than `_MOST_FAILING` that fail, in order of the
    bound from above.
    """
    bounds: dict[int, LoadFactor] = {}
    for interval, load in enumerate(demand):
        if load.any():
            bounds[interval] = largest_load_factor(make_program(options, load, over_provision_rate), 0.0)
    worst: InfeasibleDemandError | None = None
    failing = 0
    for interval in sorted(bounds, key=lambda interval: bounds[interval].fractional):
        least = 1.0 if worst is None else worst.load_factor
        if bounds[interval].whole >= least or failing == _MOST_FAILING:
            continue
        try:
            _planned(
                demand[interval], interval, interval_s,
                lambda load, _: provision(
                    options, load, over_provision_rate=over_provision_rate,
                    target_gap=_ANY_GAP, time_limit_s=0.0, improvement_rounds=0,
                ),
                None,
            )  # fmt: skip
        except InfeasibleDemandError as fault:
            failing += 1
            if worst is None or fault.load_factor < worst.load_factor:
                worst = fault
    return worst


def _bridge_dips(counts: Ints, available: Ints, longest: int) -> None:
    """Keep servers running over dips of up to `longest` intervals, in place; `counts` `[intervals, models, types]`.

    A server that stops and is needed again costs a set-up, more than to let it run that long. It stops nevertheless
    where its type would be exhausted meanwhile.
    """
    for length in range(1, min(longest, len(counts) - 2) + 1):
        for start in range(1, len(counts) - length):
            dip = counts[start : start + length]
            level = np.minimum(counts[start - 1], counts[start + length])
            bridged = np.maximum(dip, level)
            fits = (bridged.sum(axis=1) <= available).all(axis=0)
            dip[:, :, fits] = bridged[:, :, fits]


def _checked(options: FleetOptions, demand_qps: npt.ArrayLike, interval_s: float, set_up_s: float) -> Floats:
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise PlanningError(f"interval_s is {interval_s!r}: must be a positive number of seconds")
    if not (math.isfinite(set_up_s) and set_up_s >= 0):
        raise PlanningError(f"set_up_s is {set_up_s!r}: must be a number of seconds of at least 0")
    demand = as_numbers("demand_qps", demand_qps)
    if demand.ndim != 2 or demand.shape[1] != len(options.models) or len(demand) == 0:
        raise PlanningError(
            f"demand_qps: has shape {demand.shape}: must be one row for each interval, at least one, of "
            f"{len(options.models)} models"
        )
    return demand


def _saving(own: Floats, other: Floats) -> Saving:
    if other.max() == 0:
        return Saving(0.0, 0.0)
    return Saving(float(1 - own.max() / other.max()), float(1 - own.mean() / other.mean()))


def _summed(values: Floats) -> Floats:
    total: Floats = values.sum(axis=(1, 2))
    return total
