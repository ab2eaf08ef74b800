"""Reads the configuration of NVIDIA's HugeCTR HPS (`ps.json`) as one of ours, and says what became of every parameter.

    read = read_hps_config(Path("ps.json"))
    read.hierarchy                what `Tiers` and `hebe.HPS` open
    read.decisions                one a parameter: mapped to what, defaulted to what, not honoured and why

What is given and unknown is an error: HPS would ignore it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hebe.embeddings.config.hierarchy_config import (
    MOST_CONFIG_BYTES,
    CacheConfig,
    ConfigError,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    TableConfig,
    UpdateConfig,
    UpdateType,
    VolatileConfig,
    VolatileType,
    refuse_unknown,
)
from hebe.embeddings.config.values import shown
from hebe.embeddings.hps.parameters import (
    CACHE_TYPES,
    MODELS,
    OVERFLOW_POLICIES,
    PARAMETERS,
    PERSISTENT,
    PERSISTENT_TYPES,
    REQUIRED,
    ROOT,
    UPDATE_TYPES,
    UPDATES,
    VOLATILE,
    VOLATILE_TYPES,
    Fate,
    converted,
)
from hebe.embeddings.options import SHARED_PARTITIONS, UNLIMITED, OverflowPolicy, default_partitions
from hebe.spec import check_name

Made = TypeVar("Made")

_REMOTE = ("hdfs://", "s3://", "gs://", "http://", "https://")
_REDIS_PORT = 6379
_SHARED_MEMORY = ("shared_memory_size", "shared_memory_name", "shared_memory_auto_remove")
_CACHES: dict[str | bool, tuple[None, str, Fate | None]] = {
    "dynamic": (None, "level 1 is dynamic", None),
    "static": (None, "level 1 has room for all rows, and takes updates too", None),
    "uvm": (None, "level 1 is dynamic; what it lacks is read from the stores below it, and waited for", None),
    "stochastic": (
        None,
        "level 1 takes every missing row in, in place of the least recently used",
        Fate.NOT_HONOURED,
    ),
    True: (None, "level 1 is always there, in host memory", None),
    False: (
        None,
        "level 1 is there all the same, in host memory; make it small with cache_fraction",
        Fate.NOT_HONOURED,
    ),
}
"""What a cache of a type, and with or without a GPU's, is here: value, note and fate of its parameter."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one parameter. `place` is the JSON object that it stands in, a model's named; `theirs` its value
    as JSON; `ours` what it is in our configuration; `note` what differs, or why it cannot be honoured.
    """

    place: str
    parameter: str
    theirs: str
    fate: Fate
    ours: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class HpsImport:
    """A configuration of HPS as ours."""

    hierarchy: HierarchyConfig
    decisions: tuple[Decision, ...]

    @property
    def not_honoured(self) -> tuple[Decision, ...]:
        """What HPS would do and this system does not."""
        return tuple(decision for decision in self.decisions if decision.fate is Fate.NOT_HONOURED)


def read_hps_config(
    path: Path, moved: Mapping[str, str] | None = None, persistent_dir: Path | None = None
) -> HpsImport:
    """Read a `ps.json`. Relative `sparse_files` that are not below the working directory are sought beside it.

    `moved`: beginnings of paths in it, and where those directories are here. `persistent_dir`: where the persistent
    store is, whatever it says of one. Raises `ConfigError` naming file, object
    and key: not JSON, larger than a configuration can be, unknown keys, missing and wrong values.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_CONFIG_BYTES:
            raise ConfigError(f"{path}: is larger than {MOST_CONFIG_BYTES:,} bytes")
        data = json.loads(path.read_text(), object_pairs_hook=_distinct_keys, parse_constant=_no_constant)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    except ValueError as fault:
        raise ConfigError(f"{path}: is not JSON: {fault}") from None
    return _Reading(str(path), path.parent, moved or {}, persistent_dir).config(data)


class _Section:
    """One object of the JSON while it is read: hands its values out, and notes what becomes of each."""

    def __init__(self, reading: _Reading, kind: str, name: str, data: Any, also: tuple[str, ...] = ()) -> None:
        self.where = f"{reading.where}: {name}" if name else reading.where
        self._reading, self._name = reading, name
        if not isinstance(data, Mapping):
            raise ConfigError(f"{self.where} is {json.dumps(data)[:60]}: must be an object")
        self._data = data
        self._known = {parameter.name: parameter for parameter in PARAMETERS[kind]}
        self._noted: set[str] = set()
        refuse_unknown(data, [*self._known, *also], self.where)

    def given(self, name: str) -> bool:
        """Whether the parameter is there."""
        return name in self._data

    def value(self, name: str) -> Any:
        """The parameter's value, or its default. Raises `ConfigError` for a wrong one, and a missing one without."""
        parameter = self._known[name]
        if name not in self._data:
            if parameter.default is REQUIRED:
                raise ConfigError(f"{self.where}: {name} is missing: HPS needs it too")
            return parameter.default
        try:
            return converted(self._data[name], parameter.kind)
        except ValueError as fault:
            raise ConfigError(f"{self.where}: {name} is {json.dumps(self._data[name])[:80]}: {fault}") from None

    def choice(self, name: str, names: Mapping[str, tuple[str, ...]]) -> str:
        """The value's name in HPS' documentation. Raises `ConfigError`: HPS would take its default."""
        value = self.value(name)
        for official, taken in names.items():
            if value in taken:
                return official
        raise ConfigError(f"{self.where}: {name} is {value!r}: must be one of {', '.join(names)}")

    def note(self, name: str, ours: object, note: str = "", fate: Fate | None = None) -> None:
        """A parameter has become `ours` of our own one."""
        parameter = self._known[name]
        self._noted.add(name)
        if fate is None:
            fate = Fate.MAPPED if name in self._data else Fate.DEFAULTED
        words = f"{parameter.ours} = {_json(ours)}" if parameter.ours else ""
        self._add(name, fate, words, note or (parameter.note if name in self._data else ""))

    def same(self, *names: str) -> dict[str, Any]:
        """Parameters that mean the same here, by our names."""
        fields = {}
        for name in names:
            fields[self._known[name].ours] = value = self.value(name)
            self.note(name, value)
        return fields

    def rest(self, unused: str = "", *, idle: tuple[str, ...] | None = ()) -> None:
        """Note all else that is given: what could be mapped was not, since it is `unused`, and so are the `idle` ones
        (None: all). Raises `ConfigError` for a wrong value there too.
        """
        for name, parameter in self._known.items():
            if name in self._noted or name not in self._data:
                continue
            value, fate, note = self.value(name), parameter.fate, parameter.note
            if fate is Fate.MAPPED or idle is None:
                fate, note = Fate.NOT_NEEDED, unused
            elif name in idle or value in parameter.harmless:
                fate = Fate.NOT_NEEDED
            self._add(name, fate, "", note)

    def make(self, kind: Callable[..., Made], *values: Any, **fields: Any) -> Made:
        """Our part of the configuration. Raises `ConfigError` naming the section."""
        try:
            return kind(*values, **fields)
        except ValueError as fault:
            raise ConfigError(f"{self.where}: {fault}") from None

    def _add(self, name: str, fate: Fate, ours: str, note: str) -> None:
        theirs = _json(self._data[name] if name in self._data else self._known[name].default)
        if name == "password" and self.given(name):
            theirs, ours = '"***"', 'password = "***"'
        self._reading.decisions.append(Decision(self._name, name, theirs, fate, ours, note))


class _Reading:
    """A configuration while it is read."""

    def __init__(self, where: str, directory: Path, moved: Mapping[str, str], persistent_dir: Path | None) -> None:
        self.where = where
        self.decisions: list[Decision] = []
        self._directory = directory
        self._moved = dict(moved)
        self._persistent_dir = persistent_dir

    def config(self, data: Any) -> HpsImport:
        root = _Section(self, ROOT, "", data, (MODELS, VOLATILE, PERSISTENT, UPDATES))
        wide_keys = root.value("supportlonglong")
        narrow = "keys stay 64 bits wide; HPS cuts those that are looked up to 32"
        root.note("supportlonglong", wide_keys, "" if wide_keys else narrow)
        root.rest()
        models = data.get(MODELS)
        if not isinstance(models, list) or not models:
            raise ConfigError(f"{self.where}: {MODELS} is missing: must be a list of models")
        caches: dict[str, CacheConfig] = {}
        tables: dict[str, tuple[TableConfig, ...]] = {}
        for number, own in enumerate(models):
            given = own.get("model") if isinstance(own, Mapping) else None
            section = _Section(self, MODELS, f"models[{given or number}]", own)
            name = section.value("model")
            if name in tables:
                raise ConfigError(f"{self.where}: model {name} is there twice")
            tables[name] = self._tables(section, name, wide_keys)
            caches[name] = self._cache(section, tables[name])
            section.rest()
        persistent = self._persistent(data.get(PERSISTENT))
        volatile = self._volatile(data.get(VOLATILE), rows_elsewhere=persistent.type is not PersistentType.DISABLED)
        updates = self._updates(data.get(UPDATES))
        hierarchy = HierarchyConfig(
            volatile_db=volatile, persistent_db=persistent, update_source=updates, models=caches, tables=tables
        )
        return HpsImport(hierarchy, tuple(self.decisions))

    def _tables(self, section: _Section, model: str, wide_keys: bool) -> tuple[TableConfig, ...]:
        section.make(check_name, "model", model)
        files = section.value("sparse_files")
        dims = section.value("embedding_vecsize_per_table")
        names = section.value("embedding_table_names") or [f"sparse_embedding{n}" for n in range(len(files))]
        for what, found in (("embedding_vecsize_per_table", dims), ("embedding_table_names", names)):
            if len(found) != len(files):
                raise ConfigError(f"{section.where}: {what} has {len(found)} values for {len(files)} sparse_files")
        if not files:
            raise ConfigError(f"{section.where}: sparse_files is empty: a model needs a table")
        if len(set(names)) < len(names):
            raise ConfigError(f"{section.where}: embedding_table_names has a name twice")
        places = [self._place(section, file) for file in files]
        section.note("model", model)
        section.note("sparse_files", places)
        section.note("embedding_table_names", names)
        section.note("embedding_vecsize_per_table", dims)
        return tuple(
            section.make(TableConfig, name=name, dim=dim, sparse_file=place, supportlonglong=wide_keys)
            for name, dim, place in zip(names, dims, places, strict=True)
        )

    def _place(self, section: _Section, file: str) -> str:
        """Where a sparse model is on this machine."""
        for before, after in self._moved.items():
            if file.startswith(before):
                return os.path.abspath(after + file.removeprefix(before))
        if file.startswith(_REMOTE):
            raise ConfigError(
                f"{section.where}: sparse_files has {file}: only directories of this machine can be read; "
                "copy it here and say where its beginning has moved to"
            )
        beside = self._directory / file
        try:
            return os.path.abspath(beside if not Path(file).exists() and beside.exists() else file)
        except OSError as fault:
            raise ConfigError(f"{section.where}: sparse_files has {shown(file)}: {fault.strerror}") from None

    def _cache(self, section: _Section, tables: tuple[TableConfig, ...]) -> CacheConfig:
        defaults = section.value("default_value_for_each_table")
        by_table = {
            table.name: defaults[number] if number < len(defaults) else 0.0 for number, table in enumerate(tables)
        }
        section.note("default_value_for_each_table", by_table)
        threshold, fraction = section.value("hit_rate_threshold"), section.value("gpucacheper")
        threshold_note = "above 1 HPS always waits, as 1 does here" if threshold > 1 else ""
        fraction_note = "the share of each table's rows that level 1 holds, in host memory"
        kind = section.choice("embedding_cache_type", CACHE_TYPES)
        if section.value("use_static_table"):
            kind = "static"
        if kind == "static":
            threshold, fraction = 1.0, 1.0
            threshold_note = fraction_note = "since all rows are in a static cache"
        elif kind == "uvm":
            threshold, threshold_note = 1.0, "since uvm reads all rows, those outside of the GPU too"
        if not section.value("gpucache"):
            threshold, threshold_note = 1.0, "since HPS waits for its stores where it has no GPU cache"
        section.note("hit_rate_threshold", min(threshold, 1.0), threshold_note)
        section.note("gpucacheper", fraction, fraction_note)
        for name in ("gpucache", "embedding_cache_type", "use_static_table"):
            if section.given(name):
                section.note(name, *_CACHES[kind if name != "gpucache" else section.value(name)])
        threads = min(section.value("thread_pool_size"), os.cpu_count() or 1)
        section.note("thread_pool_size", threads, "at most the cores, as in HPS")
        return section.make(
            CacheConfig,
            cache_fraction=fraction,
            hit_rate_threshold=min(threshold, 1.0),
            default_value_for_each_table=by_table,
            thread_pool_size=threads,
            **section.same("init_ec", "refresh_delay", "refresh_interval", "cache_refresh_percentage_per_iteration"),
        )

    def _volatile(self, data: Any, *, rows_elsewhere: bool) -> VolatileConfig:
        """Without the object HPS has a parallel hash map; with one that has no type it has none."""
        section = _Section(self, VOLATILE, VOLATILE, {"type": "parallel_hash_map"} if data is None else data)
        kind = section.choice("type", VOLATILE_TYPES)
        ours, note, fate = VolatileType.HASH_MAP, "", None
        if data is None:
            note, fate = "there is no volatile_db: HPS has a parallel hash map then", Fate.DEFAULTED
        elif kind == "disabled" and not rows_elsewhere:
            note = "HPS holds all rows in its GPU cache then; something has to hold them here"
            fate = Fate.NOT_HONOURED
        elif kind == "disabled":
            ours = VolatileType.DISABLED
        elif kind == "multi_process_hash_map":
            note = "each process has a map of its own; for one of several processes take redis or redis_cluster"
            fate = Fate.NOT_HONOURED
        elif kind == "redis_cluster":
            ours, note = VolatileType.REDIS_CLUSTER, "a single server is type redis here"
        section.note("type", str(ours), note, fate)
        if ours is VolatileType.DISABLED:
            section.rest("volatile_db is disabled", idle=None)
            return VolatileConfig()
        partitions = section.value("num_partitions")
        if partitions is None:
            partitions = default_partitions() if ours is VolatileType.HASH_MAP else SHARED_PARTITIONS
        otherwise = "min(16, cores)" if ours is VolatileType.HASH_MAP else "the same for servers of any cores"
        section.note("num_partitions", partitions, "" if section.given("num_partitions") else otherwise)
        policy = section.choice("overflow_policy", OVERFLOW_POLICIES)
        section.note("overflow_policy", policy)
        fields = section.same("overflow_resolution_target", "cache_missed_embeddings")
        fields |= self._rows_of_volatile(section, rows_elsewhere)
        if ours is VolatileType.REDIS_CLUSTER:
            fields |= self._redis(section)
        unused = "TLS is off" if ours is VolatileType.REDIS_CLUSTER else "only Redis needs it"
        section.rest(unused, idle=() if kind == "multi_process_hash_map" else _SHARED_MEMORY)
        return section.make(
            VolatileConfig, type=ours, num_partitions=partitions, overflow_policy=OverflowPolicy(policy), **fields
        )

    def _rows_of_volatile(self, section: _Section, rows_elsewhere: bool) -> dict[str, Any]:
        """How many rows it has. HPS' code, unlike its documentation, puts all of a table in that has no more rows than
        there is room for, whatever `initial_cache_rate` is, which else is a share of the room.
        """
        margin, rate = section.value("overflow_margin"), section.value("initial_cache_rate")
        if 1 <= margin < UNLIMITED and not rows_elsewhere:
            note = "there is no persistent_db with rows that would leave: all of them stay"
            section.note("overflow_margin", UNLIMITED, note, Fate.NOT_HONOURED)
            margin = UNLIMITED
        else:
            section.note("overflow_margin", margin)
        note = ""
        if 0 <= rate < 1 and margin >= UNLIMITED:
            rate, note = 1.0, "HPS puts all rows in where there is room for them, and so there is here"
        elif rate < 1:
            note = "of a table's rows; HPS takes the share of the room, where the rows are more than that"
        section.note("initial_cache_rate", rate, note)
        return {"overflow_margin": margin, "initial_cache_rate": rate}

    def _redis(self, section: _Section) -> dict[str, Any]:
        addresses = [part.strip() for part in section.value("address").replace(",", ";").split(";") if part.strip()]
        address = ";".join(part if ":" in part else f"{part}:{_REDIS_PORT}" for part in addresses)
        section.note("address", address)
        fields = section.same("user_name", "password", "num_node_connections", "max_batch_size", "enable_tls")
        if fields["enable_tls"]:
            fields |= section.same(
                "tls_ca_certificate", "tls_client_certificate", "tls_client_key", "tls_server_name_identification"
            )
        return fields | {"address": address}

    def _persistent(self, data: Any) -> PersistentConfig:
        read = self._persistent_of(data)
        if self._persistent_dir is None:
            return read
        return replace(read, type=PersistentType.ROCKS_DB, path=str(self._persistent_dir.resolve()))

    def _persistent_of(self, data: Any) -> PersistentConfig:
        """What the file says."""
        section = _Section(self, PERSISTENT, PERSISTENT, {} if data is None else data)
        kind = section.choice("type", PERSISTENT_TYPES)
        section.note("type", kind)
        if kind == "disabled":
            section.rest("persistent_db is disabled", idle=None)
            return PersistentConfig()
        fields = section.same("path", "num_threads", "read_only", "max_batch_size")
        section.rest()
        return section.make(PersistentConfig, type=PersistentType.ROCKS_DB, **fields)

    def _updates(self, data: Any) -> UpdateConfig:
        section = _Section(self, UPDATES, UPDATES, {} if data is None else data)
        kind = section.choice("type", UPDATE_TYPES)
        if kind == "null":
            section.note("type", kind)
            section.rest("update_source is null", idle=None)
            return UpdateConfig()
        note = "HugeCTR's own messages are not read: trainers push with hebe's producer (hebe update push)"
        section.note("type", kind, note, Fate.NOT_HONOURED)
        fields = section.same(
            "brokers",
            "metadata_refresh_interval_ms",
            "receive_buffer_size",
            "poll_timeout_ms",
            "max_batch_size",
            "failure_backoff_ms",
            "max_commit_interval",
        )
        section.rest()
        return section.make(UpdateConfig, type=UpdateType.KAFKA, **fields)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _json(value: object) -> str:
    """As JSON, whole numbers without a fraction; nothing for what has no value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value) if value is not REQUIRED and value is not None else ""
