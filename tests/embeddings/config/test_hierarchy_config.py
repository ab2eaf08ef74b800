import dataclasses
from pathlib import Path

import pytest

from hebe.embeddings.config.hierarchy_config import (
    ConfigError,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    TableConfig,
    UpdateConfig,
    UpdateType,
    VolatileConfig,
    VolatileType,
    idle_keys,
)
from hebe.embeddings.options import OverflowPolicy
from hebe.kernels.lookup.row_format import RowFormat

FULL = """
[cache]
cache_fraction = 0.05
row_format = "int8"
hit_rate_threshold = 0.8
refresh_interval = 60
default_value_for_each_table = { item = 0.5, user = -1 }

[volatile_db]
type = "redis_cluster"
address = "10.0.0.1:7000;10.0.0.2:7000"
num_partitions = 40
overflow_margin = 1000
overflow_policy = "evict_oldest"

[persistent_db]
type = "rocks_db"
path = "/var/lib/hebe"

[update_source]
type = "kafka_message_queue"
address = "10.0.0.3:9092"

[models.dlrm]
hit_rate_threshold = 1

[[tables.wdl]]
name = "deep"
dim = 16
sparse_file = "/models/wdl0_sparse.model"

[[tables.wdl]]
name = "wide"
dim = 1
supportlonglong = false
"""


@pytest.mark.parametrize("cores", [1, 64])
def test_servers_of_any_cores_agree_on_how_a_redis_is_laid_out(monkeypatch, cores) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    partitions = {
        kind: HierarchyConfig.from_mapping({"volatile_db": {"type": kind}}).volatile_db.num_partitions
        for kind in ("redis", "redis_cluster", "parallel_hash_map")
    }
    assert partitions == {"redis": 16, "redis_cluster": 16, "parallel_hash_map": min(16, cores)}


def test_a_file_with_everything(tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(FULL)
    config = HierarchyConfig.from_toml(file)
    assert config.cache.row_format is RowFormat.INT8
    assert config.cache.lookup_options().default_values == {"item": 0.5, "user": -1.0}
    assert config.cache.refresh_options().refresh_interval == 60.0
    assert config.cache_of("dlrm").hit_rate_threshold == 1.0
    assert config.cache_of("dlrm").cache_fraction == 0.05, "the rest as in [cache]"
    assert config.cache_of("other").hit_rate_threshold == 0.8
    assert config.volatile_db.type is VolatileType.REDIS_CLUSTER
    assert config.volatile_db.options().overflow_policy is OverflowPolicy.EVICT_OLDEST
    assert config.persistent_db.type is PersistentType.ROCKS_DB
    assert config.update_source.type is UpdateType.KAFKA
    assert config.tables == {
        "wdl": (TableConfig("deep", 16, "/models/wdl0_sparse.model"), TableConfig("wide", 1, supportlonglong=False))
    }


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    assert HierarchyConfig.from_toml(tmp_path / "empty.toml") == HierarchyConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cach]", r"tiers.toml: unknown key cach: did you mean cache\?"),
        (
            "[cache]\nhitrate_threshold = 1",
            r"\[cache\]: unknown key hitrate_threshold: did you mean hit_rate_threshold\?",
        ),
        ("[cache]\nxyzzy = 1", r"unknown key xyzzy; there are cache_fraction"),
        ("[cache]\nhit_rate_threshold = 2", r"\[cache\] hit_rate_threshold is 2.0: must lie in"),
        ("[cache]\nhit_rate_threshold = true", r"hit_rate_threshold is True: must be a number"),
        ("[cache]\nhit_rate_threshold = nan", r"hit_rate_threshold is nan"),
        ("[cache]\ncache_fraction = 0", r"cache_fraction is 0.0: must be above 0 and at most 1"),
        ("[cache]\ncache_bytes = 1.5", r"cache_bytes is 1.5: must be a whole number"),
        ("[cache]\nrow_format = 'int4'", r"row_format is 'int4': must be one of fp32, fp16, int8"),
        ("[cache]\ndefault_value_for_each_table = [1]", r"numbers by table name"),
        ("[cache]\ndefault_value_for_each_table = {a = 'x'}", r"numbers by table name"),
        ("cache = 3", r"\[cache\] is int: must be a table"),
        ("models = 3", r"models is int"),
        ("[models.a]\ncach_fraction = 1", r"\[models.a\]: unknown key cach_fraction: did you mean cache_fraction\?"),
        ("[volatile_db]\ntype = 'memcached'", r"must be one of disabled, parallel_hash_map, redis, redis_cluster"),
        ("[volatile_db]\ntype = 'redis'\nnum_partitions = 0", r"num_partitions is 0"),
        ("[volatile_db]\ntype = 'redis'\npassword = 'a'\npassword_file = 'b'", r"keep one"),
        ("[persistent_db]\ntype = 'rocks_db'", r"path is missing"),
        ("[update_source]\ntype = 'log_directory'", r"address is missing"),
        (
            "[update_source]\naddress = 'a'",
            r"\[update_source\] has address but no type: must be one of null, log_directory, redis_streams, kafka",
        ),
        ("[volatile_db]\naddress = 'a:1'\ntimeout_ms = 1", r"\[volatile_db\] has address, timeout_ms but no type"),
        ("[persistent_db]\npath = 'a'", r"\[persistent_db\] has path but no type: must be one of disabled, rocks_db"),
        (
            "[volatile_db]\ntype = 'redis'\ntls_ca_certificate = 'a'",
            r"\[volatile_db\] tls_ca_certificate is given without enable_tls",
        ),
        (
            "[update_source]\ntype = 'redis_streams'\naddress = 'a:1'\nsecurity_file = 'b'",
            r"\[update_source\] security_file is given, which only kafka_message_queue reads, and type is redis",
        ),
        (
            "[update_source]\ntype = 'kafka_message_queue'\naddress = 'a:1'\npassword_file = 'b'",
            r"password_file is given, which only redis_streams reads.*goes into security_file",
        ),
        (
            "[update_source]\ntype = 'log_directory'\naddress = 'a'\npassword_file = 'b'",
            r"password_file is given, which only redis_streams reads, and type is log_directory$",
        ),
        (
            "[update_source]\ntype = 'kafka_message_queue'\naddress = 'a:1'\nenable_tls = true",
            r"enable_tls is given, which only redis_streams reads.*goes into security_file",
        ),
        (
            "[update_source]\ntype = 'redis_streams'\naddress = 'redis://a:1'\ntls_client_key = 'b'",
            r"\[update_source\] tls_client_key is given without enable_tls",
        ),
        (
            "[update_source]\ntype = 'redis_streams'\nbrokers = 'a:1'",
            r"\[update_source\] brokers are of kafka_message_queue, and type is redis_streams",
        ),
        (
            "[update_source]\ntype = 'kafka_message_queue'\naddress = 'a:1'\nbrokers = 'a:1'",
            r"\[update_source\] has both address and brokers",
        ),
        ("[update_source]\nbrokers = 'a:1'", r"brokers are of kafka_message_queue, and type is missing"),
        ("[cache]\ncache_fraction = 0.2\ncache_bytes = 5", r"\[cache\] has both cache_fraction and cache_bytes"),
        ("[models.a]\ncache_fraction = 0.2\ncache_bytes = 5", r"\[models.a\] has both cache_fraction and cache_bytes"),
        (
            "[persistent_db]\ntype = 'rocks_db'\npath = 'a'\nread_only = true\n"
            "[update_source]\ntype = 'log_directory'\naddress = 'b'",
            r"tiers.toml: \[persistent_db\] read_only contradicts \[update_source\]",
        ),
        (
            "[volatile_db]\ntype = 'parallel_hash_map'\ninitial_cache_rate = 0.5",
            r"tiers.toml: \[volatile_db\] initial_cache_rate is 0.5 without \[persistent_db\]: .* or add",
        ),
        (
            "[volatile_db]\ntype = 'parallel_hash_map'\noverflow_margin = 9",
            r"overflow_margin is 9 without \[persistent_db\].*default vectors: leave it out \(memory_bytes bounds",
        ),
        (
            "[volatile_db]\ntype = 'redis'\noverflow_margin = 9",
            r"overflow_margin is 9 without \[persistent_db\].*leave it out \(Redis' maxmemory bounds",
        ),
        (
            "[update_source]\ntype = 'log_directory'\naddress = 'a'\ngroup = '../b'",
            r"\[update_source\] group name '../b': use letters",
        ),
        (
            "[update_source]\ntype = 'log_directory'\naddress = 'a'\nmax_rows_per_s = -1",
            r"max_rows_per_s is -1.0: must be at least 0",
        ),
        ("tables = 3", r"tables: must be lists of tables"),
        ("[tables.a]\nname = 'x'", r"tables: must be lists of tables"),
        ("[[tables.a]]\nname = 'x'", r"\[\[tables.a\]\]: dim is missing"),
        ("[[tables.a]]\nname = 'x'\ndim = 0", r"\[\[tables.a\]\] table x: dim is 0"),
        ("[[tables.a]]\nname = '/x'\ndim = 1", r"table name '/x'"),
        ("[[tables.'a/b']]\nname = 'x'\ndim = 1", r"model name 'a/b'"),
        ("[[tables.a]]\nname = 'x'\ndim = 1\npath = 'y'", r"unknown key path"),
        ("[[tables.a]]\nname = 'x'\ndim = 1\n[[tables.a]]\nname = 'x'\ndim = 1", r"two tables of one name"),
        ("[cache", r"tiers.toml: "),
        (
            "[cache]\ndefault_value_for_each_table = {a = 1e39}",
            r"\[cache\] default value of table a is 1e\+39: must be",
        ),
        ("a = " + "[" * 100_000, r"tiers.toml: is nested too deeply$"),
        ("[cache]\ncache_bytes = " + "1" * 5000, r"tiers.toml: has a whole number that is too long"),
        ("[cache]\ncache_bytes = 0x" + "f" * 5000, r"cache_bytes is a whole number of thousands of digits: must be a "),
        ("[cache]\nrow_format = 0x" + "f" * 5000, r"row_format is a whole number of thousands of digits: must be one"),
        (f"[cache]\ncache_bytes = {2**63}", rf"\[cache\] cache_bytes is {2**63}: must be a whole number of 64 bits"),
        (
            "[cache]\nrefresh_delay = 1" + "0" * 400,
            r"\[cache\] refresh_delay is 10+\.\.\.: must be a number of at most",
        ),
        (
            "[cache]\ndefault_value_for_each_table = {a = 1" + "0" * 400 + "}",
            r"\[cache\] default_value_for_each_table: a is 10+\.\.\.: must be a number of at most 1.8e\+308",
        ),
        ("# " + "x" * (1 << 20), r"tiers.toml: is larger than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        HierarchyConfig.from_toml(file)


@pytest.mark.parametrize(
    ("section", "type_", "key", "value", "message"),
    [
        ("volatile_db", "redis", "memory_bytes", 9, "which only parallel_hash_map reads"),
        ("volatile_db", "parallel_hash_map", "timeout_ms", 20.0, "which only redis, redis_cluster read"),
        ("volatile_db", "parallel_hash_map", "tls_client_key", "a", "which only redis, redis_cluster read"),
        ("volatile_db", "disabled", "overflow_margin", 9, "which only parallel_hash_map, redis, redis_cluster read"),
        ("volatile_db", "disabled", "address", "a:1", "which only redis, redis_cluster read"),
        ("persistent_db", "disabled", "path", "a", "which only rocks_db reads"),
        ("update_source", "null", "address", "a", "which only log_directory, redis_streams, kafka_message_queue read"),
        ("update_source", "log_directory", "receive_buffer_size", 4096, "which only kafka_message_queue reads"),
        ("update_source", "redis_streams", "metadata_refresh_interval_ms", 9, "which only kafka_message_queue reads"),
    ],
)
def test_a_key_that_the_type_does_not_read_is_named_with_those_that_do(section, type_, key, value, message) -> None:
    needed = {"log_directory": {"address": "a"}, "redis_streams": {"address": "a:1"}}.get(type_, {})
    with pytest.raises(ConfigError, match=rf"\[{section}\] {key} is given, {message}, and type is {type_}$"):
        HierarchyConfig.from_mapping({section: {"type": type_, **needed, key: value}})


def test_a_key_that_is_not_read_is_refused_though_it_says_what_it_is_by_default() -> None:
    for volatile in ({"type": "parallel_hash_map", "enable_tls": False}, {"type": "disabled", "max_batch_size": 65536}):
        with pytest.raises(ConfigError, match=r"is given, which only redis, redis_cluster read"):
            HierarchyConfig.from_mapping({"volatile_db": volatile})


@pytest.mark.parametrize("part", [VolatileConfig, PersistentConfig, UpdateConfig])
def test_each_key_is_read_by_a_type_and_none_where_there_is_no_tier(part) -> None:
    keys = {each.name for each in dataclasses.fields(part)} - {"type"}
    assert set(idle_keys(part())) == keys, "nothing is read of a tier that is disabled"
    assert all(idle_keys(part()).values())


def test_what_is_disabled_may_say_so() -> None:
    config = HierarchyConfig.from_mapping(
        {"volatile_db": {"type": "disabled"}, "persistent_db": {}, "update_source": {"type": "null"}}
    )
    assert config == HierarchyConfig()


def test_brokers_are_the_address_of_kafka() -> None:
    config = HierarchyConfig.from_mapping({"update_source": {"type": "kafka_message_queue", "brokers": "a:1;b:2"}})
    assert config.update_source.address == "a:1;b:2"


def test_a_models_fraction_wins_over_the_bytes_of_all() -> None:
    models = {"a": {"cache_fraction": 0.5}, "b": {"cache_bytes": 7}, "c": {"hit_rate_threshold": 0.5}}
    config = HierarchyConfig.from_mapping({"cache": {"cache_bytes": 100}, "models": models})
    assert (config.cache_of("a").cache_fraction, config.cache_of("a").cache_bytes) == (0.5, None)
    assert [config.cache_of(name).cache_bytes for name in ("b", "c", "other")] == [7, 100, 100]


def test_a_default_value_is_for_a_table_of_the_model(caplog) -> None:
    defaults = {"default_value_for_each_table": {"users": 1, "itmes": 2}}
    config = HierarchyConfig.from_mapping({"models": {"dlrm": defaults}})
    said = r"\[models.dlrm\] default_value_for_each_table has table itmes.*mean items\?\); there are items, users$"
    with pytest.raises(ConfigError, match=said):
        config.check_tables("dlrm", ["items", "users"])
    config.check_tables("dlrm", ["users", "itmes"])
    config.check_tables("other", ["users"])
    with pytest.raises(ConfigError, match=r"has table users, and model dlrm has none of that name; there are none$"):
        config.check_tables("dlrm", [])
    assert not caplog.records


def test_a_default_value_of_all_models_may_be_for_a_table_of_another(caplog) -> None:
    config = HierarchyConfig.from_mapping(
        {
            "cache": {"default_value_for_each_table": {"users": 1, "itmes": 2}},
            "models": {"dlrm": {"init_ec": False}},  # which has those of all models
        }
    )
    for model in ("dlrm", "other"):
        config.check_tables(model, ["items", "users"])
        said = caplog.messages.pop()
        assert said.startswith(f"[cache] default_value_for_each_table has table itmes, and model {model} has none")
        assert said.endswith("(did you mean items?); there are items, users")
        caplog.clear()


def test_models_that_there_are_not_are_named() -> None:
    config = HierarchyConfig.from_mapping({"models": {"dlrm": {}, "bst": {"init_ec": False}, "din": {}}})
    assert config.models_beside(["dlrm", "bts"]) == [
        "[models.bst] is for a model that there is not (did you mean bts?); there are dlrm, bts",
        "[models.din] is for a model that there is not; there are dlrm, bts",
    ]
    assert config.models_beside(["dlrm", "bst", "din", "more"]) == []
    assert config.models_beside([])[0] == "[models.dlrm] is for a model that there is not; there are none"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        HierarchyConfig.from_toml(tmp_path / "none.toml")
    (tmp_path / "large.toml").write_text("#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        HierarchyConfig.from_toml(tmp_path / "large.toml")


def test_a_password_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    config = HierarchyConfig.from_mapping(
        {"volatile_db": {"type": "redis", "password_file": str(tmp_path / "password")}}
    )
    assert config.volatile_db.redis_access().password == "secret"
    config = HierarchyConfig.from_mapping({"volatile_db": {"type": "redis", "password_file": str(tmp_path / "none")}})
    with pytest.raises(ConfigError, match="password_file"):
        config.volatile_db.redis_access()
