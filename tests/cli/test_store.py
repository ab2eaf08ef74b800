import contextlib
import json

import numpy as np
import pytest

from hebe.cli.main import main
from hebe.embeddings.hierarchy_config import HierarchyConfig
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.spec import EmbeddingTableSpec

SPECS = [EmbeddingTableSpec("users", 3000, 4), EmbeddingTableSpec("items", 7, 1)]


@pytest.fixture
def store(tmp_path):
    """The directory of a store that has had an update."""
    rows = {table.name: np.ones((table.rows, table.dim), np.float32) for table in SPECS}
    with contextlib.closing(RocksDbStore.load(tmp_path / "store", SPECS, rows, "first", read_only=False)) as store:
        store.apply("users", np.array([5000]), np.zeros((1, 4), np.float32), ("model/users/0", 12))
    return tmp_path / "store"


def run(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured


def result_of(captured):
    return json.loads(captured.out.splitlines()[-1])


def damage(path):
    file = max((path / "rows").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[1000] ^= 0xFF
    file.unlink()
    file.write_bytes(data)


def test_load_fills_the_store_that_a_server_looks_for(tmp_path, capsys):
    models, stores = tmp_path / "models", tmp_path / "stores"
    run(capsys, "model", "new", "dlrm-rmc1", "--scale", "0.001", "--repository", models)
    loaded = run(capsys, "store", "load", models, "dlrm-rmc1", "--persistent-dir", stores)
    assert "has dlrm-rmc1 version 1: 10,000 rows in 10 tables" in loaded.out
    with contextlib.closing(RocksDbStore(stores / "dlrm-rmc1" / "1", read_only=False)) as store:
        store.insert("table0", np.array([5]), np.full((1, 32), 7, np.float32))
    before = files_of(stores)
    options = LoadOptions(hierarchy=HierarchyConfig.from_mapping({"persistent_db": ROCKS | {"path": str(stores)}}))
    model = LoadedModel.load(models, "dlrm-rmc1", None, options)
    row = np.empty((1, 32), np.float32)
    model.hierarchy.tiers.lookup.look_up("table0", np.array([5]), row)
    model.close()
    assert row[0, 0] == 7, "it was not loaded again"
    assert before - files_of(stores) == set()
    again = result_of(run(capsys, "store", "load", models, "dlrm-rmc1", "--persistent-dir", stores, "--json"))
    assert sum(table["rows"] for table in again["tables"]) == 10_000


def test_load_of_what_does_not_fit(tmp_path, capsys):
    models, stores = tmp_path / "models", tmp_path / "stores"
    run(capsys, "model", "new", "dlrm-rmc1", "--scale", "0.01", "--repository", models)
    load = ["store", "load", models, "dlrm-rmc1", "--persistent-dir", stores, "--table-memory"]
    assert "leaves no table" in run(capsys, *load, "1G", code=2).err
    assert result_of(run(capsys, *load, "8M", "--json"))["tables"]
    assert "no model" in run(capsys, "store", "load", models, "ghost", "--persistent-dir", stores, code=1).err


ROCKS = {"type": "rocks_db", "timeout_ms": 60_000}


def files_of(directory):
    return {file.name for file in directory.rglob("*.sst")}


def test_show(store, capsys):
    shown = run(capsys, "store", "show", store).out
    assert "users" in shown
    assert "3,001" in shown
    assert "model/users/0" in shown
    result = result_of(run(capsys, "store", "show", store, "--json"))
    assert result["tables"] == [{"name": "users", "dim": 4, "rows": 3001}, {"name": "items", "dim": 1, "rows": 7}]
    assert result["positions"] == {"model/users/0": 12}
    assert result["identity"] == "first"
    assert result["disk_bytes"] > 3000 * 16


def test_verify(store, capsys):
    assert "is whole: 3,008 rows in 2 tables" in run(capsys, "store", "verify", store).out
    assert result_of(run(capsys, "store", "verify", store, "--json"))["path"] == str(store)
    damage(store)
    failed = run(capsys, "store", "verify", store, "--json", code=1)
    assert "cannot read table users: Corruption" in failed.err
    assert str(store) in result_of(failed)["error"]


def test_checkpoint_and_restore(store, tmp_path, capsys):
    assert "3,008 rows" in run(capsys, "store", "checkpoint", store, tmp_path / "saved").out
    assert "there is a store already" in run(capsys, "store", "checkpoint", store, tmp_path / "saved", code=1).err
    run(capsys, "store", "checkpoint", store, tmp_path / "saved", "--replace")
    damage(store)
    assert "there is a store already" in run(capsys, "store", "restore", tmp_path / "saved", store, code=1).err
    result = result_of(run(capsys, "store", "restore", tmp_path / "saved", store, "--replace", "--json"))
    assert result["path"] == str(store)
    assert result["positions"] == {"model/users/0": 12}
    assert "is whole" in run(capsys, "store", "verify", store).out


def test_a_damaged_checkpoint_is_not_restored(store, tmp_path, capsys):
    damage(store)
    failed = run(capsys, "store", "restore", store, tmp_path / "new", code=1)
    assert "Corruption" in failed.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["show", "verify"])
def test_what_is_no_store_or_in_use(tmp_path, store, capsys, command):
    assert f"{tmp_path}/none: there is none" in run(capsys, "store", command, tmp_path / "none", code=1).err
    with contextlib.closing(RocksDbStore(store)):
        assert f"{store}: is in use" in run(capsys, "store", command, store, code=1).err
