import contextlib
import json

import numpy as np
import pytest

from hebe.cli.main import main
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.rocksdb.store import RocksDbStore
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


@pytest.fixture
def din(tmp_path, capsys):
    """Arguments of `hebe store load` for a model of which a memory of 8 MiB leaves the two large tables to a store."""
    models, stores = tmp_path / "models", tmp_path / "stores"
    run(capsys, "model", "new", "din", "--scale", "0.05", "--repository", models)
    return ["store", "load", models, "din", "--persistent-dir", stores, "--json"]


def test_what_was_loaded_suits_a_server_with_a_bound_of_its_memory(tmp_path, din, capsys):
    """Rows that are there stay, with their updates."""
    loaded = result_of(run(capsys, *din))
    assert {table["name"] for table in loaded["tables"]} == {"user", "item", "category"}
    with contextlib.closing(RocksDbStore(tmp_path / "stores/din/1")) as store:
        for table in ("user", "category"):
            store.apply(table, np.array([5]), np.full((1, 32), 7, np.float32), (table, 12))
    options = LoadOptions(table_memory_bytes=8 << 20, persistent_dir=tmp_path / "stores")
    model = LoadedModel.load(tmp_path / "models", "din", None, options)
    row = np.empty((1, 32), np.float32)
    model.hierarchy.tiers.lookup.look_up("user", np.array([5]), row)
    wanted = set(model.hierarchy.tiers.lookup.dims)
    model.close()
    assert wanted == {"user", "item"}
    assert row[0, 0] == 7, "it was not loaded again"
    again = result_of(run(capsys, *din, "--table-memory", "8M"))
    assert again["tables"] == loaded["tables"]
    assert again["positions"] == {"user": 12, "category": 12}


def test_load_adds_what_a_store_lacks(tmp_path, din, capsys):
    some = result_of(run(capsys, *din, "--table-memory", "8M"))["tables"]
    assert {table["name"] for table in some} == {"user", "item"}
    with contextlib.closing(RocksDbStore(tmp_path / "stores/din/1")) as store:
        store.apply("user", np.array([5]), np.full((1, 32), 7, np.float32), ("user", 12))
    result = result_of(run(capsys, *din))
    assert [table for table in result["tables"] if table["name"] != "category"] == some
    assert (len(result["tables"]), result["positions"]) == (3, {"user": 12})
    verified = run(capsys, "store", "verify", tmp_path / "stores/din/1").out
    assert f"is whole: {sum(table['rows'] for table in result['tables']):,} rows in 3 tables" in verified


def test_load_of_a_damaged_row_leaves_no_store(tmp_path, din, capsys):
    table = tmp_path / "models/din/1/tables/category.safetensors"
    with table.open("r+b") as file:
        file.seek(5000)
        (byte,) = file.read(1)
        file.seek(5000)
        file.write(bytes([byte ^ 1]))
    assert f"{table}: checksum differs" in " ".join(run(capsys, *din, code=1).err.split())
    assert not (tmp_path / "stores/din/1").exists()


def test_load_replaces_the_store_of_another_model_only_if_told_to(tmp_path, din, capsys):
    run(capsys, *din, "--table-memory", "8M")
    with contextlib.closing(RocksDbStore(tmp_path / "stores/din/1")) as store:
        store.apply("user", np.array([5]), np.full((1, 32), 7, np.float32), ("user", 12))
    run(capsys, "model", "new", "din", "--scale", "0.04", "--repository", tmp_path / "others")
    wrong = ["store", "load", tmp_path / "others", *din[3:]]
    assert "replace it with all updates that it has had (`--replace`)" in run(capsys, *wrong, code=1).err
    assert result_of(run(capsys, *din))["positions"] == {"user": 12}
    assert result_of(run(capsys, *wrong, "--replace"))["positions"] == {}


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
    refused = run(capsys, "store", "checkpoint", store, tmp_path / "saved", code=1).err
    assert "there is a store already: give another path, or replace it (`--replace`)" in refused
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
        failed = run(capsys, "store", command, store, code=1).err
        assert f"{store}: is in use by another process or model: stop that first" in failed
    (store / "store.json").unlink()
    missing = f"{store}: store.json is missing beside rows"
    assert missing in run(capsys, "store", command, store, code=1).err
    (store / "store.lock").unlink()  # as in a copy
    assert missing in run(capsys, "store", command, store, code=1).err
    assert missing in run(capsys, "store", "restore", store, tmp_path / "new", code=1).err
