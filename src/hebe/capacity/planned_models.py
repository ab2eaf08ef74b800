"""What is known of the models of a plan of several, whichever command wrote it: service times, SLA target and query
sizes of each.

A plan of a day is simulated in `provisioning_simulation`, one of shared servers in `colocation_simulation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.errors import MisfitError, check_at_least, check_form, check_percentile
from hebe.capacity.files.profiles import holds_profiles, read_profiles
from hebe.capacity.files.reading import FilePath, in_memory, paths_of
from hebe.capacity.files.service_times import ServiceTimes, read_service_times, service_times_of
from hebe.capacity.run_length import check_sla
from hebe.planning.error import Parameter
from hebe.simulation.fleet.query_stream import arrival_process, largest_drawn
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from hebe.workload import forms

Floats = npt.NDArray[np.float64]

DEFAULT_PERCENTILE = 99.0
DEFAULT_SIZES = "production"


@dataclass(frozen=True, slots=True)
class FleetPlanRequest:
    """What was asked for of a plan of several models; of data that was given in place of files, paths are
    `<service_times>` and `<plan>`.

    `service_times` empty: those that the plan was made from. `load_factor`: the planned load times this is simulated.
    `sla_ms` is one bound for all models or one for each of some, `percentile` is for all; None, and models that are not
    named: as profiled. `sizes` None: as profiled, or production. `queries` is for a run of one model in one interval or
    on one group.
    """

    service_times: tuple[Path, ...]
    plan: Path
    load_factor: float
    sla_ms: Mapping[str, float] | float | None
    percentile: float | None
    sizes: str | None
    arrivals: str
    queries: int | None
    seeds: int
    seed: int
    policy: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelUnderPlan:
    """One model of a plan: `times` are of the server types that it was asked for, in that order; `sizes` is the form of
    its query sizes, `size_weights` the share of queries of 1, 2, ... items, float64 `[largest]`, `largest` the largest
    query. `profiled_sla` is the target that its profiles are for, whatever `sla` is asked for; None where files do not
    say it, or not the same."""

    times: ServiceTimes
    sla: SlaTarget
    sizes: str
    size_weights: Floats
    largest: int
    profiled_sla: SlaTarget | None = None


ModelTimesGiven = Mapping[str, ServiceTimes | ServiceTable] | FilePath | Sequence[FilePath]
"""Service times of several models: as data by model, or the files or directories that they are in."""


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Where the service times of a plan's models are: in `files`, or given as data by model."""

    files: tuple[Path, ...]
    given: Mapping[str, ServiceTimes | ServiceTable] | None = None

    def of(self, model: str) -> ServiceTimes:
        """Those of a model. Raises `PlanFileError` or `MisfitError` if there are none."""
        if self.given is None:
            return read_service_times(self.files, model)
        if model not in self.given:
            known = ", ".join(self.given) or "none"
            raise MisfitError(Parameter("service_times"), f": there are none of {model}, only of {known}")
        return service_times_of(self.given[model], model)


def fleet_plan_request(
    plan: object,
    service_times: ModelTimesGiven | None,
    *,
    load_factor: float,
    sla_ms: Mapping[str, float] | float | None,
    percentile: float | None,
    sizes: str | None,
    arrivals: str,
    queries: int | None,
    seeds: int,
    seed: int,
    policy: str | None,
) -> FleetPlanRequest:
    """What is asked for of a plan, a file or data. Raises `ArgumentError` for a value that makes no sense."""
    check_at_least("load_factor", load_factor, more_than=0.0)
    for bound_ms in sla_ms.values() if isinstance(sla_ms, Mapping) else () if sla_ms is None else (sla_ms,):
        check_at_least("sla_ms", bound_ms, more_than=0.0)
    if percentile is not None:
        check_percentile("percentile", percentile)
    if sizes is not None:
        check_form("sizes", forms.query_sizes, sizes)
    check_form("arrivals", arrival_process, arrivals)
    if queries is not None:
        check_at_least("queries", queries, least=1)
    check_at_least("seeds", seeds, least=1)
    check_at_least("seed", seed, least=0)
    files: tuple[Path, ...] = ()
    if isinstance(service_times, Mapping):
        files = (in_memory("service_times"),)
    elif service_times is not None:
        files = paths_of(service_times)
    path = Path(plan) if isinstance(plan, str | PathLike) else in_memory("plan")
    return FleetPlanRequest(files, path, load_factor, sla_ms, percentile, sizes, arrivals, queries, seeds, seed, policy)


def model_times(request: FleetPlanRequest, service_times: ModelTimesGiven | None, made_from: Path | None) -> ModelTimes:
    """Service times as given, else those of the profiles that the plan was `made_from`.

    Raises `MisfitError` if the plan was made from figures that have no service times, or does not say from what.
    """
    if isinstance(service_times, Mapping):
        return ModelTimes((), service_times)
    if request.service_times:
        return ModelTimes(request.service_times)
    if made_from is not None and holds_profiles(made_from):
        return ModelTimes((made_from,))
    of = "it does not say from what it was made" if made_from is None else f"{made_from}, which it was made from, has"
    none = "" if made_from is None else " throughputs and no service times"
    raise MisfitError(
        f"{request.plan}: {of}{none}: give files of service times, or profiles that hebe profile wrote: ",
        Parameter("service_times"),
    )


def read_models(
    request: FleetPlanRequest, times_of: ModelTimes, types: Mapping[str, Sequence[str] | None]
) -> dict[str, ModelUnderPlan]:
    """What is known of each model of a plan; `types` has the server types that the plan uses for it (None: all that
    were measured).

    Raises `PlanFileError` if a model, or its service times on a type, or its SLA target is missing, or if the SLA is
    below every service time, and `WorkloadError` if queries are larger than what was measured.
    """
    forms.arrivals(request.arrivals)  # raises for a form that there is not
    if isinstance(request.sla_ms, Mapping):
        for model in request.sla_ms:
            if model not in types:
                raise MisfitError(Parameter("sla_ms"), f": the plan has no model {model}: there are {', '.join(types)}")
    profiled = profiled_for(times_of.files)
    models = {}
    for model, of_model in types.items():
        times = times_of.of(model)
        times = times if of_model is None else times.of_types(of_model, f"the plan uses for {model}")
        known = profiled.get(model, [])
        sla, sizes = _target(request, model, known), request.sizes or agreed_sizes(known)
        weights, largest = largest_drawn(sizes, request.seed, times.table.largest)
        check_sla(sla, times, largest)
        targets = {one.sla for one in known}
        profiled_sla = targets.pop() if len(targets) == 1 else None
        models[model] = ModelUnderPlan(times, sla, sizes, weights, largest, profiled_sla)
    return models


@dataclass(frozen=True, slots=True)
class ProfiledFor:
    """What a model was profiled for: SLA target and query sizes, in the forms of `hebe.workload.forms`."""

    sla: SlaTarget
    sizes: str


def agreed_sla(model: str, profiled: Sequence[ProfiledFor]) -> SlaTarget | None:
    """The target that all profiles of the model are for; None where there is none. Raises `MisfitError` where they
    are for several."""
    known = list(dict.fromkeys(one.sla for one in profiled))
    if len(known) > 1:
        told = ", ".join(f"p{sla.percentile:g} within {sla.latency_ms:g} ms" for sla in known)
        raise MisfitError(
            f"{model} was profiled for unlike SLA targets: {told}: give ",
            Parameter("sla_ms"),
            " and ",
            Parameter("percentile"),
        )
    return known[0] if known else None


def agreed_sizes(profiled: Sequence[ProfiledFor]) -> str:
    """The form of query sizes that all profiles of the model are for; the default where they do not agree."""
    known = {one.sizes for one in profiled}
    return known.pop() if len(known) == 1 else DEFAULT_SIZES


def _target(request: FleetPlanRequest, model: str, profiled: Sequence[ProfiledFor]) -> SlaTarget:
    """The model's SLA target: as asked, else as it was profiled for."""
    asked_ms = request.sla_ms.get(model) if isinstance(request.sla_ms, Mapping) else request.sla_ms
    if asked_ms is not None and request.percentile is not None:
        return SlaTarget(asked_ms, request.percentile)
    known = agreed_sla(model, profiled)
    if asked_ms is not None:
        return SlaTarget(asked_ms, known.percentile if known else DEFAULT_PERCENTILE)
    if known is None:
        raise MisfitError(
            f"no SLA target of {model}: give ",
            Parameter("sla_ms=ms"),
            " for all models, or ",
            Parameter("sla_ms={model: ms, ...}"),
            "; only profiles that hebe profile wrote have one",
        )
    return SlaTarget(known.latency_ms, request.percentile or known.percentile)


def profiled_for(files: Sequence[Path]) -> dict[str, list[ProfiledFor]]:
    """What each model's profiles are for, of the files that hold such."""
    found: dict[str, list[ProfiledFor]] = {}
    for path in files:
        if holds_profiles(path):
            for one in read_profiles(path):
                subject = one.profile.subject
                sizes = subject.sizes or DEFAULT_SIZES
                found.setdefault(subject.model, []).append(ProfiledFor(subject.sla, sizes))
    return found
