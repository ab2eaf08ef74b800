"""How many servers of which type each model gets over the day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.arguments import checked
from hebe.capacity.errors import ArgumentError, MisfitError, PlanFileError, check_at_least
from hebe.capacity.files.entries import ServerOffer, read_efficiency, read_servers
from hebe.capacity.files.loads import Loads, read_loads
from hebe.capacity.files.profiles import check_throughputs_compare
from hebe.capacity.files.provisioning_plan import ProvisioningPlanFile
from hebe.capacity.files.reading import FilePath, in_memory
from hebe.capacity.progress import OnProgress, Progress, ignore
from hebe.planning.error import Parameter, PlanningError
from hebe.planning.provisioning.baselines import provision_by_priority, provision_greedily, provision_obliviously
from hebe.planning.provisioning.day import DayPlan, Provisioner, follow_day, plan_day
from hebe.planning.provisioning.over_provision import over_provision_rate
from hebe.planning.provisioning.provisioning import FleetOptions, InfeasibleDemandError, Objective, rounded_down
from hebe.profile import EfficiencyTuple
from hebe.report.tables import format_number

Floats = npt.NDArray[np.float64]

_INTERVAL_S = 600.0
_QUANTILE = 0.99
_MOST_LISTED = 8
"""Models of which a message tells figures."""


@dataclass(frozen=True, slots=True)
class ProvisionRequest:
    """What was asked for. Of data that was given in place of files, paths are `<efficiency>`, `<servers>` ..."""

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

    def as_file(self) -> ProvisioningPlanFile:
        """The plan without its figures, as it is read back from a plan file."""
        day = self.day
        return ProvisioningPlanFile(
            in_memory("plan"),
            day.options.models,
            day.options.server_types,
            self.loads.start,
            day.interval_s,
            day.set_up_s,
            day.demand_qps,
            day.capacity_qps,
            day.counts,
            day.late,
            self.request.efficiency,
        )

    @property
    def days(self) -> dict[str, DayPlan]:
        """This plan, and the baselines that have one, by name."""
        followed = {name: day for name, day in self.baselines.items() if isinstance(day, DayPlan)}
        return {"this plan": self.day} | followed

    @property
    def edges_s(self) -> Floats:
        """Where intervals begin, and where the last one ends: float64 `[intervals + 1]`."""
        return np.asarray(np.arange(len(self.day.counts) + 1) * self.day.interval_s, dtype=np.float64)


@checked
def plan_provision(
    efficiency: Sequence[EfficiencyTuple] | FilePath,
    servers: Mapping[str, ServerOffer] | FilePath,
    loads: Loads | FilePath,
    *,
    interval_s: float | None = None,
    over_provision: float | None = None,
    quantile: float | None = None,
    history: Loads | FilePath | None = None,
    minimise: str = "power",
    set_up_s: float = 30.0,
    gap: float = 0.001,
    time_limit_s: float = 0.2,
    baselines: bool = True,
    progress: OnProgress = ignore,
) -> ProvisionPlanMade:
    """Choose how many servers of which type each model gets over the day, at the least provisioned power or price.

    For every interval an integer program takes the load at its start, raised by the over-provision rate, and finds the
    servers, as in Hercules; those that run already need no set-up.

    Parameters:
        efficiency: what each server type does for each model, as data, or in a file or a directory of profiles.
        servers: how many there are of each type, at which price and power, as data or in a file.
        loads: queries/s of each model over time, as data (`Loads.evenly`) or in a file.
        interval_s: seconds between plans; None: ten minutes, or the loads' step if that is longer.
        over_provision: by which share of the load to plan for more; None: from how fast the loads rise.
        quantile: share of moments (0 to 1) whose rise that default covers; None: 0.99.
        history: loads whose rises count in place of those of `loads`.
        minimise: `"power"` or `"price"`.
        set_up_s: seconds that a server takes to start or to change its model.
        gap: how near to the optimum the search of an interval may stop, as a share.
        time_limit_s: most seconds of an interval's integer program; 0: round its relaxation only.
        baselines: compare with a greedy, a priority-aware and an oblivious scheduler.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, whose `field` names the parameter; `PlanFileError` for a file, naming line and field, or for
    a load that the servers cannot meet; `PlanningError` for an interval that does not fit the loads; `WorkloadError`
    for times that cannot be read.
    """
    if interval_s is not None:
        check_at_least("interval_s", interval_s, more_than=0.0)
    if over_provision is not None:
        check_at_least("over_provision", over_provision, least=0.0)
        for name, given in (("history", history), ("quantile", quantile)):
            if given is not None:
                raise ArgumentError(name, "the rate is given by ", Parameter("over_provision"), ": leave one out")
    for name, value in (("set_up_s", set_up_s), ("gap", gap), ("time_limit_s", time_limit_s)):
        check_at_least(name, value, least=0.0)
    if quantile is not None and not 0 <= quantile <= 1:
        raise ArgumentError("quantile", f"{quantile:g}: must lie between 0 and 1")
    if minimise not in list(Objective):
        raise ArgumentError("minimise", f"{minimise!r}: must be {' or '.join(Objective)}")
    request = ProvisionRequest(
        Path(efficiency) if isinstance(efficiency, str | PathLike) else in_memory("efficiency"),
        in_memory("servers") if isinstance(servers, Mapping) else Path(servers),
        in_memory("loads") if isinstance(loads, Loads) else Path(loads),
        in_memory("history") if isinstance(history, Loads) else None if history is None else Path(history),
        interval_s, over_provision, _QUANTILE if quantile is None else quantile, Objective(minimise), set_up_s, gap,
        time_limit_s, baselines,
    )  # fmt: skip
    offers = dict(servers) if isinstance(servers, Mapping) else read_servers(request.servers)
    watts = {kind: offer.power_watts for kind, offer in offers.items() if offer.power_watts is not None}
    if isinstance(efficiency, str | PathLike):
        tuples = read_efficiency(request.efficiency, watts)
    else:
        tuples = list(efficiency)
    models = tuple(dict.fromkeys(one.model for one in tuples))
    planned = loads if isinstance(loads, Loads) else read_loads(request.loads, models)
    for model in planned.models:
        if model not in models:
            raise MisfitError(
                Parameter("loads"), f": model {model!r} has no efficiency tuples: known models are {', '.join(models)}"
            )
    used = tuple(one for one in tuples if one.model in planned.models and one.server_type in offers)
    _check_pairs(request.efficiency, used, planned.models, tuple(offers))
    remarks = check_throughputs_compare(request.efficiency, {(one.model, one.server_type) for one in used})
    if history is None:
        rises, source = planned, request.loads
    else:
        rises = history if isinstance(history, Loads) else read_loads(Path(history), models)
        source = request.history or request.loads
    return _planned(request, offers, used, planned, (rises, source), tuple(remarks), progress)


def _planned(
    request: ProvisionRequest,
    offers: Mapping[str, ServerOffer],
    used: tuple[EfficiencyTuple, ...],
    loads: Loads,
    rises: tuple[Loads, Path],
    remarks: tuple[str, ...],
    on_progress: OnProgress,
) -> ProvisionPlanMade:
    """The plan of every interval, and the days of the baselines; `rises` are loads, and the file that they are from."""
    prices = {kind: offer.price_per_hour for kind, offer in offers.items() if offer.price_per_hour is not None}
    if request.objective is Objective.PRICE and not prices:
        raise PlanFileError(f"{request.servers}: price_per_hour is missing: it is to be minimised")
    options = FleetOptions.from_tuples(
        sorted(used, key=lambda one: loads.models.index(one.model)),
        {kind: offer.available for kind, offer in offers.items()},
        prices or None,
    )
    interval_s, stride = _interval(request, loads)
    rates = _rates(request, loads, *rises, interval_s)
    demand = loads.qps[::stride]
    planned = 0

    def count(_interval: object) -> None:
        nonlocal planned
        planned += 1
        on_progress(Progress("planning intervals", planned, len(demand)))

    on_progress(Progress("planning intervals", 0, len(demand)))
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
            on_interval=count,
        )
    except InfeasibleDemandError as fault:
        raise PlanFileError(_too_much(loads, stride, rates, fault)) from None
    covered = day.covered_share(loads.qps, interval_s / stride)
    others = _baselines(options, demand, day, rates) if request.baselines else {}
    return ProvisionPlanMade(request, used, loads, rates, day, covered, others, remarks)


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
    if spacing == 0:
        return asked or _INTERVAL_S, 1
    if asked is None:
        stride = math.ceil(_INTERVAL_S / spacing * (1 - 1e-9))
        return stride * spacing, stride
    stride = round(asked / spacing)
    if stride < 1 or abs(stride * spacing - asked) > 1e-6 * spacing:
        raise PlanningError(
            Parameter("interval_s"), f" is {asked:g}: must be a multiple of the loads' step, {spacing:g} s"
        )
    return stride * spacing, stride


def _rates(request: ProvisionRequest, loads: Loads, source: Loads, path: Path, interval_s: float) -> Floats:
    """The over-provision rates float64, of each model of `loads`: as given, or by how the loads of `source` rise, which
    are from `path`, and may be of further models."""
    if request.over_provision is not None:
        return np.full(len(loads.models), request.over_provision)
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
            first, *rest = fault.args
            reason = first.removeprefix("times_s: ").removeprefix("loads_qps: ")
            raise PlanFileError(
                f"{path}: {model}: ", reason, *rest, "; or give ", Parameter("over_provision")
            ) from None
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
