"""The configuration of the tiers: one TOML file, in HPS' words where they mean the same.

    [cache]            level 1, and how it is filled, missed and refreshed
    [volatile_db]      level 2
    [persistent_db]    level 3
    [update_source]    where online updates come from
    [models.NAME]      what differs from [cache] for model NAME
    [[tables.NAME]]    a table of model NAME that is in no repository, but in HugeCTR's files: for `hebe.HPS`

A key that is none is an error that names it, in whatever place: HPS ignores it, and serves something else than meant.
So are keys that would do nothing: those that a tier or a log of this `type` does not read (`idle_keys`), of TLS that is
not switched on, and `cache_fraction` beside `cache_bytes`, which wins. Names of tables can only be checked when a model
is loaded (`check_tables`), and those of models are logged by who knows all of them: a model may be added later.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hebe.embeddings.config.values import as_float, as_int, shown
from hebe.embeddings.options import (
    SHARED_PARTITIONS,
    UNLIMITED,
    LookupOptions,
    OverflowPolicy,
    RefreshOptions,
    VolatileOptions,
    default_partitions,
)
from hebe.embeddings.redis.connection import RedisAccess
from hebe.kernels.lookup.row_format import RowFormat
from hebe.spec import EmbeddingTableSpec, SpecError, check_name

log = logging.getLogger("hebe.tiers")

MOST_CONFIG_BYTES = 1 << 20
_TLS_FILES = "tls_ca_certificate", "tls_client_certificate", "tls_client_key"
_TLS = *_TLS_FILES, "tls_server_name_identification"


class ConfigError(ValueError):
    """A configuration that is not one; names file, table and key."""


class VolatileType(StrEnum):
    """What level 2 is."""

    DISABLED = "disabled"
    HASH_MAP = "parallel_hash_map"
    REDIS = "redis"
    REDIS_CLUSTER = "redis_cluster"


_REDIS = (VolatileType.REDIS, VolatileType.REDIS_CLUSTER)


class PersistentType(StrEnum):
    """What level 3 is."""

    DISABLED = "disabled"
    ROCKS_DB = "rocks_db"


class UpdateType(StrEnum):
    """What carries online updates."""

    NULL = "null"
    LOG_DIRECTORY = "log_directory"
    REDIS_STREAMS = "redis_streams"
    KAFKA = "kafka_message_queue"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Level 1 of a model. `cache_bytes` bounds it, or else `cache_fraction` of each table's rows (HPS: gpucacheper).

    `thread_pool_size` threads work in the background, on at most `insertion_queue` pieces of work (`BackgroundWork`).
    `init_ec`: fill the cache before the model is ready: with the keys that it held in the last run, of this version or
    else of another; or with those in the file `warm_up_keys` (`cache_keys`); or else with the first ones of each table.
    """

    cache_fraction: float = 0.2
    cache_bytes: int | None = None
    row_format: RowFormat = RowFormat.FP32
    slabs_per_slabset: int = 2
    hit_rate_threshold: float = 1.0
    default_value_for_each_table: Mapping[str, float] = field(default_factory=dict)
    thread_pool_size: int = 2
    insertion_queue: int = 256
    init_ec: bool = True
    warm_up_keys: str = ""
    refresh_interval: float = 0.0
    refresh_delay: float = 0.0
    cache_refresh_percentage_per_iteration: float = 0.0

    def __post_init__(self) -> None:
        _within("cache_fraction", self.cache_fraction, 0, 1, open_below=True)
        if self.cache_bytes is not None:
            _within("cache_bytes", self.cache_bytes, 1)
        _within("slabs_per_slabset", self.slabs_per_slabset, 1, 64)
        _within("thread_pool_size", self.thread_pool_size, 1, 256)
        _within("insertion_queue", self.insertion_queue, 1, 1 << 20)
        _ = self.lookup_options(), self.refresh_options()

    def lookup_options(self, *, cache_missed_embeddings: bool = True) -> LookupOptions:
        """What `TieredLookup` needs of it."""
        return LookupOptions(self.hit_rate_threshold, self.default_value_for_each_table, cache_missed_embeddings)

    def refresh_options(self) -> RefreshOptions:
        """What `CacheRefresh` needs of it."""
        return RefreshOptions(self.refresh_interval, self.refresh_delay, self.cache_refresh_percentage_per_iteration)


@dataclass(frozen=True, slots=True)
class VolatileConfig:
    """Level 2. `address` is host:port, or a Unix socket's path, of Redis; several of a cluster with ";" between them.

    `memory_bytes` bounds the hash map. `initial_cache_rate`: which share of each table is put in at the start, of a
    store that has none of it. The password may be in a file of its own. `timeout_ms`: the longest wait for an answer.
    Without `num_partitions` a file's hash map has as many as cores, its Redis 16.
    """

    type: VolatileType = VolatileType.DISABLED
    address: str = "127.0.0.1:7000"
    user_name: str = "default"
    password: str = ""
    password_file: str = ""
    num_partitions: int = field(default_factory=default_partitions)
    num_node_connections: int = 5
    max_batch_size: int = 65536
    enable_tls: bool = False
    tls_ca_certificate: str = ""
    tls_client_certificate: str = ""
    tls_client_key: str = ""
    tls_server_name_identification: str = ""
    overflow_margin: int = UNLIMITED
    overflow_policy: OverflowPolicy = OverflowPolicy.EVICT_RANDOM
    overflow_resolution_target: float = 0.8
    initial_cache_rate: float = 1.0
    cache_missed_embeddings: bool = True
    memory_bytes: int | None = None
    timeout_ms: float = 50.0

    def __post_init__(self) -> None:
        _within("num_node_connections", self.num_node_connections, 1, 1024)
        _within("max_batch_size", self.max_batch_size, 1)
        _within("initial_cache_rate", self.initial_cache_rate, 0, 1)
        _within("timeout_ms", self.timeout_ms, 0, 600_000, open_below=True)
        if self.memory_bytes is not None:
            _within("memory_bytes", self.memory_bytes, 1)
        if self.password and self.password_file:
            raise ConfigError("password and password_file are both given: keep one")
        _refuse_idle(self, _changed(self))
        _refuse_idle_tls(self, tls=self.enable_tls)
        _ = self.options()

    def options(self) -> VolatileOptions:
        """How the store is parted and pruned."""
        return VolatileOptions(
            self.num_partitions, self.overflow_margin, self.overflow_policy, self.overflow_resolution_target
        )

    def redis_access(self) -> RedisAccess:
        """How Redis is reached. An exchange may take longer than a query waits: a late answer is no lost connection.

        Raises `ConfigError` for a password file that cannot be read, ValueError for files of TLS.
        """
        return RedisAccess(
            self.user_name,
            secret(self.password, self.password_file),
            self.num_node_connections,
            timeout_s=max(4 * self.timeout_ms / 1e3, 0.25),
            **_tls_of(self),
        )


@dataclass(frozen=True, slots=True)
class PersistentConfig:
    """Level 3. `path`: a directory under which each version of a model has its own."""

    type: PersistentType = PersistentType.DISABLED
    path: str = ""
    num_threads: int = 4
    read_only: bool = False
    max_batch_size: int = 65536
    timeout_ms: float = 1000.0

    def __post_init__(self) -> None:
        _within("num_threads", self.num_threads, 1, 256)
        _within("max_batch_size", self.max_batch_size, 1)
        _within("timeout_ms", self.timeout_ms, 0, 600_000, open_below=True)
        _refuse_idle(self, _changed(self))
        if self.type is not PersistentType.DISABLED and not self.path:
            raise ConfigError("path is missing: the directory of the persistent store")


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Online updates. `address`: the log's directory, Redis' host:port, or Kafka's `brokers` with ";" between them.
    `password_file` holds Redis' password, and TLS to it is set as in `VolatileConfig`, or on by an address of rediss://.
    `security_file` holds lines NAME=VALUE for Kafka's client: security.protocol, ...

    `group` begins the names of readers in the log. `max_rows_per_s` bounds the ingestion (0:
    nothing does), which applies what has come every `interval_s` seconds (0: as soon as it comes): the longer, the less
    of the cores it takes, as hot rows come again and again. Messages that cannot be applied go to directory
    `quarantine`, or else beside level 3. Kafka's messages may have `receive_buffer_size` bytes, and always those that
    trainers send, `KafkaOptions.most_message_bytes`.
    """

    type: UpdateType = UpdateType.NULL
    address: str = ""
    group: str = "hebe"
    password_file: str = ""
    security_file: str = ""
    quarantine: str = ""
    poll_timeout_ms: float = 500.0
    max_batch_size: int = 8192
    failure_backoff_ms: float = 50.0
    max_commit_interval: int = 32
    max_rows_per_s: float = 0.0
    interval_s: float = 1.0
    metadata_refresh_interval_ms: int = 30_000
    receive_buffer_size: int = 262_144
    enable_tls: bool = False
    tls_ca_certificate: str = ""
    tls_client_certificate: str = ""
    tls_client_key: str = ""
    tls_server_name_identification: str = ""

    def __post_init__(self) -> None:
        _within("poll_timeout_ms", self.poll_timeout_ms, 1, 600_000)
        _within("max_batch_size", self.max_batch_size, 1)
        _within("failure_backoff_ms", self.failure_backoff_ms, 1, 600_000)
        _within("max_commit_interval", self.max_commit_interval, 1)
        _within("max_rows_per_s", self.max_rows_per_s, 0)
        _within("interval_s", self.interval_s, 0, 86_400)
        _within("metadata_refresh_interval_ms", self.metadata_refresh_interval_ms, 1)
        _within("receive_buffer_size", self.receive_buffer_size, 1024, 100_000_000)
        _refuse_idle(self, _changed(self))
        if self.type is UpdateType.NULL:
            return
        check_name("group", self.group)
        if not self.address:
            raise ConfigError(f"address is missing: where the {self.type} is")
        _refuse_idle_tls(self, tls=self.enable_tls or self.address.lower().startswith("rediss://"))

    def redis_access(self, of_address: RedisAccess) -> RedisAccess:
        """How Redis is reached: what the address says, which may be a URL, with what this says. Raises as
        `VolatileConfig.redis_access` does.
        """
        password = secret(of_address.password, self.password_file)
        return dataclasses.replace(of_address, password=password, **_tls_of(self))


_READ_BY: Mapping[type[object], Mapping[tuple[StrEnum, ...], tuple[str, ...]]] = {
    VolatileConfig: {
        (VolatileType.HASH_MAP,): ("memory_bytes",),
        _REDIS: (
            "address", "user_name", "password", "password_file", "num_node_connections", "max_batch_size", "timeout_ms",
            "enable_tls", *_TLS,
        ),
        (VolatileType.HASH_MAP, *_REDIS): (
            "num_partitions", "overflow_margin", "overflow_policy", "overflow_resolution_target", "initial_cache_rate",
            "cache_missed_embeddings",
        ),
    },
    PersistentConfig: {
        (PersistentType.ROCKS_DB,): ("path", "num_threads", "read_only", "max_batch_size", "timeout_ms"),
    },
    UpdateConfig: {
        (UpdateType.REDIS_STREAMS,): ("password_file", "enable_tls", *_TLS),
        (UpdateType.KAFKA,): ("security_file", "metadata_refresh_interval_ms", "receive_buffer_size"),
        (UpdateType.LOG_DIRECTORY, UpdateType.REDIS_STREAMS, UpdateType.KAFKA): (
            "address", "group", "quarantine", "poll_timeout_ms", "max_batch_size", "failure_backoff_ms",
            "max_commit_interval", "max_rows_per_s", "interval_s",
        ),
    },
}  # fmt: skip
"""Of a tier and a log: which types read which keys, beside `type`."""


def idle_keys(config: Any) -> dict[str, tuple[StrEnum, ...]]:
    """Keys of a part of the configuration that would do nothing, as its `type` does not read them, and which do."""
    read_by = _READ_BY.get(type(config), {})
    return {name: types for types, names in read_by.items() for name in names if config.type not in types}


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table of HugeCTR's (`hugectr_files`): `sparse_file` is its directory, "" once a persistent store has its rows.

    `supportlonglong`: keys are wider than 32 bits.
    """

    name: str
    dim: int
    sparse_file: str = ""
    supportlonglong: bool = True

    def __post_init__(self) -> None:
        EmbeddingTableSpec(self.name, 1, self.dim)  # raises for a name that is none, and a dim below 1


@dataclass(frozen=True, slots=True)
class HierarchyConfig:
    """All tiers. `models` holds what `[cache]` says where a model's own table differs; `tables` those tables of models
    that are in no repository, in HPS' order.
    """

    cache: CacheConfig = field(default_factory=CacheConfig)
    volatile_db: VolatileConfig = field(default_factory=VolatileConfig)
    persistent_db: PersistentConfig = field(default_factory=PersistentConfig)
    update_source: UpdateConfig = field(default_factory=UpdateConfig)
    models: Mapping[str, CacheConfig] = field(default_factory=dict)
    tables: Mapping[str, tuple[TableConfig, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = self.persistent_db.type is not PersistentType.DISABLED and self.persistent_db.read_only
        if kept and self.update_source.type is not UpdateType.NULL:
            raise ConfigError("[persistent_db] read_only contradicts [update_source], which writes there: keep one")
        if self.volatile_db.type is not VolatileType.DISABLED and self.persistent_db.type is PersistentType.DISABLED:
            self._refuse_to_lose_rows()

    @classmethod
    def from_toml(cls, path: Path) -> HierarchyConfig:
        """Read a file. Raises `ConfigError` naming it, and the table and key that is wrong."""
        try:
            if path.stat().st_size > MOST_CONFIG_BYTES:
                raise ConfigError(f"{path}: is larger than {MOST_CONFIG_BYTES:,} bytes")
            data = tomllib.loads(path.read_text())
        except OSError as fault:
            raise ConfigError(f"{path}: {fault.strerror}") from None
        except RecursionError:
            raise ConfigError(f"{path}: is nested too deeply") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
            raise ConfigError(f"{path}: {fault}") from None
        except ConfigError:
            raise
        except ValueError:  # Python's own, of a whole number that has too many digits for it
            raise ConfigError(f"{path}: has a whole number that is too long: must be of 64 bits") from None
        return cls.from_mapping(data, str(path))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "hierarchy") -> HierarchyConfig:
        """The same of a dict. Raises `ConfigError`."""
        refuse_unknown(data, [each.name for each in dataclasses.fields(cls)], where)
        parts: dict[str, Any] = {"cache": _read_cache(data.get("cache", {}), f"{where}: [cache]")}
        for name, kind in (
            ("volatile_db", VolatileConfig),
            ("persistent_db", PersistentConfig),
            ("update_source", UpdateConfig),
        ):
            parts[name] = _read_typed(kind, _in_our_words(name, data.get(name, {}), where), f"{where}: [{name}]")
        models = data.get("models", {})
        if not isinstance(models, Mapping):
            raise ConfigError(f"{where}: models is {type(models).__name__}: must be tables [models.NAME]")
        parts["models"] = {
            str(name): _read_cache(own, f"{where}: [models.{name}]", parts["cache"]) for name, own in models.items()
        }
        parts["tables"] = _read_tables(data.get("tables", {}), where)
        try:
            return cls(**parts)
        except ConfigError as fault:
            raise ConfigError(f"{where}: {fault}") from None

    def _refuse_to_lose_rows(self) -> None:
        """Of a level 2 that alone has the rows: those that it is not given, or that give way, would be unknown keys."""
        volatile = self.volatile_db
        nowhere = "without [persistent_db]: rows that it lacks would be nowhere, and answered with default vectors"
        if volatile.initial_cache_rate < 1:
            raise ConfigError(
                f"[volatile_db] initial_cache_rate is {volatile.initial_cache_rate} {nowhere}: leave it out, or add "
                "[persistent_db]"
            )
        if volatile.overflow_margin < UNLIMITED:
            bound = "memory_bytes" if volatile.type is VolatileType.HASH_MAP else "Redis' maxmemory"
            raise ConfigError(
                f"[volatile_db] overflow_margin is {volatile.overflow_margin} {nowhere}: leave it out ({bound} bounds "
                "the memory), or add [persistent_db]"
            )

    @property
    def is_tiered(self) -> bool:
        """Whether tables are read through tiers; else they are resident, and only updates are configured."""
        return (
            self.volatile_db.type is not VolatileType.DISABLED or self.persistent_db.type is not PersistentType.DISABLED
        )

    def cache_of(self, model: str) -> CacheConfig:
        """Level 1 of `model`."""
        return self.models.get(model, self.cache)

    def check_tables(self, model: str, tables: Collection[str]) -> None:
        """Raise `ConfigError` for a default value that [models.MODEL] has for a table that is none of the `tables` of
        `model`. One of [cache], which is for all models, may be meant for another one: it is logged.
        """
        shared = self.cache_of(model).default_value_for_each_table == self.cache.default_value_for_each_table
        where = "[cache]" if shared else f"[models.{model}]"
        for name in self.cache_of(model).default_value_for_each_table:
            if name in tables:
                continue
            what = f"{where} default_value_for_each_table has table {name}, and model {model} has none of that name"
            what += _known_names(name, list(tables))
            if not shared:
                raise ConfigError(what)
            log.warning("%s", what)

    def models_beside(self, models: Collection[str]) -> list[str]:
        """What is to be said of each [models.NAME] that is for none of `models`, which are all that there are now."""
        return [
            f"[models.{name}] is for a model that there is not{_known_names(name, list(models))}"
            for name in self.models
            if name not in models
        ]


def secret(password: str, password_file: str) -> str:
    """The password, read from its file if it is in one. Raises `ConfigError`."""
    if not password_file:
        return password
    try:
        return Path(password_file).read_text().strip()
    except OSError as fault:
        raise ConfigError(f"password_file {password_file}: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"password_file {password_file}: is not text in UTF-8") from None


def _read_cache(data: object, where: str, defaults: CacheConfig | None = None) -> CacheConfig:
    """Of a model whose [cache] are the `defaults`: the `cache_fraction` that it gives wins over their `cache_bytes`."""
    read: CacheConfig = _read(CacheConfig, data, where, defaults)
    assert isinstance(data, Mapping)
    if "cache_fraction" not in data:
        return read
    if "cache_bytes" in data:
        raise ConfigError(f"{where} has both cache_fraction and cache_bytes: keep one")
    return dataclasses.replace(read, cache_bytes=None)


def _in_our_words(name: str, data: object, where: str) -> object:
    """HPS' `brokers` are the `address` of Kafka, and what Redis has if nothing is said does not depend on our cores."""
    if name == "volatile_db" and isinstance(data, Mapping) and data.get("type") in _REDIS:
        return {"num_partitions": SHARED_PARTITIONS, **data}
    if name != "update_source" or not isinstance(data, Mapping) or "brokers" not in data:
        return data
    if data.get("type") != UpdateType.KAFKA:
        raise ConfigError(
            f"{where}: [{name}] brokers are of {UpdateType.KAFKA}, and type is {data.get('type', 'missing')}"
        )
    if "address" in data:
        raise ConfigError(f"{where}: [{name}] has both address and brokers, which are the same: keep one")
    return {"address" if key == "brokers" else key: value for key, value in data.items()}


def _read_typed(kind: type[Any], data: object, where: str) -> Any:
    """A tier or a log. What is given of one needs its `type`: the default is that there is none."""
    if isinstance(data, Mapping) and data and "type" not in data:
        types = ", ".join(typing.get_type_hints(kind)["type"])
        raise ConfigError(f"{where} has {', '.join(data)} but no type: must be one of {types}")
    read = _read(kind, data, where)
    assert isinstance(data, Mapping)
    try:
        _refuse_idle(read, data)  # those too that are given as what they are by default
    except ConfigError as fault:
        raise ConfigError(f"{where} {fault}") from None
    return read


def _read_tables(data: object, where: str) -> dict[str, tuple[TableConfig, ...]]:
    if not isinstance(data, Mapping) or not all(isinstance(own, list) for own in data.values()):
        raise ConfigError(f"{where}: tables: must be lists of tables [[tables.NAME]]")
    found = {}
    for model, own in data.items():
        place = f"{where}: [[tables.{model}]]"
        try:
            check_name("model", model)
        except SpecError as fault:
            raise ConfigError(f"{place}: {fault}") from None
        tables = tuple(_read(TableConfig, each, place) for each in own)
        if len({table.name for table in tables}) < len(tables):
            raise ConfigError(f"{place} has two tables of one name")
        found[str(model)] = tables
    return found


def _read(kind: type[Any], data: object, where: str, defaults: Any = None) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {type(data).__name__}: must be a table")
    hints = typing.get_type_hints(kind)
    refuse_unknown(data, list(hints), where)
    given = {name: _converted(value, hints[name], f"{where} {name}") for name, value in data.items()}
    missing = [each.name for each in dataclasses.fields(kind) if each.name not in given and _is_required(each)]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing")
    try:
        return kind(**given) if defaults is None else dataclasses.replace(defaults, **given)
    except ValueError as fault:
        raise ConfigError(f"{where} {fault}") from None


def _is_required(each: dataclasses.Field[Any]) -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def refuse_unknown(data: Mapping[str, Any], known: list[str], where: str) -> None:
    """Raise `ConfigError` for a key that is not `known`, naming it and the nearest that is."""
    for name in data:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f": did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {name}{hint}")


def _known_names(name: str, known: list[str]) -> str:
    """How a message that says that `name` is unknown ends: with the nearest name that is known, and all of them."""
    near = difflib.get_close_matches(name, known, 1)
    return (f" (did you mean {near[0]}?)" if near else "") + f"; there are {', '.join(known) or 'none'}"


def _converted(value: Any, hint: Any, where: str) -> Any:
    """`value` as a field of type `hint` takes it."""
    if typing.get_origin(hint) is types.UnionType:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise ConfigError(f"{where} is {shown(value)}: must be one of {', '.join(hint)}")
        return hint(value)
    if typing.get_origin(hint) is not None:  # the one mapping: numbers by table
        if not isinstance(value, Mapping) or not all(_is(number, float) for number in value.values()):
            raise ConfigError(f"{where}: must be a table of numbers by table name")
        return {str(name): _converted(number, float, f"{where}: {name}") for name, number in value.items()}
    if not _is(value, hint):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        raise ConfigError(f"{where} is {shown(value)}: must be {words[hint]}")
    try:
        return as_float(value) if hint is float else as_int(value) if hint is int else value
    except ValueError as fault:
        raise ConfigError(f"{where} is {shown(value)}: {fault}") from None


def _is(value: object, kind: type[Any]) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _refuse_idle(config: VolatileConfig | PersistentConfig | UpdateConfig, given: Iterable[str]) -> None:
    """Raise `ConfigError` for one of the `given` keys that this type does not read."""
    idle = idle_keys(config)
    for name in given:
        if name in idle:
            read = f"{', '.join(idle[name])} {'reads' if len(idle[name]) == 1 else 'read'}"
            hint = ": what Kafka's client needs goes into security_file" if config.type is UpdateType.KAFKA else ""
            raise ConfigError(f"{name} is given, which only {read}, and type is {config.type}{hint}")


def _changed(config: Any) -> list[str]:
    """Keys that are not as they are by default."""
    return [
        each.name
        for each in dataclasses.fields(config)
        if getattr(config, each.name)
        != (each.default if each.default_factory is dataclasses.MISSING else each.default_factory())
    ]


def _refuse_idle_tls(config: VolatileConfig | UpdateConfig, *, tls: bool) -> None:
    given = next((name for name in _TLS if getattr(config, name)), None)
    if given is not None and not tls:
        raise ConfigError(f"{given} is given without enable_tls = true, so that nothing would be encrypted")


def _tls_of(config: VolatileConfig | UpdateConfig) -> dict[str, Any]:
    """What is given for TLS, as `RedisAccess` takes it."""
    given = {name: getattr(config, name) for name in ("enable_tls", *_TLS)}
    return {name: Path(value) if name in _TLS_FILES else value for name, value in given.items() if value}


def _within(name: str, value: float, least: float, most: float | None = None, *, open_below: bool = False) -> None:
    fits = (value > least if open_below else value >= least) and (most is None or value <= most)
    if not fits:
        above = f"above {least}" if open_below else f"at least {least}"
        raise ConfigError(f"{name} is {value}: must be {above}" + ("" if most is None else f" and at most {most}"))
