"""Service times and prices of server types: from files, or given as data.

Service times come as samples in CSV (`simulation.service_samples`), as latency profiles in TOML or JSON, or as profiles
that `hebe profile` wrote. Faults name file, line and field.

A server of samples or of a latency profile works at one query at a time, unless the latter says `workers`. One that
`hebe profile` measured works at as many as it has workers, and splits queries above its batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hebe.capacity.errors import ArgumentError, PlanFileError
from hebe.capacity.files.entries import Entry, check_fields, entries_of, read_entries
from hebe.capacity.files.profiles import ProfileFile, holds_profiles, read_profiles
from hebe.capacity.files.reading import FilePath, in_memory, paths_of
from hebe.planning.error import Parameter
from hebe.profile import LatencyProfile, ProfileError
from hebe.profiling.files.query_service_times import times_of_queries, why_no_times
from hebe.simulation.measured.service_samples import read_samples
from hebe.simulation.measured.service_table import ServiceTable, ServiceTableError
from hebe.workload.text_errors import FIGURE_LIMITS, is_figure

_PROFILE_FIELDS = ("model", "server_type", "batch_sizes", "service_s", "spread_s")
_PRICE, _RECORDED_PRICE = ("server_type", "price_per_hour"), ("instance", "price")
_OTHER_FIELDS = ("workers", "estimated")
_MOST_WORKERS = 768


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """Of one model: the `table`, and the `files` it was read from.

    `workers` is how many queries a server works at at once, by type (one where it says nothing); `unusable` says of
    further types why their profiles tell no service times; `remarked` says of types whose times are not as they were
    measured what was done; `estimated` are the types whose times nobody measured.
    """

    model: str
    table: ServiceTable
    files: tuple[Path, ...]
    workers: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    remarked: Mapping[str, str] = field(default_factory=dict)
    estimated: frozenset[str] = frozenset()

    @property
    def remarks(self) -> list[str]:
        """What must be said of the table's types."""
        remarks = [self.remarked[name] for name in self.table.types if name in self.remarked]
        if estimated := [name for name in self.table.types if name in self.estimated]:
            remarks.append(f"Service times of {self.model} on {', '.join(estimated)} are estimated, not measured.")
        return remarks

    @property
    def named_files(self) -> str:
        """The files' names, for messages."""
        return " + ".join(map(str, self.files))

    def of_types(self, types: Sequence[str], *why: str) -> ServiceTimes:
        """The same for these server types, in this order; `why`, parts of a message, says who asks for one that is
        missing."""
        for name in types:
            if name in self.unusable:
                raise PlanFileError(self.unusable[name])
            if name not in self.table.types:
                raise PlanFileError(
                    f"{self.named_files}: no service times of {self.model} on {name}, which ",
                    *why,
                    f": measure it, or leave it out; there are {', '.join(self.table.types)}",
                )
        return replace(self, table=self.table.of_types(types))

    @property
    def workers_per_server(self) -> tuple[int, ...]:
        """Queries that a server works at at once, by the table's types."""
        return tuple(self.workers.get(name, 1) for name in self.table.types)

    def workers_of(self, counts: Sequence[int]) -> tuple[int, ...]:
        """The workers of all servers of a pool, by the table's types, of its `counts` of servers."""
        return tuple(count * each for count, each in zip(counts, self.workers_per_server, strict=True))


TimesGiven = ServiceTimes | ServiceTable | FilePath | Sequence[FilePath]
"""Service times of one model as data, or the files or directories that they are in."""


def service_times_of(given: TimesGiven, model: str | None) -> ServiceTimes:
    """The service times of `model`, or of the only one there if that is None. Raises `PlanFileError` for files that
    cannot be read."""
    if isinstance(given, ServiceTimes):
        if model not in (None, given.model):
            raise ArgumentError("model", f"{model!r}: the service times are of {given.model}")
        return given
    if isinstance(given, ServiceTable):
        return ServiceTimes(model or "model", given, (in_memory("service_times"),))
    return read_service_times(paths_of(given), model)


def files_of(given: TimesGiven) -> tuple[Path, ...]:
    """The files that service times come from, for a request."""
    if isinstance(given, ServiceTimes):
        return given.files
    return (in_memory("service_times"),) if isinstance(given, ServiceTable) else paths_of(given)


def prices_of(given: Mapping[str, float] | FilePath) -> dict[str, float]:
    """Prices per hour by server type, from a file or as data. Raises `PlanFileError` or `ArgumentError`."""
    if not isinstance(given, Mapping):
        return read_prices(Path(given))
    if not given:
        raise ArgumentError("prices", "no server type has one")
    for name, price in given.items():
        if not (isinstance(price, int | float) and is_figure(price) and price > 0):
            raise ArgumentError("prices", f"{name} is {price!r}: must be more than 0, and lie {FIGURE_LIMITS}")
    return {name: float(price) for name, price in given.items()}


def read_service_times(files: Sequence[Path], model: str | None) -> ServiceTimes:
    """The service times of `model` in these files; of the only one there if `model` is None.

    Files of samples are added row by row, so each must hold the model with the same server types and sizes; files of
    profiles are put together, and so are directories of profiles that `hebe profile` wrote.
    """
    kinds = {".json" if path.is_dir() else path.suffix.lower() for path in files}
    if kinds == {".csv"}:
        try:
            samples = read_samples(files)
            model = _only_model(files, samples.models, model)
            table = samples.table(model)
        except ServiceTableError as fault:
            raise PlanFileError(str(fault)) from None
        return ServiceTimes(model, table, tuple(files))
    if kinds <= {".toml", ".json"} and kinds:
        return _from_profiles(files, _profiles(files), model)
    listed = " + ".join(map(str, files)) or "no file"
    raise PlanFileError(
        f"{listed}: service times must be .csv files of samples, or .toml or .json files of profiles, or directories of"
        " profiles that hebe profile wrote"
    )


def read_prices(path: Path) -> dict[str, float]:
    """Prices per hour by server type, each more than 0: `server_type,price_per_hour`, or as the Kairos artifact has
    them, `instance,price`."""
    entries = entries_of(path, "price")
    fields = entries[0].fields
    known = _RECORDED_PRICE if "instance" in fields and "price_per_hour" not in fields else _PRICE
    check_fields(entries, known)
    prices: dict[str, float] = {}
    for entry in entries:
        name, price = entry.text(known[0]), entry.number(known[1], positive=True)
        if name in prices:
            raise PlanFileError(f"{entry.where}: {known[0]} {name} is given twice")
        prices[name] = price
    return prices


def _only_model(files: Sequence[Path], models: Sequence[str], asked: str | None) -> str:
    listed = " + ".join(map(str, files))
    if not models:
        raise PlanFileError(f"{listed}: holds no service times")
    if asked is None and len(models) > 1:
        raise PlanFileError(
            f"{listed}: holds several models: choose one by ", Parameter("model"), f": {', '.join(models)}"
        )
    if asked is not None and asked not in models:
        raise PlanFileError(f"{listed}: holds no model {asked}: there are {', '.join(models)}")
    return models[0] if asked is None else asked


_Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Stated:
    """A latency profile of a file, at how many queries such a server works at once, and whether nobody measured it."""

    latency: LatencyProfile
    workers: int
    estimated: bool


def _from_profiles(
    files: Sequence[Path], profiles: Mapping[_Pair, _Stated | ProfileFile], model: str | None
) -> ServiceTimes:
    model = _only_model(files, sorted({of_model for of_model, _ in profiles}), model)
    of_types: dict[str, LatencyProfile] = {}
    workers: dict[str, int] = {}
    unusable: dict[str, str] = {}
    remarked: dict[str, str] = {}
    estimated: set[str] = set()
    for (of_model, kind), profile in profiles.items():
        if of_model != model:
            continue
        if isinstance(profile, _Stated):
            of_types[kind], workers[kind] = profile.latency, profile.workers
            if profile.estimated:
                estimated.add(kind)
        elif reason := why_no_times(profile.profile, str(profile.path)):
            unusable[kind] = reason
        else:
            times = times_of_queries(profile.profile, str(profile.path))
            of_types[kind], workers[kind] = times.latency, times.workers
            if times.remark:
                remarked[kind] = times.remark
    if not of_types:
        raise PlanFileError(next(iter(unusable.values())))
    # No farther than all of them are known.
    largest = min(profile.batch_sizes[-1] for profile in of_types.values())
    table = ServiceTable.from_profiles(of_types, largest)
    return ServiceTimes(model, table, tuple(files), workers, unusable, remarked, frozenset(estimated))


def _profiles(files: Sequence[Path]) -> dict[_Pair, _Stated | ProfileFile]:
    """By model and server type."""
    profiles: dict[_Pair, _Stated | ProfileFile] = {}
    places: dict[_Pair, str] = {}

    def add(pair: _Pair, where: str, profile: _Stated | ProfileFile) -> None:
        if pair in profiles:
            raise PlanFileError(f"{where}: {pair[0]} on {pair[1]} is given twice, before in {places[pair]}")
        profiles[pair], places[pair] = profile, where

    for path in files:
        if holds_profiles(path):
            for one in read_profiles(path):
                add(one.pair, str(one.path), one)
            continue
        for entry in read_entries(path, "profile", _PROFILE_FIELDS, _OTHER_FIELDS):
            try:
                profile = LatencyProfile.from_dict(entry.fields)
            except ProfileError as fault:
                raise PlanFileError(f"{entry.where}: {str(fault).removeprefix('latency profile: ')}") from None
            stated = _Stated(profile, _workers(entry), entry.flag("estimated"))
            add((entry.text("model"), entry.text("server_type")), entry.where, stated)
    return profiles


def _workers(entry: Entry) -> int:
    """At how many queries the server works at once; one where the entry does not say."""
    if entry.fields.get("workers", "") == "":
        return 1
    workers = entry.whole("workers")
    if not 1 <= workers <= _MOST_WORKERS:
        raise PlanFileError(f"{entry.where}: workers is {workers:,}: must be 1 to {_MOST_WORKERS:,}")
    return workers
