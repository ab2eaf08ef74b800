"""How many servers of which type each model gets, at the least provisioned power or price (Hercules, IV.C).

    options = FleetOptions.from_tuples(tuples, available={"T2": 70, "T3": 15, "T7": 5})
    plan = provision(options, demand_qps, over_provision_rate=0.1)
    plan.counts      # [models, types]
    plan.gap         # how far its cost is from what is proven to be the least, at most

The optimum is searched for in whole servers: the relaxation bounds it (`program`), its rounding comes
near (`rounding`), and HiGHS closes what gap is left where the program is small enough for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.program import (
    CoverProgram,
    Floats,
    Ints,
    LoadFactor,
    largest_load_factor,
    relax,
    search_exactly,
)
from hebe.planning.provisioning.rounding import Rounding
from hebe.profile import EfficiencyTuple

_MOST_EXACT_COLUMNS = 4000
"""Up to how many pairs HiGHS improves on what the rounding found, within a few seconds."""
_FIRST_PLAN_LIMIT_S = 10.0
"""How long HiGHS looks for any plan at all where the rounding found none."""
_LOAD_FACTOR_LIMIT_S = 2.0
"""How long HiGHS looks for the largest load that fits, in whole servers."""
_PROVEN_BY = 1e-6
"""How far what whole servers can serve must lie below a demand for that to be no matter of the solver's tolerance."""
_ROUNDS_PER_MODEL = 1
_MOST_AVAILABLE = 1e12
"""Servers of a type, beyond which sums of them are not exact."""
_SLACK = 1e-10
"""Of a number, by which it may be below the one that it should be: less than `COVERED` allows."""


class Objective(StrEnum):
    """What provisioning minimises."""

    POWER = "power"
    PRICE = "price"


def rounded_down(value: float) -> float:
    """A positive number with four digits, or three below 1e-3, or whole from 1000 on, as numbers are told, but never
    more than it is: that of a load that fits fits too."""
    step = 10.0 ** (math.floor(math.log10(value)) - (3 if value >= 1e-3 else 2)) if value else 1.0
    step = min(step, 1.0)
    return math.floor(value / step * (1 + _SLACK)) * step


def share_in_words(load_factor: float) -> str:
    """How much of a load fits."""
    if not load_factor:
        return "no share of this load was found to fit in whole servers"
    return f"{rounded_down(load_factor):.4g} of this load fits"


class InfeasibleDemandError(PlanningError):
    """A demand that the available servers cannot meet, for a `reason` in words.

    `load_factor` times the demand fits, all models alike (0: no share was found that does); `server_types` are
    exhausted, by `models`. `interval` is that of a day, where it is one.
    """

    def __init__(
        self,
        reason: str,
        load_factor: float,
        models: tuple[str, ...] = (),
        server_types: tuple[str, ...] = (),
        *,
        advice: str = "",
        interval: int | None = None,
        where: str = "",
    ) -> None:
        self.fits = f"; {share_in_words(load_factor)}, all models alike" if server_types else ""
        """Of the message, how much of the demand fits."""
        super().__init__(f"{where}demand_qps: {reason}{self.fits}{advice and f': {advice}'}")
        self.reason = reason
        self.advice = advice
        self.load_factor = load_factor
        self.models = models
        self.server_types = server_types
        self.interval = interval

    def in_interval(self, interval: int, where: str) -> InfeasibleDemandError:
        """The same, told of an interval; `where` begins the message."""
        return InfeasibleDemandError(
            self.reason, self.load_factor, self.models, self.server_types,
            advice=self.advice, interval=interval, where=where,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class FleetOptions:
    """What servers could be had, and what each would do for each model.

    `qps` and `power_watts` float64 `[models, types]`: the efficiency tuples; a `qps` of 0 says that the type cannot
    serve the model. `available` int64 `[types]`. `price_per_hour` float64 `[types]`, where prices are known.
    """

    models: tuple[str, ...]
    server_types: tuple[str, ...]
    qps: Floats
    power_watts: Floats
    available: Ints
    price_per_hour: Floats | None = None

    def __post_init__(self) -> None:
        for name, names in (("models", self.models), ("server_types", self.server_types)):
            if not names:
                raise PlanningError(f"fleet options: {name} is empty: name at least one")
            if twice := sorted({one for one in names if names.count(one) > 1}):
                raise PlanningError(f"fleet options: {name} has {twice[0]!r} twice: names must differ")
        pairs = (len(self.models), len(self.server_types))
        for name, values in (("qps", self.qps), ("power_watts", self.power_watts)):
            self._set(name, _finite(name, values, pairs))
        if ((self.qps > 0) & (self.power_watts == 0)).any():
            model, kind = np.argwhere((self.qps > 0) & (self.power_watts == 0))[0]
            pair = f"{self.models[model]} on {self.server_types[kind]}"
            raise PlanningError(f"fleet options: power_watts of {pair} is 0: a server that serves draws power")
        available = _finite("available", self.available, pairs[1:])
        if (available != np.floor(available)).any():
            raise PlanningError("fleet options: available must be whole numbers of servers")
        if (available > _MOST_AVAILABLE).any():
            raise PlanningError(f"fleet options: available is {available.max():g}: must be at most {_MOST_AVAILABLE:g}")
        self._set("available", available.astype(np.int64))
        if self.price_per_hour is not None:
            self._set("price_per_hour", _finite("price_per_hour", self.price_per_hour, pairs[1:]))

    def _set(self, name: str, value: npt.NDArray[Any]) -> None:
        value.flags.writeable = False
        object.__setattr__(self, name, value)

    @classmethod
    def from_tuples(
        cls,
        tuples: Iterable[EfficiencyTuple],
        available: Mapping[str, int],
        price_per_hour: Mapping[str, float] | None = None,
    ) -> FleetOptions:
        """From efficiency tuples, one for every pair of a model that occurs and a server type in `available`.

        Tuples of other server types are left aside. A pair that is missing is an error: what a type cannot serve has a
        tuple with a `qps` of 0.
        """
        held: dict[tuple[str, str], EfficiencyTuple] = {}
        for one in tuples:
            if (one.model, one.server_type) in held:
                raise PlanningError(f"efficiency tuples: {one.model} on {one.server_type} is given twice")
            held[one.model, one.server_type] = one
        models = tuple(dict.fromkeys(model for model, _ in held))
        kinds = tuple(available)
        for model in models:
            for kind in kinds:
                if (model, kind) not in held:
                    raise PlanningError(
                        f"efficiency tuples: {model} on {kind} is missing: measure it, or give it a qps of 0 if {kind} "
                        f"cannot serve {model}"
                    )
        prices = None
        if price_per_hour is not None:
            for kind in kinds:
                if kind not in price_per_hour:
                    raise PlanningError(f"price_per_hour: server type {kind} is missing")
            prices = np.array([price_per_hour[kind] for kind in kinds], dtype=np.float64)
        pairs = [[held[model, kind] for kind in kinds] for model in models]
        return cls(
            models,
            kinds,
            np.array([[one.qps for one in row] for row in pairs], dtype=np.float64).reshape(len(models), len(kinds)),
            np.array([[one.power_watts for one in row] for row in pairs], dtype=np.float64).reshape(
                len(models), len(kinds)
            ),
            np.array([available[kind] for kind in kinds], dtype=np.float64),
            prices,
        )

    def cost(self, objective: Objective) -> Floats:
        """What one server of a pair costs, float64 `[models, types]`: watts, or price per hour."""
        if objective is Objective.POWER:
            return self.power_watts
        if self.price_per_hour is None:
            raise PlanningError("price_per_hour is not known: give prices, or minimise power")
        return np.broadcast_to(self.price_per_hour, self.qps.shape)


@dataclass(frozen=True, slots=True, eq=False)
class ProvisioningPlan:
    """How many servers of each type each model gets: `counts` int64 `[models, types]`.

    `cost` is what they cost in the objective's unit (watts or price per hour), `set_up_cost` what starting those costs
    that did not run before. No plan has a lower sum of both than `bound` (None: nothing is proven, as of a baseline).
    """

    options: FleetOptions
    counts: Ints
    objective: Objective
    cost: float
    set_up_cost: float = 0.0
    bound: float | None = None

    @property
    def gap(self) -> float | None:
        """By how much of the bound the plan may be above the optimum, at most; 0 where it is proven to be optimal."""
        if self.bound is None:
            return None
        total = self.cost + self.set_up_cost
        excess = max(total - self.bound, 0.0)
        return 0.0 if excess <= 1e-9 * total else excess / self.bound if self.bound > 0 else float("inf")

    @property
    def power_watts(self) -> float:
        """Provisioned power."""
        return float((self.counts * self.options.power_watts).sum())

    @property
    def price_per_hour(self) -> float | None:
        """Price of all servers, where prices are known."""
        prices = self.options.price_per_hour
        return None if prices is None else float((self.counts * prices).sum())

    @property
    def servers(self) -> int:
        """All servers."""
        return int(self.counts.sum())

    @property
    def capacity_qps(self) -> Floats:
        """What the plan can serve of each model, float64 `[models]`."""
        served: Floats = (self.counts * self.options.qps).sum(axis=1)
        return served


def provision(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    *,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
    previous: Ints | None = None,
    set_up_cost: npt.ArrayLike = 0.0,
    target_gap: float = 1e-3,
    time_limit_s: float = 2.0,
    improvement_rounds: int | None = None,
    seed: int = 0,
) -> ProvisioningPlan:
    """The cheapest servers that meet `demand_qps` `[models]`, each raised by `over_provision_rate` (0.1: by a tenth).

    A server that does not run in `previous` `[models, types]` costs `set_up_cost` more (a number, or `[models, types]`,
    in the objective's unit). The search ends within `target_gap` of the proven bound; `improvement_rounds` bounds its
    own part (some milliseconds each), and `time_limit_s` that of HiGHS, which takes part up to some thousand pairs. At
    0 HiGHS is only asked where no plan was found at all.

    Raises `InfeasibleDemandError`, which names what is exhausted and the largest load that fits, and `PlanningError`
    for bad input.
    """
    program = make_program(options, demand_qps, over_provision_rate, objective, previous, set_up_cost)
    if not (np.isfinite(target_gap) and target_gap >= 0):
        raise PlanningError(f"target_gap is {target_gap!r}: must be a number of at least 0")
    if not time_limit_s >= 0:
        raise PlanningError(f"time_limit_s is {time_limit_s!r}: must be a number of seconds of at least 0")
    found = search_cover(program, target_gap, time_limit_s, improvement_rounds, seed)
    counts, bound = _by_load_factor(options, program) if found is None else found
    value = program.value(counts)
    cost = float((program.cost * counts).sum())
    return ProvisioningPlan(options, counts, objective, cost, max(value - cost, 0.0), min(bound, value))


def search_cover(
    program: CoverProgram,
    target_gap: float,
    time_limit_s: float,
    rounds: int | None = None,
    seed: int = 0,
    *,
    first_plan_limit_s: float = _FIRST_PLAN_LIMIT_S,
) -> tuple[Ints, float] | None:
    """Servers `[models, types]` for a program, and what none cost less than, searched for as `provision` says.

    None where no plan was found, by HiGHS for `time_limit_s`, or `first_plan_limit_s` if that is 0; which nearly always
    means that there is none.
    """
    program = program.capped()
    relaxation = relax(program)
    if relaxation is None:
        return None
    rounds = _ROUNDS_PER_MODEL * len(program.demand) if rounds is None else rounds
    good_enough = relaxation.bound * (1 + target_gap)
    rounding = Rounding(program, relaxation, relaxation.counts, np.random.default_rng(seed))
    rounding.round()
    rounding.improve(rounds, good_enough)
    counts, bound = rounding.counts, relaxation.bound
    if len(rounding.short_models):
        first = search_exactly(program, relaxation, np.inf, target_gap, time_limit_s or first_plan_limit_s)
        if first is None or first.counts is None or not program.is_met(first.counts):
            return None
        return first.counts, first.bound
    if time_limit_s > 0 and rounding.value > good_enough:
        found = search_exactly(program, relaxation, rounding.value, target_gap, time_limit_s, _MOST_EXACT_COLUMNS)
        if found is not None:
            bound = max(bound, found.bound)
            if (
                found.counts is not None
                and program.is_met(found.counts)
                and program.value(found.counts) < rounding.value
            ):
                counts = found.counts
    return counts, bound


def least_cost(program: CoverProgram, counts: Ints, target_gap: float, time_limit_s: float) -> float:
    """What no servers for a program cost less than; `counts` are some that meet it. As near as `provision` looks."""
    program = program.capped()
    relaxation = relax(program)
    if relaxation is None:  # by the solver's tolerance: nothing is proven
        return 0.0
    value, bound = program.value(counts), relaxation.bound
    if time_limit_s > 0 and value > bound * (1 + target_gap):
        found = search_exactly(program, relaxation, value, target_gap, time_limit_s, _MOST_EXACT_COLUMNS)
        bound = bound if found is None else max(bound, found.bound)
    return min(bound, value)


def make_program(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
    previous: Ints | None = None,
    set_up_cost: npt.ArrayLike = 0.0,
) -> CoverProgram:
    """The program of `provision`'s arguments, checked. Raises `PlanningError` naming the argument."""
    count = len(options.models)
    demand = _finite("demand_qps", demand_qps, (count,))
    rate = _finite("over_provision_rate", over_provision_rate, (count,), spread=True)
    running = np.zeros(options.qps.shape) if previous is None else _finite("previous", previous, options.qps.shape)
    set_up = _finite("set_up_cost", set_up_cost, options.qps.shape, spread=True)
    return CoverProgram(
        options.qps,
        options.cost(objective),
        set_up if previous is not None else np.zeros(options.qps.shape),
        running.astype(np.int64),
        options.available,
        demand * (1 + rate),
    )


def _by_load_factor(options: FleetOptions, program: CoverProgram) -> tuple[Ints, float]:
    """A plan and its bound, where the search for the largest load that fits finds what other searches did not; else
    raises `InfeasibleDemandError`, which says what stands in the way of the demand, and how much of it fits."""
    homeless = np.flatnonzero((program.demand > 0) & ~program.usable.any(axis=1))
    if len(homeless):
        names = tuple(options.models[model] for model in homeless)
        reason = f"no available server type can serve {_listed(names)}: on each its qps or the type's available is 0"
        raise InfeasibleDemandError(reason, 0.0, names)
    factor = largest_load_factor(program, _LOAD_FACTOR_LIMIT_S)
    if not program.is_met(factor.counts):
        raise _too_much(options, factor)
    relaxation = relax(program)
    return factor.counts, 0.0 if relaxation is None else relaxation.bound


def _too_much(options: FleetOptions, factor: LoadFactor) -> InfeasibleDemandError:
    """For a demand of models that can all be served, of which only so much fits."""
    models = tuple(options.models[model] for model in factor.models)
    kinds = tuple(options.server_types[kind] for kind in factor.types)
    if factor.most > 1 - _PROVEN_BY:
        reason = f"no whole servers that meet it were found in {_LOAD_FACTOR_LIMIT_S:g} s, only fractions"
        reason += f": of {_listed(kinds)} {_listed(models)} would take all"
        advice = "add a server of these types, or search for longer"
    elif factor.fractional >= 1:
        reason = f"only fractions of servers would meet it: of {_listed(kinds)} {_listed(models)} would take all"
        advice = "add a server of these types"
    else:
        reason = f"more than the servers can serve: all of {_listed(kinds)} are taken by {_listed(models)}"
        advice = "add servers of these types, or lower the over-provision rate"
    return InfeasibleDemandError(reason, factor.whole, models, kinds, advice=advice)


def as_numbers(name: str, values: npt.ArrayLike) -> Floats:
    """A float64 copy of an argument; raises `PlanningError` naming it if it is none."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanningError(f"{name}: must be numbers") from None


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _finite(name: str, values: npt.ArrayLike, shape: tuple[int, ...], *, spread: bool = False) -> Floats:
    """A float64 array of `shape`, all finite and at least 0; `spread`: a single number stands for all."""
    array = as_numbers(name, values)
    if spread and array.ndim == 0:
        array = np.full(shape, float(array))
    if array.shape != shape:
        raise PlanningError(f"{name}: has shape {array.shape}: must be {shape}, one for each name")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise PlanningError(f"{name}: is {array[at]} at {at}: must be finite and at least 0")
    return array
