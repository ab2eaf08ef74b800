import json
import os
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import ConfigError, HierarchyConfig
from hebe.embeddings.hps.hugectr_files import SparseFiles
from hebe.embeddings.hps.tables import find_tables, version_of
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from tests.examples.sparse_models import write_sparse_model

KEYS = np.array([7, -3, 7, 100])


@pytest.fixture
def config(tmp_path: Path) -> HierarchyConfig:
    """A model of two tables over a persistent store."""
    for name, dim in (("a", 2), ("b", 3)):
        write_sparse_model(tmp_path / name, KEYS, np.arange(4 * dim).reshape(4, dim))
    return HierarchyConfig.from_mapping(
        {
            "persistent_db": {"type": "rocks_db", "path": str(tmp_path / "stores")},
            "tables": {
                "m": [
                    {"name": name, "dim": dim, "sparse_file": str(tmp_path / name)}
                    for name, dim in (("b", 3), ("a", 2))
                ]
            },
        }
    )


def of(config: HierarchyConfig, volatile: str, persistent: str = "rocks_db") -> HierarchyConfig:
    """The configuration with other tiers."""
    path = {"path": config.persistent_db.path} if persistent == "rocks_db" else {}
    data = {"volatile_db": {"type": volatile}, "persistent_db": {"type": persistent, **path}}
    other = HierarchyConfig.from_mapping(data)
    return HierarchyConfig(volatile_db=other.volatile_db, persistent_db=other.persistent_db, tables=config.tables)


def test_tables_are_found_in_order(config, tmp_path) -> None:
    found = find_tables(config, "m")
    assert [(spec.name, spec.rows, spec.dim) for spec in found.specs] == [("b", 3, 3), ("a", 3, 2)]
    assert found.duplicates == 2
    assert found.persistent_dir == tmp_path / "stores" / "m" / "1"
    with pytest.raises(ConfigError, match="model n has no tables in this configuration; models with tables: m"):
        find_tables(config, "n")


def test_files_are_read_once_for_their_identity(config, tmp_path, monkeypatch) -> None:
    told: list[tuple[int, int]] = []
    first = find_tables(config, "m").identity(lambda done, total: told.append((done, total)))
    assert told[-1] == (144, 144)
    record = tmp_path / "stores" / "m" / "1.files.json"
    assert set(json.loads(record.read_text())) == {"a", "b"}

    read: list[Path] = []
    checksum = SparseFiles.checksum
    monkeypatch.setattr(
        SparseFiles, "checksum", lambda self, advance: read.append(self.path) or checksum(self, advance)
    )
    assert find_tables(config, "m").identity() == first
    assert not read
    os.utime(tmp_path / "a" / "key", ns=(1, 1))
    assert find_tables(config, "m").identity() == first, "the content is the same"
    assert read == [tmp_path / "a"]
    kept = json.loads(record.read_text())
    for name in kept:  # of before times of change of anything, inodes and devices were kept
        for file in ("key", "emb_vector"):
            kept[name][file] = kept[name][file][:2]
    record.write_text(json.dumps(kept))
    for _ in range(2):
        assert find_tables(config, "m").identity() == first, "no store is loaded anew for that"
    assert len(read) == 3, "each file was read once more"
    for broken in ("{", "[]", '{"a": 3, "b": {"checksum": ""}}'):
        record.write_text(broken)
        assert find_tables(config, "m").identity() == first
    read.clear()
    (tmp_path / "b" / "emb_vector").write_bytes(np.ones(12, np.float32).tobytes())
    assert find_tables(config, "m").identity() != first
    assert read == [tmp_path / "b"]


@pytest.mark.parametrize("moved", [False, True])
def test_files_of_the_same_length_and_time_are_others(config, tmp_path, moved) -> None:
    """As out of archives and layers of containers, which give all files one time."""
    file, new = tmp_path / "b" / "emb_vector", tmp_path / "new"
    os.utime(file, ns=(0, 0))
    first = find_tables(config, "m").identity()
    target = new if moved else file
    target.write_bytes(np.full(file.stat().st_size // 4, 7, np.float32).tobytes())
    os.utime(target, ns=(0, 0))
    if moved:
        new.rename(file)
    assert find_tables(config, "m").identity() != first


def test_an_identity_is_for_what_outlives_the_process(config, tmp_path) -> None:
    assert find_tables(of(config, "parallel_hash_map", "disabled"), "m").identity() == ""
    assert not (tmp_path / "stores").exists()
    over_redis = find_tables(of(config, "redis", "disabled"), "m").identity()
    assert over_redis == find_tables(config, "m").identity()
    assert version_of("") == 1
    assert version_of(over_redis) != version_of("1" + over_redis)


def test_the_store_stands_for_files_that_are_gone(config, tmp_path) -> None:
    found = find_tables(config, "m")
    identity = found.identity()
    RocksDbStore.load(found.persistent_dir, found.specs, found.sources, identity).close()
    (tmp_path / "a").rename(tmp_path / "away")
    with pytest.raises(StoreError, match="a/key cannot be read"):
        find_tables(config, "m")  # half of them: somebody has moved the wrong one
    (tmp_path / "b").rename(tmp_path / "away" / "b")
    again = find_tables(config, "m")
    assert (again.specs, again.identity(), again.sources) == (found.specs, identity, {})
    other = HierarchyConfig.from_mapping(
        {
            "persistent_db": {"type": "rocks_db", "path": config.persistent_db.path},
            "tables": {"m": [{"name": "a", "dim": 2}]},
        }
    )
    with pytest.raises(StoreError, match=r"has tables \{'b': 3, 'a': 2\}, the configuration \{'a': 2\}"):
        find_tables(other, "m")
