"""Every parameter of a HugeCTR HPS configuration (`ps.json`): its default there, and what becomes of it here.

Names and defaults are those of HugeCTR's own reader (`parameter_server_config::init`, HugeCTR 24.06) and of its
documentation of the HPS database backend. `docs/embeddings-hps.md` has the same table for people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hebe.embeddings.config.values import as_float

REQUIRED = object()
"""The default of a parameter that has none."""


class Fate(StrEnum):
    """What becomes of a parameter."""

    MAPPED = "mapped"
    """Something here means the same."""
    DEFAULTED = "defaulted"
    """It is not given; HPS' default is what counts here too."""
    NOT_NEEDED = "not needed"
    """It sizes or steers something that is not there; no answer is another without it."""
    NOT_HONOURED = "not honoured"
    """It asks for something that this system does not do."""


class Kind(StrEnum):
    """What a value is. HPS' examples write numbers and truth values as strings too: "0.5", "true"."""

    BOOL = "true or false"
    INT = "a whole number"
    FLOAT = "a number"
    STRING = "a string"
    INTS = "a list of whole numbers"
    FLOATS = "a list of numbers"
    STRINGS = "a list of strings"

    @property
    def element(self) -> Kind:
        """Of a list; of all else itself."""
        return {Kind.INTS: Kind.INT, Kind.FLOATS: Kind.FLOAT, Kind.STRINGS: Kind.STRING}.get(self, self)


@dataclass(frozen=True, slots=True)
class HpsParameter:
    """One key. `ours` is its place in our configuration; `note` says what else there is to know, or why not.

    Where what is not honoured makes no difference, the value is among `harmless`.
    """

    name: str
    kind: Kind
    default: Any
    fate: Fate
    ours: str = ""
    note: str = ""
    harmless: tuple[Any, ...] = ()


def _mapped(name: str, kind: Kind, default: Any, ours: str | None = None, note: str = "") -> HpsParameter:
    return HpsParameter(name, kind, default, Fate.MAPPED, name if ours is None else ours, note)


def _idle(name: str, kind: Kind, default: Any, note: str) -> HpsParameter:
    return HpsParameter(name, kind, default, Fate.NOT_NEEDED, note=note)


def _refused(name: str, kind: Kind, default: Any, note: str, *harmless: Any) -> HpsParameter:
    return HpsParameter(name, kind, default, Fate.NOT_HONOURED, note=note, harmless=harmless)


_NO_GPU = "level 1 lies in host memory; there is no GPU to choose"
_NO_POOL = "rows go to the caller's buffer; there is no pool of buffers to size"
_NO_BUFFERS = "buffers grow to the largest lookup seen"
_DENSE = "the dense network is not converted: keep it in torch with hebe.LookupLayer, or import it as a torch module"
_FILTERS = "updates are taken for each table that is open"
_SHARED_MEMORY = "there is no hash map in shared memory"
_OLDER = "of an older HPS; those of 2023 and later do not read it either"
_NEVER_READ = "HPS' reader ignores it too: stores that have a table's rows are left as they are, others are filled"

ROOT, MODELS, VOLATILE, PERSISTENT, UPDATES = "", "models", "volatile_db", "persistent_db", "update_source"

PARAMETERS: dict[str, tuple[HpsParameter, ...]] = {
    ROOT: (
        _mapped("supportlonglong", Kind.BOOL, REQUIRED, "tables.MODEL supportlonglong", "keys are 64 bits wide"),
        _idle("fuse_embedding_table", Kind.BOOL, False, "tables keep their names and indices; a lookup is cheap"),
    ),
    MODELS: (
        _mapped("model", Kind.STRING, REQUIRED, "tables.MODEL"),
        _mapped("sparse_files", Kind.STRINGS, REQUIRED, "tables.MODEL sparse_file"),
        _mapped("embedding_table_names", Kind.STRINGS, None, "tables.MODEL name"),
        _mapped("embedding_vecsize_per_table", Kind.INTS, REQUIRED, "tables.MODEL dim"),
        _mapped("default_value_for_each_table", Kind.FLOATS, REQUIRED),
        _mapped("hit_rate_threshold", Kind.FLOAT, 0.9),
        _mapped("gpucacheper", Kind.FLOAT, 0.2, "cache_fraction"),
        _mapped("gpucache", Kind.BOOL, True, ""),
        _mapped("embedding_cache_type", Kind.STRING, "dynamic", ""),
        _mapped("use_static_table", Kind.BOOL, False, ""),
        _mapped("thread_pool_size", Kind.INT, 16),
        _mapped("cache_refresh_percentage_per_iteration", Kind.FLOAT, 0.0),
        _mapped("refresh_delay", Kind.FLOAT, 0.0),
        _mapped("refresh_interval", Kind.FLOAT, 0.0),
        _mapped("init_ec", Kind.BOOL, True),
        _refused("deployed_device_list", Kind.INTS, None, _NO_GPU),
        _refused("dense_file", Kind.STRING, "", _DENSE, ""),
        _refused("network_file", Kind.STRING, "", _DENSE, ""),
        _refused("fp8_quant", Kind.BOOL, False, "rows are float32; row_format = 'int8' or 'fp16' is nearest", False),
        _idle("max_batch_size", Kind.INT, 64, _NO_BUFFERS),
        _idle("maxnum_catfeature_query_per_table_per_sample", Kind.INTS, None, _NO_BUFFERS),
        _idle("maxnum_des_feature_per_sample", Kind.INT, 26, "sizes the dense network's input"),
        _idle("label_dim", Kind.INT, 1, "sizes the dense network's output"),
        _idle("slot_num", Kind.INT, 10, "sizes the dense network's input"),
        _idle("num_of_worker_buffer_in_pool", Kind.INT, 1, _NO_POOL),
        _idle("num_of_refresher_buffer_in_pool", Kind.INT, 1, _NO_POOL),
        _idle("use_context_stream", Kind.BOOL, True, "there is no GPU stream"),
        _idle("use_hctr_cache_implementation", Kind.BOOL, True, "there is one cache"),
        _idle("enable_pagelock", Kind.BOOL, False, "nothing is copied to a GPU"),
        _idle("fuse_embedding_table", Kind.BOOL, True, "tables keep their names and indices; a lookup is cheap"),
    ),
    VOLATILE: (
        _mapped("type", Kind.STRING, "disabled"),
        _mapped("address", Kind.STRING, "127.0.0.1:7000"),
        _mapped("user_name", Kind.STRING, "default"),
        _mapped("password", Kind.STRING, ""),
        _mapped("num_partitions", Kind.INT, None),
        _mapped("num_node_connections", Kind.INT, 5),
        _mapped("max_batch_size", Kind.INT, 65536),
        _mapped("enable_tls", Kind.BOOL, False),
        _mapped("tls_ca_certificate", Kind.STRING, "cacertbundle.crt"),
        _mapped("tls_client_certificate", Kind.STRING, "client_cert.pem"),
        _mapped("tls_client_key", Kind.STRING, "client_key.pem"),
        _mapped("tls_server_name_identification", Kind.STRING, "redis.localhost"),
        _mapped("overflow_margin", Kind.INT, 2**64 - 1),
        _mapped("overflow_policy", Kind.STRING, "evict_random"),
        _mapped("overflow_resolution_target", Kind.FLOAT, 0.8),
        _mapped("initial_cache_rate", Kind.FLOAT, 1.0),
        _mapped("cache_missed_embeddings", Kind.BOOL, False),
        _refused("update_filters", Kind.STRINGS, ["^hps_.+$"], _FILTERS, [".+"], [".*"]),
        _refused("initialize_after_startup", Kind.BOOL, True, _NEVER_READ, True),
        _idle("allocation_rate", Kind.INT, 256 << 20, "memory_bytes bounds the hash map; it grows by huge pages"),
        _refused("shared_memory_size", Kind.INT, 16 << 30, f"{_SHARED_MEMORY}; memory_bytes bounds ours"),
        _refused("shared_memory_name", Kind.STRING, "hctr_mp_hash_map_database", _SHARED_MEMORY),
        _refused("shared_memory_auto_remove", Kind.BOOL, True, _SHARED_MEMORY, True),
        _refused("refresh_time_after_fetch", Kind.BOOL, False, f"{_OLDER}; access times are always refreshed"),
        _refused("algorithm", Kind.STRING, "phm", _OLDER),
        _refused("max_get_batch_size", Kind.INT, 65536, f"{_OLDER}; max_batch_size is its name now"),
        _refused("max_set_batch_size", Kind.INT, 65536, f"{_OLDER}; max_batch_size is its name now"),
    ),
    PERSISTENT: (
        _mapped("type", Kind.STRING, "disabled"),
        _mapped(
            "path", Kind.STRING, "/tmp/rocksdb", note="a new store is made below it: HPS' own files cannot be read"
        ),
        _mapped("num_threads", Kind.INT, 16),
        _mapped("read_only", Kind.BOOL, False),
        _mapped("max_batch_size", Kind.INT, 65536),
        _refused("update_filters", Kind.STRINGS, ["^hps_.+$"], _FILTERS, [".+"], [".*"]),
        _refused("initialize_after_startup", Kind.BOOL, True, _NEVER_READ, True),
        _refused("max_get_batch_size", Kind.INT, 65536, f"{_OLDER}; max_batch_size is its name now"),
        _refused("max_set_batch_size", Kind.INT, 65536, f"{_OLDER}; max_batch_size is its name now"),
    ),
    UPDATES: (
        _mapped("type", Kind.STRING, "null"),
        _mapped("brokers", Kind.STRING, "127.0.0.1:9092", "address"),
        _mapped("metadata_refresh_interval_ms", Kind.INT, 30_000),
        _mapped(
            "receive_buffer_size", Kind.INT, 256 << 10, note="the largest message; ours have at most 1,000,000 bytes"
        ),
        _mapped("poll_timeout_ms", Kind.FLOAT, 500.0),
        _mapped("max_batch_size", Kind.INT, 8192),
        _mapped("failure_backoff_ms", Kind.FLOAT, 50.0),
        _mapped(
            "max_commit_interval", Kind.INT, 32, note="of batches, of up to max_batch_size keys; HPS counts messages"
        ),
        _refused("max_receive_buffer_size", Kind.INT, 2048, f"{_OLDER}; receive_buffer_size is its name now"),
    ),
}
"""By the object of the JSON that they stand in."""

VOLATILE_TYPES = {
    "disabled": ("disabled", "disable", "none"),
    "hash_map": ("hash_map", "hashmap", "hash", "map"),
    "parallel_hash_map": ("parallel_hash_map", "parallel_hashmap", "parallel_hash", "parallel_map"),
    "multi_process_hash_map": (
        "multi_process_hash_map",
        "multi_process_hashmap",
        "multi_process_hash",
        "multi_process_map",
    ),
    "redis_cluster": ("redis_cluster", "redis"),
}
PERSISTENT_TYPES = {"disabled": ("disabled", "disable", "none"), "rocks_db": ("rocks_db", "rocksdb", "rocks")}
UPDATE_TYPES = {"null": ("null", "none"), "kafka_message_queue": ("kafka_message_queue", "kafka_mq", "kafka")}
OVERFLOW_POLICIES = {
    "evict_random": ("evict_random", "random"),
    "evict_least_used": ("evict_least_used", "least_used"),
    "evict_oldest": ("evict_oldest", "oldest"),
}
CACHE_TYPES = {name: (name,) for name in ("dynamic", "static", "uvm", "stochastic")}
"""Names that HPS takes, by the one that its documentation has."""


def converted(value: Any, kind: Kind) -> Any:
    """`value` of the JSON as `kind`. Raises ValueError saying what it should be."""
    if kind.element is not kind:
        if not isinstance(value, list):
            raise ValueError(f"must be {kind}")
        return [converted(each, kind.element) for each in value]
    if isinstance(value, str) and kind is not Kind.STRING:
        try:
            value = json.loads(value.strip().lower())
        except (ValueError, RecursionError):
            raise ValueError(f"must be {kind}") from None
    if kind is Kind.FLOAT and isinstance(value, int) and not isinstance(value, bool):
        value = as_float(value)
    python = {Kind.BOOL: bool, Kind.INT: int, Kind.FLOAT: float, Kind.STRING: str}[kind]
    if not isinstance(value, python) or (kind is Kind.INT and isinstance(value, bool)):
        raise ValueError(f"must be {kind}")
    return value
