"""What `hebe plan provision` does between reading its files and showing the result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.cli.plan_files import PlanFileError, read_efficiency, read_servers
from hebe.cli.plan_loads import Loads, read_loads
from hebe.cli.plan_profiles import check_throughputs_compare
from hebe.planning.error import PlanningError
from hebe.planning.over_provision import over_provision_rate
from hebe.planning.provisioning import FleetOptions, InfeasibleDemandError, Objective, rounded_down
from hebe.planning.provisioning_baselines import provision_by_priority, provision_greedily, provision_obliviously
from hebe.planning.provisioning_day import DayPlan, Provisioner, follow_day, plan_day
from hebe.profile import EfficiencyTuple
from hebe.report.tables import format_number

Floats = npt.NDArray[np.float64]

_INTERVAL_S = 600.0
_MOST_LISTED = 8
"""Models of which a message tells figures."""


@dataclass(frozen=True, slots=True)
class ProvisionRequest:
    """What the command line asks for."""

    efficiency: Path
    servers: Path
    loads: Path
    history: Path | None
    interval_s: float | None
    over_provision: float | None
    quantile: float
    objective: Objective
    set_up_s: float
    gap: float
    time_limit_s: float
    baselines: bool

    @property
    def files(self) -> dict[str, Path]:
        """What is read, by what it is."""
        read = {"efficiency": self.efficiency, "servers": self.servers, "loads": self.loads, "history": self.history}
        return {name: path for name, path in read.items() if path is not None}


@dataclass(frozen=True, slots=True, eq=False)
class ProvisionPlanMade:
    """The plan of a day, what it rests on, and what others would have done.

    `rates` float64 `[models]`, the over-provision rates; `covered` `[models]`, the share of the time in which servers
    that are set up can serve the load. `baselines` by name: a day, or why there is none. `remarks` say what was unlike
    when the tuples were measured.
    """

    request: ProvisionRequest
    tuples: tuple[EfficiencyTuple, ...]
    loads: Loads
    rates: Floats
    day: DayPlan
    covered: Floats
    baselines: dict[str, DayPlan | str]
    remarks: tuple[str, ...] = ()

    @property
    def days(self) -> dict[str, DayPlan]:
        """This plan, and the baselines that have one, by name."""
        followed = {name: day for name, day in self.baselines.items() if isinstance(day, DayPlan)}
        return {"this plan": self.day} | followed

    @property
    def edges_s(self) -> Floats:
        """Where intervals begin, and where the last one ends: float64 `[intervals + 1]`."""
        return np.asarray(np.arange(len(self.day.counts) + 1) * self.day.interval_s, dtype=np.float64)


def make_provision_plan(request: ProvisionRequest, progress: Progress) -> ProvisionPlanMade:
    """Read the files, plan every interval, and follow the baselines. Raises errors that name file, line and field."""
    offers = read_servers(request.servers)
    tuples = read_efficiency(
        request.efficiency, {kind: offer.power_watts for kind, offer in offers.items() if offer.power_watts is not None}
    )
    models = tuple(dict.fromkeys(one.model for one in tuples))
    loads = read_loads(request.loads, models)
    used = tuple(one for one in tuples if one.model in loads.models and one.server_type in offers)
    _check_pairs(request.efficiency, used, loads.models, tuple(offers))
    remarks = check_throughputs_compare(request.efficiency, {(one.model, one.server_type) for one in used})
    prices = {kind: offer.price_per_hour for kind, offer in offers.items() if offer.price_per_hour is not None}
    if request.objective is Objective.PRICE and not prices:
        raise PlanFileError(f"{request.servers}: price_per_hour is missing: it is to be minimised")
    options = FleetOptions.from_tuples(
        sorted(used, key=lambda one: loads.models.index(one.model)),
        {kind: offer.available for kind, offer in offers.items()},
        prices or None,
    )
    interval_s, stride = _interval(request, loads)
    rates = _rates(request, loads, models, interval_s)
    demand = loads.qps[::stride]
    task = progress.add_task("planning intervals", total=len(demand))
    try:
        day = plan_day(
            options,
            demand,
            interval_s,
            over_provision_rate=rates,
            objective=request.objective,
            set_up_s=request.set_up_s,
            target_gap=request.gap,
            time_limit_s=request.time_limit_s,
            on_interval=lambda _: progress.advance(task),
        )
    except InfeasibleDemandError as fault:
        raise PlanFileError(_too_much(loads, stride, rates, fault)) from None
    covered = day.covered_share(loads.qps, interval_s / stride)
    others = _baselines(options, demand, day, rates) if request.baselines else {}
    return ProvisionPlanMade(request, used, loads, rates, day, covered, others, tuple(remarks))


def _too_much(loads: Loads, stride: int, rates: Floats, fault: InfeasibleDemandError) -> str:
    """Where the load is that cannot be met, why, at which over-provision rates, and how much of it can."""
    at = (fault.interval or 0) * stride
    load, raised = loads.qps[at], rates.any()
    told = f", with over-provision rates of {_listed(loads.models, rates)}" if raised else ""
    fits = fault.fits
    if fault.load_factor:
        by_model = np.array([rounded_down(qps) for qps in (load * fault.load_factor).tolist()])
        fits += f", in queries/s: {_listed(loads.models, by_model)}"
    advice = fault.advice if raised else fault.advice.removesuffix(", or lower the over-provision rate")
    return f"{loads.where[at]}: the load cannot be met{told}: {fault.reason}{fits}{advice and f': {advice}'}"


def _listed(models: tuple[str, ...], values: Floats) -> str:
    """What is not 0, with its model, and of how many more than a few."""
    words = [f"{model} {format_number(value)}" for model, value in zip(models, values.tolist(), strict=True) if value]
    more = f" and {len(words) - _MOST_LISTED} more" if len(words) > _MOST_LISTED else ""
    return ", ".join(words[:_MOST_LISTED]) + more


def _check_pairs(
    path: Path, tuples: tuple[EfficiencyTuple, ...], models: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    held = {(one.model, one.server_type) for one in tuples}
    for model in models:
        for kind in kinds:
            if (model, kind) not in held:
                raise PlanFileError(
                    f"{path}: {model} on {kind} is missing: add it, with a qps of 0 if {kind} cannot serve {model}"
                )


def _interval(request: ProvisionRequest, loads: Loads) -> tuple[float, int]:
    """Seconds between plans, and of how many of the loads' steps they consist."""
    spacing, asked = loads.spacing_s, request.interval_s
    if asked is not None and not (math.isfinite(asked) and asked > 0):
        raise PlanningError(f"--interval-s is {asked!r}: must be a positive number of seconds")
    if spacing == 0:
        return asked or _INTERVAL_S, 1
    if asked is None:
        stride = math.ceil(_INTERVAL_S / spacing * (1 - 1e-9))
        return stride * spacing, stride
    stride = round(asked / spacing)
    if stride < 1 or abs(stride * spacing - asked) > 1e-6 * spacing:
        raise PlanningError(f"--interval-s is {asked:g}: must be a multiple of the loads' step, {spacing:g} s")
    return stride * spacing, stride


def _rates(request: ProvisionRequest, loads: Loads, models: tuple[str, ...], interval_s: float) -> Floats:
    """The over-provision rates float64, of each model of `loads`: as given, or by how the loads, or those of a history,
    rise. A history may be of all `models` that have tuples."""
    if request.over_provision is not None:
        if not (math.isfinite(request.over_provision) and request.over_provision >= 0):
            raise PlanningError(f"--over-provision is {request.over_provision!r}: must be a number of at least 0")
        return np.full(len(loads.models), request.over_provision)
    source = loads if request.history is None else read_loads(request.history, models)
    path = request.loads if request.history is None else request.history
    rates = np.zeros(len(loads.models))
    for at, model in enumerate(loads.models):
        if model not in source.models:
            raise PlanFileError(f"{source.header}: {model} is missing, of which there are loads to plan for")
        history = source.qps[:, source.models.index(model)]
        if not history.any() and not loads.qps[:, at].any():
            continue  # nothing rises
        try:
            rates[at] = over_provision_rate(source.times_s, history, interval_s, request.quantile)
        except PlanningError as fault:
            reason = str(fault).removeprefix("times_s: ").removeprefix("loads_qps: ")
            reason = reason.replace("interval_s", "--interval-s")
            raise PlanFileError(f"{path}: {model}: {reason}; or give --over-provision") from None
    return rates


def _baselines(options: FleetOptions, demand: Floats, day: DayPlan, rates: Floats) -> dict[str, DayPlan | str]:
    """What the schedulers do that the paper compares with; each draws the same in every interval."""
    objective = day.objective
    schedulers: dict[str, Provisioner] = {
        "priority-aware": lambda load, _: provision_by_priority(
            options, load, over_provision_rate=rates, objective=objective
        ),
        "greedy": lambda load, _: provision_greedily(
            options, load, np.random.default_rng(0), over_provision_rate=rates, objective=objective
        ),
        "oblivious": lambda load, _: provision_obliviously(
            options, load, np.random.default_rng(0), over_provision_rate=rates, objective=objective
        ),
    }
    days: dict[str, DayPlan | str] = {}
    for name, scheduler in schedulers.items():
        try:
            days[name] = follow_day(
                options, demand, day.interval_s, scheduler, objective=objective, set_up_s=day.set_up_s
            )
        except PlanningError as fault:
            days[name] = str(fault)
    return days
