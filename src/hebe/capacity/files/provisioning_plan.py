"""The plan file of a day, as `hebe simulate` reads it back: what `hebe plan provision` wrote, as it is or changed.

Loads, servers and what each does for a model are read. What follows from them, as the capacity, is computed anew, and
the file's own figure of it is left aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.entries import Entry
from hebe.capacity.files.plan_content import file_made_from, read_plan
from hebe.planning.provisioning.set_up import joining

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PLAN_KIND = "provisioning"
PLAN_VERSION = 1

_HEAD = (
    "kind", "version", "written_by", "objective", "start", "interval_s", "set_up_s", "over_provision_rates",
    "made_from", "predicted", "server", "efficiency", "interval",
)  # fmt: skip
_SERVER = ("server_type", "available", "price_per_hour")
_EFFICIENCY = ("model", "server_type", "qps", "power_watts", "configuration", "estimated")
_INTERVAL = ("start_s", "load_qps", "capacity_qps", "power_watts", "price_per_hour", "servers", "late")
"""The fields that a plan and its tables may have."""
_SAME_TIME = 1e-9
"""Of an interval, by which rounding may put its beginning elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class ProvisioningPlanFile:
    """Servers over a day: `counts` int64 `[intervals, models, types]`, and of them the `late`, which serve only
    `set_up_s` after their interval begins. `load_qps` and `capacity_qps`, what the servers can serve when all are set
    up, are float64 `[intervals, models]`.

    `made_from` is the file of efficiency tuples, None where the plan does not name it.
    """

    path: Path
    models: tuple[str, ...]
    server_types: tuple[str, ...]
    start: str
    interval_s: float
    set_up_s: float
    load_qps: Floats
    capacity_qps: Floats
    counts: Ints
    late: Ints
    made_from: Path | None

    @property
    def edges_s(self) -> Floats:
        """Where intervals begin, and where the last one ends: float64 `[intervals + 1]`."""
        return np.asarray(np.arange(len(self.counts) + 1) * self.interval_s, dtype=np.float64)

    def joining(self, interval: int, model: int) -> list[tuple[float, Ints]]:
        """A model's servers [types] that are not set up when an interval begins, late in it or in those before, with
        how many seconds later they are, which may be after it ends."""
        return joining(self.counts[:, model], self.late[:, model], interval, self.interval_s, self.set_up_s)

    def types_of(self, model: int) -> tuple[str, ...]:
        """The server types that a model has a server of in any interval."""
        most = self.counts[:, model].max(axis=0)
        return tuple(name for name, count in zip(self.server_types, most.tolist(), strict=True) if count)

    def with_load(self) -> ProvisioningPlanFile:
        """The same without models that have neither a load nor a server at any time. Raises `PlanFileError` if that is
        all of them."""
        kept = np.flatnonzero(self.load_qps.any(axis=0) | self.counts.any(axis=(0, 2)))
        if not self.load_qps.any():
            raise PlanFileError(f"{self.path}: no model has a load in any interval: there is nothing to simulate")
        return replace(
            self,
            models=tuple(self.models[at] for at in kept.tolist()),
            load_qps=self.load_qps[:, kept],
            capacity_qps=self.capacity_qps[:, kept],
            counts=self.counts[:, kept],
            late=self.late[:, kept],
        )


def read_provisioning_plan(path: Path) -> ProvisioningPlanFile:
    """The plan in a file; raises `PlanFileError` naming the field that is missing, unknown or wrong."""
    content = read_plan(path, PLAN_KIND, PLAN_VERSION)
    head = Entry(str(path), content, str(path))
    head.check_known(_HEAD)
    interval_s, set_up_s = head.number("interval_s"), head.number("set_up_s")
    if not interval_s:
        raise PlanFileError(f"{path}: interval_s is 0: must be more than 0 s")
    available = _available(_entries(path, content, "server"))
    types = tuple(available)
    intervals = _entries(path, content, "interval")
    _check_beginnings(intervals, interval_s)
    models = tuple(_table(intervals[0], "load_qps"))
    if not models:
        raise PlanFileError(f"{intervals[0].where}: load_qps is empty: must have the load of each model")
    counts, late = (_counts(intervals, name, models, types) for name in ("servers", "late"))
    for at, model, kind in np.argwhere(late > counts).tolist()[:1]:
        raise PlanFileError(
            f"{intervals[at].where}: late: {models[model]} on {types[kind]} is {late[at, model, kind]}: at most its"
            f" servers, {counts[at, model, kind]}"
        )
    _check_available(intervals, counts, available)
    efficiency = _efficiency(_entries(path, content, "efficiency"))
    return ProvisioningPlanFile(
        path,
        models,
        types,
        str(content.get("start", "")),
        interval_s,
        set_up_s,
        _by_model(intervals, "load_qps", models),
        _capacity(path, counts, models, types, efficiency),
        counts,
        late,
        file_made_from(path, content, "efficiency"),
    )


def _entries(path: Path, content: dict[str, Any], name: str) -> list[Entry]:
    listed = content.get(name)
    if not isinstance(listed, list) or not listed or not all(isinstance(fields, dict) for fields in listed):
        raise PlanFileError(f"{path}: [[{name}]] is missing: a plan has at least one")
    known = {"server": _SERVER, "efficiency": _EFFICIENCY, "interval": _INTERVAL}[name]
    entries = [Entry(where := f"{path}: {name} {number}", fields, where) for number, fields in enumerate(listed, 1)]
    for entry in entries:
        entry.check_known(known)
    return entries


def _check_beginnings(intervals: Sequence[Entry], interval_s: float) -> None:
    """Each interval begins where the one before ends, which is what `start_s` says where it stands there."""
    for at, entry in enumerate(intervals):
        start_s = entry.number("start_s", at * interval_s)
        if abs(start_s - at * interval_s) > _SAME_TIME * max(at, 1) * interval_s:
            raise PlanFileError(
                f"{entry.where}: start_s is {start_s:g}: must be {at * interval_s:g}, as long as those before it last"
            )


def _available(servers: Sequence[Entry]) -> dict[str, int]:
    """How many servers there are of each type."""
    available: dict[str, int] = {}
    for entry in servers:
        kind = entry.text("server_type")
        if kind in available:
            raise PlanFileError(f"{entry.where}: server_type {kind} is given twice")
        available[kind] = entry.whole("available")
    return available


def _check_available(intervals: Sequence[Entry], counts: Ints, available: dict[str, int]) -> None:
    taken = counts.sum(axis=1)
    for at, kind in np.argwhere(taken > np.array(list(available.values()))).tolist()[:1]:
        name = list(available)[kind]
        raise PlanFileError(
            f"{intervals[at].where}: servers: {taken[at, kind]:,} of {name}, of all models together: available are"
            f" {available[name]:,}, says server {kind + 1}"
        )


def _efficiency(tuples: Sequence[Entry]) -> dict[tuple[str, str], float]:
    """What a server of a type serves of a model, in queries/s, by model and type."""
    held: dict[tuple[str, str], float] = {}
    for entry in tuples:
        pair = entry.text("model"), entry.text("server_type")
        if pair in held:
            raise PlanFileError(f"{entry.where}: {pair[0]} on {pair[1]} is given twice")
        held[pair] = entry.number("qps")
    return held


def _capacity(
    path: Path, counts: Ints, models: Sequence[str], types: Sequence[str], efficiency: dict[tuple[str, str], float]
) -> Floats:
    """What the servers can serve of each model, float64 `[intervals, models]`."""
    qps = np.zeros((len(models), len(types)))
    for model, kind in np.argwhere(counts.any(axis=0)).tolist():
        pair = models[model], types[kind]
        if pair not in efficiency:
            raise PlanFileError(f"{path}: efficiency of {pair[0]} on {pair[1]} is missing: the plan has such servers")
        qps[model, kind] = efficiency[pair]
    return np.asarray((counts * qps).sum(axis=2))


def _table(entry: Entry, field: str) -> dict[str, Any]:
    value = entry.fields.get(field)
    if not isinstance(value, dict):
        raise PlanFileError(f"{entry.where}: {field} is {value!r}: must be a table by model")
    return value


def _by_model(intervals: Sequence[Entry], field: str, models: Sequence[str]) -> Floats:
    """A number for each model in every interval, float64 `[intervals, models]`."""
    values = np.zeros((len(intervals), len(models)))
    for at, entry in enumerate(intervals):
        table = _table(entry, field)
        _check_known(entry, field, table, models)
        inner = Entry(f"{entry.where}: {field}", table, entry.where)
        values[at] = [inner.number(model) for model in models]
    return values


def _counts(intervals: Sequence[Entry], field: str, models: Sequence[str], types: Sequence[str]) -> Ints:
    """Servers of each model and type, int64 `[intervals, models, types]`; what is not named is 0."""
    counts = np.zeros((len(intervals), len(models), len(types)), dtype=np.int64)
    for at, entry in enumerate(intervals):
        if field == "late" and field not in entry.fields:
            continue
        table = _table(entry, field)
        _check_known(entry, field, table, models)
        for model in table:
            of_model = _table(Entry(f"{entry.where}: {field}", table, entry.where), model)
            where = f"{entry.where}: {field}: {model}"
            for kind in of_model:
                if kind not in types:
                    raise PlanFileError(f"{where}: unknown server type {kind!r}: known are {', '.join(types)}")
                counts[at, models.index(model), types.index(kind)] = Entry(where, of_model, where).whole(kind)
    return counts


def _check_known(entry: Entry, field: str, table: dict[str, Any], models: Sequence[str]) -> None:
    for model in table:
        if model not in models:
            raise PlanFileError(f"{entry.where}: {field}: unknown model {model!r}: known are {', '.join(models)}")
