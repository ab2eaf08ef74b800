from pathlib import Path

import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.config.toml_writer import hierarchy_toml

FULL = {
    "cache": {"cache_fraction": 0.05, "row_format": "int8"},
    "volatile_db": {"type": "redis", "address": "unix:/run/redis.sock", "num_partitions": 3, "password": 'a"b\\'},
    "persistent_db": {"type": "rocks_db", "path": "/var/lib/hebe", "num_threads": 3},
    "update_source": {"type": "log_directory", "address": "updates", "max_rows_per_s": 1e5},
    "models": {"dlrm.v2": {"default_value_for_each_table": {"item": 0.5}, "refresh_interval": 60, "init_ec": False}},
    "tables": {"wdl": [{"name": "wide", "dim": 1, "sparse_file": "/models/wide"}, {"name": "deep", "dim": 16}]},
}


BOUNDED = {"cache": {"cache_bytes": 5}, "models": {"a": {"cache_fraction": 0.5}, "b": {"cache_bytes": 7}}}


@pytest.mark.parametrize(
    "data",
    [
        FULL,
        BOUNDED,
        {},
        {"volatile_db": {"type": "parallel_hash_map", "num_partitions": 7}},
        {"update_source": {"type": "kafka_message_queue", "address": "a:1"}},
        {"update_source": {"type": "redis_streams", "address": "a:1"}},
    ],
)
def test_what_is_written_is_read_back(tmp_path: Path, data) -> None:
    config = HierarchyConfig.from_mapping(data)
    file = tmp_path / "hebe.toml"
    file.write_text(hierarchy_toml(config, ["From a test.", "", "Two\nlines"]))
    assert file.read_text().startswith("# From a test.\n#\n# Two\n# lines\n")
    assert HierarchyConfig.from_toml(file) == config


def test_a_default_of_this_machine_is_written_and_what_is_unlimited_is_not() -> None:
    text = hierarchy_toml(HierarchyConfig.from_mapping({"volatile_db": {"type": "parallel_hash_map"}}))
    assert "num_partitions = " in text
    assert "overflow_margin" not in text
    assert "persistent_db" not in text
