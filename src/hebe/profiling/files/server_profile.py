"""What `hebe profile` writes: the best way to run a model on a server, what it reaches, and how that was found."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hebe.models.repository.stored_file import flush_directory, write_durably
from hebe.planning.server_split.search import Configuration, Reached, SearchResult, Step
from hebe.profile import EfficiencyTuple, LatencyProfile, ProfileError, ScalabilityProfile
from hebe.profiling.files.accelerator_use import AcceleratorUse
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.plain_data import (
    checked_fields,
    checked_list,
    checked_number,
    checked_object,
    disturbance_from_dict,
    disturbance_to_dict,
    parse_json,
    run_from_dict,
    run_to_dict,
)
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.steady_machine import Disturbance
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.spec import AcceleratorSpec, ServerSpec, SpecError

FORMAT = 1
_KIND = "server profile"
_FIELDS = (
    "kind", "format", "created", "subject", "server", "strategy", "efficiency", "power_source", "latency",
    "scalability", "search", "accelerator", "measured", "measured_at",
)  # fmt: skip
_LATER_FIELDS = ("cores", "busy_latency", "op_use", "disturbance", "power_budget_watts")
"""Which files of older versions lack."""


def lane_to_scale(configuration: Configuration, tried: Mapping[Configuration, Reached]) -> Lane:
    """The lane whose cores per worker and batch size scalability is measured with: one that runs the whole model on the
    host, or else one that has workers there.

    Where none has, as where all runs on the accelerator, a batch size says nothing: of the configurations that were
    `tried`, the best that ran the whole model on the host alone, or else what a server does by default.
    """
    own = sorted((lane for lane in configuration if lane.workers), key=_runs_whole_model, reverse=True)
    alone = {lanes[0]: reached.qps for lanes, reached in tried.items() if len(lanes) == 1 and _runs_whole_model(*lanes)}
    return next(iter([*own, *sorted(alone, key=alone.__getitem__, reverse=True), Lane(Placement.MODEL_ON_HOST, 1)]))


def _runs_whole_model(lane: Lane) -> bool:
    return lane.placement is Placement.MODEL_ON_HOST


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """One model on one kind of server.

    `created` says when, in ISO 8601. `efficiency` is the tuple of the winning configuration, `search` the way to it;
    `power_source` says where the tuple's power is from, and the tuple is `estimated` where that could not be read.
    `latency` is by stage ("whole", or "sparse" and "dense"; of a second lane "beside_whole"...), of a worker that
    nothing runs beside. `busy_latency` is the same while all workers are busy, by which throughput is planned; empty
    where it was not measured.
    `scalability` is of workers that run the whole model on the host, whatever the configuration is; None where it was
    not measured.
    `accelerator` says which one the configuration uses, None where it uses none.
    `measured` is the tuple as serving has corrected it by `measured_at`; None before.
    `cores` are those that it was made on, None for all that there were. `op_use` says where a batch's time goes, None
    where that could not be measured. `disturbance` says what disturbed the measurements that all of this is from, None
    where that is not known. `power_budget_watts` is what the configuration was to draw at most, None where
    nothing was said.
    Raises `ProfileError` for parts that do not belong together.
    """

    subject: ProfileSubject
    server: ServerSpec
    strategy: str
    created: str
    efficiency: EfficiencyTuple
    power_source: str
    latency: Mapping[str, LatencyProfile]
    scalability: ScalabilityProfile | None
    search: SearchResult
    accelerator: AcceleratorUse | None = None
    measured: EfficiencyTuple | None = None
    measured_at: str | None = None
    cores: tuple[int, ...] | None = None
    busy_latency: Mapping[str, LatencyProfile] = field(default_factory=dict)
    op_use: OpUse | None = None
    disturbance: Disturbance | None = None
    power_budget_watts: float | None = None

    def __post_init__(self) -> None:
        for name in ("strategy", "created", "power_source"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise ProfileError(f"{name} is {text!r}: must be text")
        if self.search.best is None or self.efficiency.qps <= 0:
            raise ProfileError("efficiency: qps is 0: a profile is of a configuration that keeps the SLA target")
        if dict(self.efficiency.configuration) != to_dict(self.search.best):
            raise ProfileError("efficiency: configuration is not the one that the search found best")
        for name, told in (("efficiency", self.efficiency), ("measured", self.measured)):
            if told is not None and (told.model, told.server_type) != (self.subject.model, self.server.name):
                raise ProfileError(f"{name} is of {told.model} on {told.server_type}, not of the profile's subject")
        if self.subject.server != self.server.name:
            raise ProfileError(f"subject: server is {self.subject.server}, but the server is {self.server.name}")
        if any(lane.placement.on_accelerator for lane in self.search.best) != (self.accelerator is not None):
            raise ProfileError("accelerator: give one where the configuration uses one, and there only")
        if self.measured_at is not None and not isinstance(self.measured_at, str):
            raise ProfileError(f"measured_at is {self.measured_at!r}: must be text")
        if (self.measured is None) != (self.measured_at is None):
            raise ProfileError("measured and measured_at: give both or neither")
        numbers = [core for core in self.cores or () if isinstance(core, int) and not isinstance(core, bool)]
        if self.cores is not None and (not numbers or len(numbers) < len(self.cores) or min(numbers) < 0):
            raise ProfileError(f"cores is {list(self.cores)}: must be numbers of cores, or null")
        if self.power_budget_watts is not None and not 0 < self.power_budget_watts < math.inf:
            raise ProfileError(f"power_budget_watts is {self.power_budget_watts!r}: must be more than 0, or null")
        for name in ("latency", "busy_latency"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def configuration(self) -> Configuration:
        """The winning one."""
        assert self.search.best is not None
        return self.search.best

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the file; `from_dict` reads it back to an equal profile."""
        return {
            "kind": _KIND,
            "format": FORMAT,
            "created": self.created,
            "subject": self.subject.to_dict(),
            "server": asdict(self.server),
            "strategy": self.strategy,
            "efficiency": self.efficiency.to_dict(),
            "power_source": self.power_source,
            "latency": _latency_to_dict(self.latency),
            "busy_latency": _latency_to_dict(self.busy_latency),
            "scalability": None if self.scalability is None else self.scalability.to_dict(),
            "search": _search_to_dict(self.search),
            "accelerator": None if self.accelerator is None else self.accelerator.to_dict(),
            "measured": None if self.measured is None else self.measured.to_dict(),
            "measured_at": self.measured_at,
            "cores": None if self.cores is None else list(self.cores),
            "op_use": None if self.op_use is None else self.op_use.to_dict(),
            "disturbance": None if self.disturbance is None else disturbance_to_dict(self.disturbance),
            "power_budget_watts": self.power_budget_watts,
        }

    @classmethod
    def from_dict(cls, data: object) -> ServerProfile:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        if isinstance(data, Mapping) and (data.get("kind"), data.get("format")) != (_KIND, FORMAT):
            raise ProfileError(
                f"kind {data.get('kind')!r}, format {data.get('format')!r}: must be kind {_KIND!r}, format {FORMAT},"
                " as hebe profile writes it"
            )
        told = checked_fields("profile", data, _FIELDS, _LATER_FIELDS)
        budget = told.get("power_budget_watts")
        try:
            return cls(
                ProfileSubject.from_dict(told["subject"]),
                _server(told["server"]),
                told["strategy"],
                told["created"],
                _efficiency("efficiency", told["efficiency"]),
                told["power_source"],
                _latency("latency", told["latency"]),
                None
                if told["scalability"] is None
                else ScalabilityProfile.from_dict(checked_object("scalability", told["scalability"])),
                _search(told["search"]),
                None if told["accelerator"] is None else AcceleratorUse.from_dict(told["accelerator"]),
                None if told["measured"] is None else _efficiency("measured", told["measured"]),
                told["measured_at"],
                None if told.get("cores") is None else tuple(checked_list("cores", told["cores"])),
                _latency("busy_latency", told.get("busy_latency", {})),
                None if told.get("op_use") is None else OpUse.from_dict(told["op_use"]),
                None if told.get("disturbance") is None else disturbance_from_dict("disturbance", told["disturbance"]),
                None if budget is None else checked_number("profile", "power_budget_watts", budget),
            )
        except SpecError as fault:
            raise ProfileError(str(fault)) from None


def write_server_profile(path: Path, profile: ServerProfile) -> None:
    """Make `path` hold the profile, durably, replacing an older file at once; makes its directory.

    Where writing fails the older file stays. A link stays, and what it leads to is replaced. What is there and is no
    file, a device or a pipe, is written into. Raises `OSError`, which names `path`.
    """
    content = (json.dumps(profile.to_dict(), allow_nan=False, indent=1) + "\n").encode()
    file = Path(os.path.realpath(path))
    # Not the process's number: servers in two containers that share a directory often have the same.
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(temporary, [content])
        os.replace(temporary, file)
        flush_directory(file.parent)
    except BaseException as fault:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(fault, OSError):
            raise type(fault)(fault.errno, fault.strerror, str(path)) from fault
        raise


def read_server_profile(path: Path) -> ServerProfile:
    """The profile in a file; raises `ProfileError` that names the file and what is wrong with it."""
    try:
        return ServerProfile.from_dict(parse_json(path.read_bytes()))
    except OSError as fault:
        raise ProfileError(f"{path}: cannot be read: {fault.strerror}") from None
    except ProfileError as fault:
        raise ProfileError(f"{path}: {fault}") from None
    except ValueError as fault:
        raise ProfileError(f"{path}: is no JSON text: {fault}") from None


def check_replaceable(path: Path, subject: ProfileSubject) -> None:
    """Raise `ProfileError`, which says what is lost if a profile of `subject` takes the place of what `path` holds:
    unless that is nothing, or a profile of the same model and version, of cores of the same kind of server that lie
    alike to each other, as far as that is known. What is no file, a device or a pipe, holds nothing.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    advice = "write to another file (--output), or replace it (--replace)"
    try:
        there = read_server_profile(path).subject
    except ProfileError as fault:
        raise ProfileError(f"{fault}. What is no profile is not overwritten: {advice}") from None
    differing = [
        f"{what} {before}, not {now}"
        for what, before, now in (
            ("model", there.model, subject.model),
            ("version", there.version, subject.version),
            ("server", there.server, subject.server),
            ("cores that lie so:", there.layout, subject.layout),
        )
        if before and now and before != now
    ]
    if differing:
        raise ProfileError(f"{path} holds another profile, of {', and of '.join(differing)}: {advice}")


def core_list(cores: Sequence[int]) -> str:
    """As `--cores` and `taskset -c` take them: ``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def check_fits(
    profile: ServerProfile, model: str, version: int, identity: str, loaded: str, server: str, layout: str = ""
) -> None:
    """Raise `ProfileError`, which says what differs, unless the profile is of this model, as it lies on disk with that
    `identity`, `loaded` in that way (`LoadOptions.words`), of this kind of `server` (`this_server().name`), and of
    cores that lie to each other in this `layout` (`core_layout()`), where both are known."""
    of = profile.subject
    if of.model != model:
        raise ProfileError(f"the profile is of model {of.model}, not of {model}: profile that one")
    if of.version != version:
        raise ProfileError(f"the profile is of version {of.version} of {model}, not of {version}: profile it again")
    if of.identity != identity:
        raise ProfileError(
            f"version {version} of {model} was written anew since it was profiled: its files differ. Profile it again"
        )
    if of.loaded != loaded:
        raise ProfileError(
            f"the profile was made with the model loaded so: {of.loaded}; and here it is: {loaded}. Serve with the same"
            " --graph, --row-format, --hierarchy and --table-memory, or profile it again with these"
        )
    if of.server != server:
        raise ProfileError(
            f"the profile was made on a server {of.server}, and this one is {server}: what is best there need not be"
            " best here. Profile it on this server"
        )
    if of.layout and layout and of.layout != layout:
        own = "" if profile.cores is None else f" {core_list(profile.cores)}"
        raise ProfileError(
            f"the profile was made on cores{own} that lie otherwise to each other: {of.layout}; and these lie so:"
            f" {layout}. Serve on cores like those (taskset -c), or profile it on these"
        )


def _search_to_dict(search: SearchResult) -> dict[str, Any]:
    """Steps name configurations by their places in `tried`."""
    places = {configuration: place for place, configuration in enumerate(search.tried)}
    return {
        "evaluations": search.evaluations,
        "best": None if search.best is None else places[search.best],
        "tried": [run_to_dict(configuration, reached) for configuration, reached in search.tried.items()],
        "steps": [
            {
                "at": None if step.at is None else places[step.at],
                "candidates": [places[candidate] for candidate in step.candidates],
                "taken": None if step.taken is None else places[step.taken],
            }
            for step in search.steps
        ],
    }


def _search(data: object) -> SearchResult:
    told = checked_fields("search", data, ("evaluations", "best", "tried", "steps"))
    entries = enumerate(checked_list("search: tried", told["tried"]))
    tried = dict(run_from_dict(f"search: tried {number}", entry) for number, entry in entries)
    every = list(tried)

    def at(where: str, place: object) -> Configuration:
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(every):
            raise ProfileError(f"{where} is {place!r}: must be the place of one of the {len(every)} tried")
        return every[place]

    steps = []
    for number, entry in enumerate(checked_list("search: steps", told["steps"])):
        where = f"search: step {number}"
        held = checked_fields(where, entry, ("at", "candidates", "taken"))
        candidates = checked_list(f"{where}: candidates", held["candidates"])
        stood, taken = (None if held[name] is None else at(f"{where}: {name}", held[name]) for name in ("at", "taken"))
        steps.append(Step(stood, tuple(at(f"{where}: candidate", place) for place in candidates), taken))
    evaluations = told["evaluations"]
    if not isinstance(evaluations, int) or isinstance(evaluations, bool) or evaluations < len(tried):
        raise ProfileError(f"search: evaluations is {evaluations!r}: must be a whole number of at least {len(tried)}")
    best = at("search: best", told["best"])
    return SearchResult(best, tried[best], best, tried, tuple(steps), evaluations)


def _latency_to_dict(stages: Mapping[str, LatencyProfile]) -> dict[str, Any]:
    return {stage: profile.to_dict() for stage, profile in stages.items()}


def _latency(where: str, data: object) -> dict[str, LatencyProfile]:
    return {
        stage: LatencyProfile.from_dict(checked_object(f"{where}: {stage}", profile))
        for stage, profile in checked_object(where, data).items()
    }


def _server(data: object) -> ServerSpec:
    told = checked_fields("server", data, tuple(field.name for field in fields(ServerSpec)))
    if told["accelerator"] is not None:
        names = tuple(field.name for field in fields(AcceleratorSpec))
        told["accelerator"] = AcceleratorSpec(**checked_fields("server: accelerator", told["accelerator"], names))
    return ServerSpec(**told)


def _efficiency(where: str, data: object) -> EfficiencyTuple:
    told = checked_object(where, data)
    try:
        return EfficiencyTuple.from_dict(told)
    except ProfileError as fault:
        raise ProfileError(f"{where}: {fault}") from None
