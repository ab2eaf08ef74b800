"""What plans of shared servers are made from: the server, scalability profiles, demand. See `entries`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.entries import Entry, entries_of, read_entries
from hebe.capacity.files.profiles import ProfileFile, holds_profiles, read_profiles

if TYPE_CHECKING:
    from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
    from hebe.profile import ScalabilityProfile

_PROFILE = ("model", "workers", "qps", "bandwidth_bytes_per_s", "cache_ways", "qps_by_cache_ways")
_POINT = ("model", "workers", "cache_ways", "qps", "bandwidth_bytes_per_s")


def read_shared_server(path: Path) -> ServerResources:
    """The one server of a file: `cores,cache_ways,bandwidth_bytes_per_s[,memory_bytes][,server_type]`.

    The bandwidth is what memory sustained when models were profiled; without `memory_bytes`, memory is no limit.
    """
    from hebe.planning.colocation.shared_server import ServerResources
    from hebe.planning.error import PlanningError

    needed = ("cores", "cache_ways", "bandwidth_bytes_per_s")
    entries = read_entries(path, "server", needed, ("memory_bytes", "server_type"))
    if len(entries) > 1:
        raise PlanFileError(f"{entries[1].where}: is a second server: give the one that all models share")
    (entry,) = entries
    memory = entry.number("memory_bytes", float("inf"))
    try:
        return ServerResources(
            entry.whole("cores"), entry.whole("cache_ways"), entry.number("bandwidth_bytes_per_s"), memory
        )
    except PlanningError as fault:
        raise PlanFileError(f"{entry.where}: {fault}") from None


def shared_server_type(profiles: Path, server: Path) -> str | None:
    """What the shared servers are called: as in profiles that `hebe profile` wrote, else as the server's file says."""
    if holds_profiles(profiles):
        return read_profiles(profiles)[0].pair[1]
    (entry,) = entries_of(server, "server")
    return entry.text("server_type") if entry.fields.get("server_type") else None


def read_scalability(path: Path, server: ServerResources) -> list[ScalabilityProfile]:
    """Scalability profiles, at least one, no model twice, each such as this server can have given.

    They are those of a profile that `hebe profile` wrote, or of a directory of them, all of one type of server. Other
    TOML and JSON hold whole profiles, as `ScalabilityProfile.to_dict` gives them. CSV holds one line for every point
    that was measured, of workers with one core each:
    `model,workers,cache_ways,qps,bandwidth_bytes_per_s[,memory_bytes][,estimated]`. Each worker
    count needs the line with all ways, whose bandwidth and memory count; with fewer ways it has either no line or
    one for each count of ways that the model was measured with.
    """
    if path.suffix.lower() == ".csv":
        return _from_points(path, read_entries(path, "scalability", _POINT, ("memory_bytes", "estimated")), server)
    if holds_profiles(path):
        return _measured(read_profiles(path), server)
    from hebe.profile import ProfileError, ScalabilityProfile

    profiles: dict[str, ScalabilityProfile] = {}
    for entry in read_entries(path, "scalability", _PROFILE, ("memory_bytes", "estimated", "cores_per_worker")):
        try:
            profile = ScalabilityProfile.from_dict(entry.fields)
        except ProfileError as fault:
            raise PlanFileError(f"{entry.where}: {fault}") from None
        if profile.model in profiles:
            raise PlanFileError(f"{entry.where}: model {profile.model} is given twice")
        profiles[profile.model] = _checked(entry.where, profile, server)
    return list(profiles.values())


def _measured(files: list[ProfileFile], shared: ServerResources) -> list[ScalabilityProfile]:
    """The scalability that `hebe profile` measured, with workers of as many cores as those of the winner have
    (`lane_to_scale`): what earlier versions wrote does not say so."""
    from hebe.profiling.files.server_profile import lane_to_scale

    profiles = []
    for one in files:
        (model, server), (_, other) = one.pair, files[0].pair
        if server != other:
            raise PlanFileError(
                f"{one.path}: {model} was profiled on {server}, but {files[0].path} is of {other}: give the profiles of"
                " the one type of server that all models share"
            )
        if one.profile.scalability is None:
            raise PlanFileError(f"{one.path}: scalability is null: it was not measured; profile {model} again")
        scalability, winner = one.profile.scalability, one.profile.configuration
        if any(lane.workers for lane in winner):
            scalability = replace(scalability, cores_per_worker=lane_to_scale(winner, {}).cores_per_worker)
        profiles.append(_checked(str(one.path), scalability, shared))
    return profiles


def _checked(where: str, profile: ScalabilityProfile, server: ServerResources) -> ScalabilityProfile:
    """The profile, if models on this server can be planned from it; `where` it stands begins the message if not."""
    from hebe.planning.colocation.shared_server import ScalabilityTables
    from hebe.planning.error import PlanningError

    try:
        ScalabilityTables.of([profile], server)
    except PlanningError as fault:
        raise PlanFileError(f"{where}: {fault}") from None
    return profile


def read_demand(path: Path, tables: ScalabilityTables) -> dict[str, float]:
    """Demand in queries/s by model, `model,qps`, of some or all of the models of `tables`, which must serve it."""
    from hebe.planning.colocation.colocation import demand_array
    from hebe.planning.error import PlanningError

    demand: dict[str, float] = {}
    for entry in read_entries(path, "demand", ("model", "qps")):
        model, qps = entry.text("model"), entry.number("qps")
        if model not in tables.models:
            raise PlanFileError(
                f"{entry.where}: model {model!r} has no scalability profile: known models are"
                f" {', '.join(tables.models)}"
            )
        if model in demand:
            raise PlanFileError(f"{entry.where}: model {model} is given twice")
        if qps:
            try:
                demand_array(tables, {model: qps})
            except PlanningError as fault:
                raise PlanFileError(f"{entry.where}: {str(fault).removeprefix('demand_')}") from None
        demand[model] = qps
    return demand


Points = dict[tuple[int, int], Entry]
"""The lines of one model by workers and cache ways."""


def _from_points(path: Path, entries: list[Entry], server: ServerResources) -> list[ScalabilityProfile]:
    by_model: dict[str, Points] = {}
    for entry in entries:
        model, workers, ways = entry.text("model"), _count(entry, "workers"), _count(entry, "cache_ways")
        if ways > server.cache_ways:
            raise PlanFileError(f"{entry.where}: cache_ways is {ways}: the server has {server.cache_ways}")
        points = by_model.setdefault(model, {})
        if (workers, ways) in points:
            before = points[workers, ways].where
            raise PlanFileError(
                f"{entry.where}: {model} with {workers} workers, {ways} ways is given twice: see {before}"
            )
        points[workers, ways] = entry
    return [_profile(_lines(path, points), model, points, server) for model, points in by_model.items()]


def _lines(path: Path, points: Points) -> str:
    """Where in the file the lines of a model are, others between them or not."""
    places = [entry.where for entry in points.values()]
    if len(places) == 1:
        return places[0]
    first, last = (place.rpartition(" ")[2] for place in (places[0], places[-1]))
    return f"{path}: lines {first} to {last}"


def _profile(where: str, model: str, points: Points, server: ServerResources) -> ScalabilityProfile:
    from hebe.profile import ProfileError, ScalabilityProfile

    all_ways = server.cache_ways
    workers = sorted({count for count, _ in points})
    ways = sorted({part for _, part in points} | {all_ways})
    rows: list[tuple[float, ...]] = []
    for count in workers:
        lacking = [part for part in ways if (count, part) not in points]
        if lacking and (all_ways in lacking or len(lacking) < len(ways) - 1):
            raise PlanFileError(f"{where}: {model} with {count} workers lacks the line with {lacking[-1]} cache_ways")
        rows.append(() if lacking else tuple(points[count, part].number("qps") for part in ways))
    whole = [points[count, all_ways] for count in workers]
    traffic = [entry.number("bandwidth_bytes_per_s") for entry in whole]
    memory = [entry.number("memory_bytes", 0.0) for entry in whole]
    untold = [entry for entry in whole if entry.fields.get("memory_bytes", "") == ""]
    if untold and len(untold) < len(whole):
        raise PlanFileError(f"{untold[0].where}: memory_bytes is missing, which {model} has with other workers")
    try:
        profile = ScalabilityProfile(
            model,
            tuple(workers),
            tuple(entry.number("qps") for entry in whole),
            tuple(traffic),
            tuple(ways),
            tuple(rows),
            () if untold else tuple(memory),
            any(entry.flag("estimated") for entry in points.values()),
        )
    except ProfileError as fault:
        raise PlanFileError(f"{where}: {fault}") from None
    falls = [whole[at + 1].where for at, (fewer, more) in enumerate(pairwise(memory)) if more < fewer]
    return _checked(falls[0] if falls else where, profile, server)


def _count(entry: Entry, field: str) -> int:
    value = entry.whole(field)
    if value < 1:
        raise PlanFileError(f"{entry.where}: {field} is {value}: must be at least 1")
    return value
