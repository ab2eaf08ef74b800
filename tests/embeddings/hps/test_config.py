import copy
import os
from pathlib import Path

import pytest

from hebe.embeddings.config.hierarchy_config import (
    ConfigError,
    HierarchyConfig,
    PersistentType,
    UpdateType,
    VolatileType,
)
from hebe.embeddings.config.toml_writer import hierarchy_toml
from hebe.embeddings.hps.config import HpsImport, read_hps_config
from hebe.embeddings.hps.parameters import Fate
from hebe.embeddings.options import UNLIMITED, OverflowPolicy, default_partitions
from tests.examples.hps_examples import documented, of_strings, write_json


def read(tmp_path: Path, data) -> HpsImport:
    return read_hps_config(write_json(tmp_path / "ps.json", data))


def fates(found: HpsImport) -> dict[str, Fate]:
    return {f"{decision.place}.{decision.parameter}".lstrip("."): decision.fate for decision in found.decisions}


def test_what_the_documentation_has(tmp_path: Path) -> None:
    found = read(tmp_path, documented())
    hierarchy = found.hierarchy
    cache = hierarchy.cache_of("wdl")
    assert cache.cache_fraction == 0.1
    assert cache.hit_rate_threshold == 0.8
    assert cache.default_value_for_each_table == {"table1": 0.0, "table2": 0.5}
    assert cache.cache_refresh_percentage_per_iteration == 0.2
    assert (cache.refresh_interval, cache.refresh_delay, cache.init_ec) == (10, 0, True)
    assert cache.thread_pool_size == min(16, os.cpu_count() or 1)
    volatile = hierarchy.volatile_db
    assert volatile.type is VolatileType.REDIS_CLUSTER
    assert volatile.address == "127.0.0.1:7003;127.0.0.1:7004;redis-3:6379"
    assert (volatile.password, volatile.num_partitions, volatile.num_node_connections) == ("a secret", 8, 5)
    assert volatile.overflow_margin == 10_000_000
    assert volatile.overflow_policy is OverflowPolicy.EVICT_OLDEST
    assert (volatile.overflow_resolution_target, volatile.initial_cache_rate) == (0.7, 0.5)
    assert not volatile.cache_missed_embeddings
    assert not volatile.tls_ca_certificate
    persistent = hierarchy.persistent_db
    assert (persistent.type, persistent.path, persistent.num_threads) == (PersistentType.ROCKS_DB, "/tmp/rocksdb", 16)
    updates = hierarchy.update_source
    assert (updates.type, updates.address) == (UpdateType.KAFKA, "127.0.0.1:9092;10.0.0.2:9092")
    tables = hierarchy.tables["wdl"]
    assert [(table.name, table.dim) for table in tables] == [("table1", 1), ("table2", 15)]
    assert tables[1].sparse_file == "/wdl_infer/model/wdl/1/wdl1_sparse_20000.model"

    told = fates(found)
    assert told["models[wdl].gpucacheper"] is Fate.MAPPED
    assert told["models[wdl].init_ec"] is Fate.DEFAULTED
    assert told["volatile_db.num_node_connections"] is Fate.DEFAULTED
    assert told["models[wdl].num_of_worker_buffer_in_pool"] is Fate.NOT_NEEDED
    assert told["volatile_db.shared_memory_size"] is Fate.NOT_NEEDED, "there is none with Redis"
    assert told["volatile_db.tls_client_key"] is Fate.NOT_NEEDED, "TLS is off"
    assert told["volatile_db.update_filters"] is Fate.NOT_NEEDED, "all updates are wanted anyway"
    assert {f"{d.place}.{d.parameter}" for d in found.not_honoured} == {
        "models[wdl].deployed_device_list",
        "models[wdl].dense_file",
        "models[wdl].network_file",
        "persistent_db.update_filters",
        "update_source.type",
    }
    assert all(decision.note for decision in found.not_honoured)
    assert "a secret" not in str(found.decisions)


def test_what_else_parameters_of_updates_mean_is_told(tmp_path: Path) -> None:
    data = documented()
    data["update_source"]["receive_buffer_size"] = 8 << 20
    found = read(tmp_path, data)
    assert found.hierarchy.update_source.receive_buffer_size == 8 << 20
    told = {decision.parameter: decision for decision in found.decisions if decision.place == "update_source"}
    assert told["receive_buffer_size"].note == "the largest message; ours have at most 1,000,000 bytes"
    assert "HPS counts messages" in told["max_commit_interval"].note
    data["update_source"]["receive_buffer_size"] = 100
    with pytest.raises(ConfigError, match="receive_buffer_size is 100: must be at least 1024"):
        read(tmp_path, data)


def test_every_parameter_that_is_given_is_told_once(tmp_path: Path) -> None:
    data = documented()
    given = {name for name in data if not isinstance(data[name], dict | list)}
    for place in ("volatile_db", "persistent_db", "update_source"):
        given |= {f"{place}.{name}" for name in data[place]}
    given |= {f"models[wdl].{name}" for name in data["models"][0]}
    found = read(tmp_path, data)
    names = [f"{decision.place}.{decision.parameter}".lstrip(".") for decision in found.decisions]
    assert len(set(names)) == len(names)
    defaulted = {name for name, fate in fates(found).items() if fate is Fate.DEFAULTED}
    assert set(names) - defaulted == given
    for decision in found.decisions:
        if decision.fate is Fate.DEFAULTED:
            assert decision.ours or decision.note, decision


def test_the_converted_configuration_is_written_and_read_back(tmp_path: Path) -> None:
    for data in (documented(), of_strings()):
        hierarchy = read(tmp_path, data).hierarchy
        (tmp_path / "hebe.toml").write_text(hierarchy_toml(hierarchy))
        assert HierarchyConfig.from_toml(tmp_path / "hebe.toml") == hierarchy


def test_strings_and_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, of_strings())
    cache = found.hierarchy.cache_of("movielens_hugectr")
    assert (cache.cache_fraction, cache.hit_rate_threshold) == (0.5, 0.9)
    assert [table.name for table in found.hierarchy.tables["movielens_hugectr"]] == ["sparse_embedding0"]
    assert found.hierarchy.volatile_db.type is VolatileType.HASH_MAP, "HPS' own default where the object is missing"
    assert found.hierarchy.volatile_db.num_partitions == default_partitions()
    assert found.hierarchy.volatile_db.overflow_margin == UNLIMITED
    assert not found.hierarchy.volatile_db.cache_missed_embeddings, "HPS' default, not ours"
    assert found.hierarchy.persistent_db.type is PersistentType.DISABLED
    assert found.hierarchy.update_source.type is UpdateType.NULL
    data = of_strings()
    for name in ("hit_rate_threshold", "gpucacheper", "gpucache"):
        del data["models"][0][name]
    cache = read(tmp_path, data).hierarchy.cache_of("movielens_hugectr")
    assert (cache.cache_fraction, cache.hit_rate_threshold) == (0.2, 0.9)


@pytest.mark.parametrize(
    ("change", "threshold", "fraction", "fate"),
    [
        ({"embedding_cache_type": "static"}, 1.0, 1.0, Fate.MAPPED),
        ({"use_static_table": True}, 1.0, 1.0, None),
        ({"embedding_cache_type": "uvm"}, 1.0, 0.1, Fate.MAPPED),
        ({"embedding_cache_type": "stochastic"}, 0.8, 0.1, Fate.NOT_HONOURED),
        ({"embedding_cache_type": "dynamic"}, 0.8, 0.1, Fate.MAPPED),
        ({"hit_rate_threshold": 1.1}, 1.0, 0.1, None),
    ],
)
def test_kinds_of_cache(tmp_path: Path, change, threshold, fraction, fate) -> None:
    data = documented()
    data["models"][0] |= change
    found = read(tmp_path, data)
    cache = found.hierarchy.cache_of("wdl")
    assert (cache.hit_rate_threshold, cache.cache_fraction) == (threshold, fraction)
    if fate is not None:
        assert fates(found)["models[wdl].embedding_cache_type"] is fate


def test_without_a_gpu_cache_lookups_wait(tmp_path: Path) -> None:
    data = documented()
    data["models"][0]["gpucache"] = False
    found = read(tmp_path, data)
    assert found.hierarchy.cache_of("wdl").hit_rate_threshold == 1.0
    assert fates(found)["models[wdl].gpucache"] is Fate.NOT_HONOURED
    (told,) = [d for d in found.decisions if d.parameter == "hit_rate_threshold"]
    assert (told.theirs, told.ours) == ("0.8", "hit_rate_threshold = 1")


@pytest.mark.parametrize(
    ("type_", "ours", "fate"),
    [
        ("hash_map", VolatileType.HASH_MAP, Fate.MAPPED),
        ("parallel_hash", VolatileType.HASH_MAP, Fate.MAPPED),
        ("multi_process_hash_map", VolatileType.HASH_MAP, Fate.NOT_HONOURED),
        ("redis", VolatileType.REDIS_CLUSTER, Fate.MAPPED),
        ("none", VolatileType.DISABLED, Fate.MAPPED),
    ],
)
def test_kinds_of_volatile_store(tmp_path: Path, type_, ours, fate) -> None:
    data = documented()
    data["volatile_db"]["type"] = type_
    found = read(tmp_path, data)
    assert found.hierarchy.volatile_db.type is ours
    assert fates(found)["volatile_db.type"] is fate
    shared = fates(found)["volatile_db.shared_memory_size"]
    assert shared is (Fate.NOT_HONOURED if type_.startswith("multi") else Fate.NOT_NEEDED)


def test_rows_are_somewhere(tmp_path: Path) -> None:
    data = of_strings() | {"volatile_db": {}}
    found = read(tmp_path, data)
    assert found.hierarchy.volatile_db.type is VolatileType.HASH_MAP, "a type that is missing is disabled in HPS"
    assert fates(found)["volatile_db.type"] is Fate.NOT_HONOURED


def test_a_volatile_store_alone_has_all_rows_as_in_hps(tmp_path: Path) -> None:
    data = documented() | {"persistent_db": {}}
    data["volatile_db"]["overflow_margin"] = 100
    found = read(tmp_path, data)
    volatile = found.hierarchy.volatile_db
    assert (volatile.overflow_margin, volatile.initial_cache_rate) == (UNLIMITED, 1.0)
    told = {decision.parameter: decision for decision in found.decisions if decision.place == "volatile_db"}
    assert told["overflow_margin"].fate is Fate.NOT_HONOURED
    assert "no persistent_db" in told["overflow_margin"].note
    assert (told["initial_cache_rate"].theirs, told["initial_cache_rate"].ours) == ("0.5", "initial_cache_rate = 1")
    assert told["initial_cache_rate"].note == "HPS puts all rows in where there is room for them, and so there is here"
    elsewhere = read_hps_config(write_json(tmp_path / "ps.json", data), persistent_dir=tmp_path / "stores").hierarchy
    assert (elsewhere.volatile_db.overflow_margin, elsewhere.volatile_db.initial_cache_rate) == (100, 0.5)
    assert elsewhere.persistent_db.path == str(tmp_path / "stores")


def test_an_initial_share_of_rows_means_all_where_nothing_bounds_them(tmp_path: Path) -> None:
    data = documented()
    del data["volatile_db"]["overflow_margin"]
    assert read(tmp_path, data).hierarchy.volatile_db.initial_cache_rate == 1.0
    data["volatile_db"]["initial_cache_rate"] = -1
    with pytest.raises(ConfigError, match="initial_cache_rate is -1"):
        read(tmp_path, data)


def test_tls(tmp_path: Path) -> None:
    data = documented()
    data["volatile_db"] |= {"enable_tls": "true", "tls_ca_certificate": "/etc/ca.pem"}
    del data["volatile_db"]["tls_client_key"]
    volatile = read(tmp_path, data).hierarchy.volatile_db
    assert volatile.enable_tls
    assert (volatile.tls_ca_certificate, volatile.tls_client_key) == ("/etc/ca.pem", "client_key.pem")


def test_keys_of_older_versions_are_known(tmp_path: Path) -> None:
    data = documented()
    data["volatile_db"] |= {"max_get_batch_size": 10, "algorithm": "stl", "refresh_time_after_fetch": True}
    data["update_source"]["max_receive_buffer_size"] = 2000
    told = fates(read(tmp_path, data))
    assert told["volatile_db.max_get_batch_size"] is Fate.NOT_HONOURED
    assert told["update_source.max_receive_buffer_size"] is Fate.NOT_HONOURED


def test_where_sparse_files_are(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "beside" / "a.model").mkdir(parents=True)
    (tmp_path / "here" / "b.model").mkdir(parents=True)
    data = documented()
    data["models"][0]["sparse_files"] = ["a.model", "b.model"]
    monkeypatch.chdir(tmp_path / "here")
    file = write_json(tmp_path / "beside" / "ps.json", data)
    found = [table.sparse_file for table in read_hps_config(file).hierarchy.tables["wdl"]]
    assert found == [str(tmp_path / "beside" / "a.model"), str(tmp_path / "here" / "b.model")]
    data["models"][0]["sparse_files"] = ["s3://bucket/a.model", "/wdl_infer/b.model"]
    write_json(file, data)
    moved = {"s3://bucket": "copied", "/wdl_infer/": "/models/"}
    found = [table.sparse_file for table in read_hps_config(file, moved).hierarchy.tables["wdl"]]
    assert found == [str(tmp_path / "here" / "copied" / "a.model"), "/models/b.model"]
    with pytest.raises(ConfigError, match=r"s3://bucket/a\.model: only directories of this machine"):
        read_hps_config(file)


def changed(path: str, value: object):
    """The documented configuration with one value replaced; None removes it."""
    data = copy.deepcopy(documented())
    *places, name = path.split(".")
    part = data
    for place in places:
        part = part["models"][0] if place == "wdl" else part[place]
    if value is None:
        del part[name]
    else:
        part[name] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("volatil_db", {}, r"ps.json: unknown key volatil_db: did you mean volatile_db\?"),
        (
            "wdl.hitrate_threshold",
            1,
            r"models\[wdl\]: unknown key hitrate_threshold: did you mean hit_rate_threshold\?",
        ),
        ("volatile_db.num_partition", 1, r"volatile_db: unknown key num_partition: did you mean num_partitions\?"),
        ("persistent_db.xyzzy", 1, r"persistent_db: unknown key xyzzy; there are type, path"),
        ("supportlonglong", None, r"ps.json: supportlonglong is missing"),
        ("models", None, r"models is missing"),
        ("models", [], r"models is missing"),
        ("models", [3], r"models\[0\] is 3: must be an object"),
        ("volatile_db", [], r"volatile_db is \[\]: must be an object"),
        ("wdl.model", None, r"models\[0\]: model is missing"),
        ("wdl.model", "a/b", r"models\[a/b\]: model name 'a/b'"),
        ("wdl.sparse_files", None, r"sparse_files is missing"),
        ("wdl.sparse_files", ["x" * 5000, "y"], r"sparse_files has 'x+\.\.\.: File name too long$"),
        ("wdl.sparse_files", [], r"embedding_vecsize_per_table has 2 values for 0 sparse_files"),
        ("wdl.sparse_files", "a", r'sparse_files is "a": must be a list of strings'),
        ("wdl.embedding_vecsize_per_table", [1], r"embedding_vecsize_per_table has 1 values for 2 sparse_files"),
        ("wdl.embedding_vecsize_per_table", [1, 0], r"models\[wdl\]: table table2: dim is 0"),
        ("wdl.embedding_table_names", ["a", "a"], r"has a name twice"),
        ("wdl.embedding_table_names", ["a", "b c"], r"table name 'b c'"),
        ("wdl.gpucache", "maybe", r'gpucache is "maybe": must be true or false'),
        ("wdl.gpucacheper", 2, r"models\[wdl\]: cache_fraction is 2.0: must be above 0 and at most 1"),
        ("wdl.max_batch_size", [], r"max_batch_size is \[\]: must be a whole number"),
        ("wdl.embedding_cache_type", "lru", r"must be one of dynamic, static, uvm, stochastic"),
        ("volatile_db.type", "memcached", r"type is 'memcached': must be one of disabled, hash_map"),
        ("volatile_db.overflow_policy", "evict", r"must be one of evict_random"),
        ("volatile_db.num_partitions", -1, r"volatile_db: num_partitions is -1"),
        ("persistent_db.type", "redis", r"must be one of disabled, rocks_db"),
        ("persistent_db.num_threads", 0, r"persistent_db: num_threads is 0"),
        ("update_source.type", "rabbit", r"must be one of null, kafka_message_queue"),
        ("update_source.max_batch_size", 0, r"update_source: max_batch_size is 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, changed(path, value))


def test_two_models_of_one_name(tmp_path: Path) -> None:
    data = documented()
    data["models"].append(data["models"][0])
    with pytest.raises(ConfigError, match="model wdl is there twice"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"a": 1, "a": 2}', "is not JSON: key a is there twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", r"is \[\]: must be an object"),
        ("\xff", "is not JSON"),
    ],
)
def test_files_that_are_not_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ps.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        read_hps_config(tmp_path / "ps.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_hps_config(tmp_path / "none.json")
    (tmp_path / "large.json").write_text(" " * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        read_hps_config(tmp_path / "large.json")
