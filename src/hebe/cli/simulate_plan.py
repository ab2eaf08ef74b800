"""What `hebe simulate` of a plan of several models needs, whichever command wrote it: the plan's kind, what was asked
for, and each model's service times, SLA target and query sizes.

A plan of `hebe plan provision` is simulated in `simulate_provisioning`, one of `hebe plan colocate` in
`simulate_colocation`, one of `hebe plan pool` in `simulate_making`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.cli.fleet_simulation import check_sla
from hebe.cli.plan_files import PlanFileError, reading
from hebe.cli.plan_profiles import holds_profiles, read_profiles
from hebe.cli.pool_plan_file import named_in_plan
from hebe.cli.service_times import ServiceTimes, read_service_times
from hebe.simulation.query_stream import largest_drawn
from hebe.spec import SlaTarget
from hebe.workload import forms

Floats = npt.NDArray[np.float64]

DEFAULT_PERCENTILE = 99.0
DEFAULT_SIZES = "production"
_COMMANDS = {"pool": "hebe plan pool", "provisioning": "hebe plan provision", "colocation": "hebe plan colocate"}
"""What writes plans, by their kind."""


@dataclass(frozen=True, slots=True)
class FleetPlanRequest:
    """What was asked for of a plan of several models.

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


def plan_kind(path: Path) -> str:
    """`pool`, `provisioning` or `colocation`. Raises `PlanFileError` for a file that is no such plan."""
    kind = _content(path).get("kind")
    if not isinstance(kind, str) or kind not in _COMMANDS:
        known = ", ".join(f"{name!r} ({command})" for name, command in _COMMANDS.items())
        raise PlanFileError(f"{path}: kind is {kind!r}: must be a plan to simulate: {known}")
    return kind


def read_plan(path: Path, kind: str, version: int) -> dict[str, Any]:
    """A plan file's content. Raises `PlanFileError` if it is of another kind or version."""
    content = _content(path)
    if (content.get("kind"), content.get("version")) != (kind, version):
        raise PlanFileError(
            f"{path}: kind {content.get('kind')!r}, version {content.get('version')!r}: must be kind {kind!r}, version"
            f" {version}, as {_COMMANDS[kind]} writes it"
        )
    return content


def file_made_from(path: Path, content: Mapping[str, Any], field: str) -> Path | None:
    """The file that the plan at `path` names in `[made_from]` under `field`; None where it does not say."""
    made_from = content.get("made_from", {})
    if not isinstance(made_from, dict):
        raise PlanFileError(f"{path}: made_from is {made_from!r}: must be a table of files")
    name = made_from.get(field)
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise PlanFileError(f"{path}: made_from: {field} is {name!r}: must be the name of a file")
    return named_in_plan(name, path)


def service_time_files(request: FleetPlanRequest, made_from: Path | None) -> tuple[Path, ...]:
    """Where service times are: the files asked for, else the profiles that the plan was `made_from`.

    Raises `PlanFileError` if the plan was made from figures that tell no service times, or does not say from what.
    """
    if request.service_times:
        return request.service_times
    if made_from is not None and holds_profiles(made_from):
        return (made_from,)
    of = "it does not say from what it was made" if made_from is None else f"{made_from}, which it was made from, has"
    none = "" if made_from is None else " throughputs and no service times"
    raise PlanFileError(
        f"{request.plan}: {of}{none}: give files of service times, or profiles that hebe profile wrote:"
        f" hebe simulate SERVICE_TIMES... --plan {request.plan}"
    )


def read_models(
    request: FleetPlanRequest, files: Sequence[Path], types: Mapping[str, Sequence[str] | None]
) -> dict[str, ModelUnderPlan]:
    """What is known of each model of a plan, from `files`; `types` has the server types that the plan uses for it
    (None: all that the files have).

    Raises `PlanFileError` if a model, or its service times on a type, or its SLA target is missing, or if the SLA is
    below every service time, and `WorkloadError` if queries are larger than what was measured.
    """
    forms.arrivals(request.arrivals)  # raises for a form that there is not
    if isinstance(request.sla_ms, Mapping):
        for model in request.sla_ms:
            if model not in types:
                raise PlanFileError(f"--sla-ms: the plan has no model {model}: there are {', '.join(types)}")
    profiled = profiled_for(files)
    models = {}
    for model, of_model in types.items():
        times = read_service_times(files, model)
        times = times if of_model is None else times.of_types(of_model, f"the plan uses for {model}")
        known = profiled.get(model, [])
        sla, sizes = _target(request, model, known), request.sizes or agreed_sizes(known)
        weights, largest = largest_drawn(sizes, request.seed, times.table.largest)
        check_sla(sla, times, largest)
        targets = {one.sla for one in known}
        profiled_sla = targets.pop() if len(targets) == 1 else None
        models[model] = ModelUnderPlan(times, sla, sizes, weights, largest, profiled_sla)
    return models


def _content(path: Path) -> dict[str, Any]:
    with reading(path):
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))


@dataclass(frozen=True, slots=True)
class ProfiledFor:
    """What a model was profiled for: SLA target and query sizes, in the forms of `hebe.workload.forms`."""

    sla: SlaTarget
    sizes: str


def agreed_sla(model: str, profiled: Sequence[ProfiledFor]) -> SlaTarget | None:
    """The target that all profiles of the model are for; None where there is none. Raises `PlanFileError` where they
    are for several."""
    known = list(dict.fromkeys(one.sla for one in profiled))
    if len(known) > 1:
        told = ", ".join(f"p{sla.percentile:g} within {sla.latency_ms:g} ms" for sla in known)
        raise PlanFileError(f"{model} was profiled for unlike SLA targets: {told}: give --sla-ms and --percentile")
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
        raise PlanFileError(
            f"no SLA target of {model}: give --sla-ms MS for all models, or MODEL=MS,MODEL=MS; only profiles that"
            " hebe profile wrote have one"
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
