import itertools
import json
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings import rocksdb_store
from hebe.embeddings.rocksdb_store import RocksDbStore, disk_bytes
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec

from .store_conformance import TABLES, StoreConformance

SPECS = [EmbeddingTableSpec("users", 5000, 3), EmbeddingTableSpec("default", 7, 16)]


def rows_of(specs, seed=0):
    rng = np.random.default_rng(seed)
    return {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in specs}


def all_rows(store, table, count, dim):
    rows, found = np.zeros((count, dim), np.float32), np.zeros(count, np.bool_)
    assert store.query(table, np.arange(count), rows, found) == count
    return rows


def damage(file):
    data = bytearray(file.read_bytes())
    third = len(data) // 3
    data[third : third + 64] = bytes(byte ^ 0xFF for byte in data[third : third + 64])
    file.write_bytes(data)


class TestRocksDbStore(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path):
        count = itertools.count()
        return lambda: RocksDbStore(tmp_path / str(next(count)), TABLES)


def test_rows_survive_reopening(tmp_path):
    path = tmp_path / "new" / "store"
    store = RocksDbStore(path, {"users": 3})
    store.insert("users", np.array([-5, 9]), np.arange(6, dtype=np.float32).reshape(2, 3))
    store.close()
    store = RocksDbStore(path, {"users": 3, "later": 1})  # a table is added
    rows, found = np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    assert store.query("users", np.array([9, -5]), rows, found) == 2
    assert rows.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert sorted(next(store.dump_keys("users", 5)).tolist()) == [-5, 9]
    assert store.size("later") == 0
    store.close()


def test_rows_survive_a_crash(tmp_path):
    store = RocksDbStore(tmp_path / "running", {"users": 3})
    store.insert("users", np.array([7]), np.ones((1, 3), np.float32))
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")  # what is on disk while it runs
    store.close()
    for how in ({"read_only": True}, {}):
        store = RocksDbStore(tmp_path / "crashed", **how)
        rows, found = np.zeros((1, 3), np.float32), np.zeros(1, np.bool_)
        assert store.query("users", np.array([7]), rows, found) == 1
        assert rows.tolist() == [[1, 1, 1]]
        store.close()


def test_load_writes_once_for_one_identity(tmp_path, monkeypatch):
    monkeypatch.setattr(rocksdb_store, "LOAD_FILE_BYTES", 20_000)  # several files a table
    tables, calls = rows_of(SPECS), []
    store = RocksDbStore.load(tmp_path, SPECS, tables, "first", lambda done, total: calls.append((done, total)))
    for table in SPECS:
        assert np.array_equal(all_rows(store, table.name, table.rows, table.dim), tables[table.name])
        assert store.size(table.name) == table.rows
    assert calls[-1] == (5000 * 12 + 7 * 64,) * 2
    again = RocksDbStore.load(tmp_path, SPECS, {}, "first", lambda *_: pytest.fail("loaded twice"))
    store.close()
    assert np.array_equal(all_rows(again, "users", 5000, 3), tables["users"])
    again.close()
    other = rows_of(SPECS, seed=1)
    store = RocksDbStore.load(tmp_path, SPECS, {name: iter([rows]) for name, rows in other.items()}, "second")
    assert np.array_equal(all_rows(store, "users", 5000, 3), other["users"])
    store.close()


def test_a_load_that_failed_is_done_again(tmp_path):
    tables = rows_of(SPECS)
    with pytest.raises(StoreError, match="table default is missing"):
        RocksDbStore.load(tmp_path, SPECS, {"users": tables["users"]}, "first")
    assert not tmp_path.exists(), "a load that fails leaves nothing"
    store = RocksDbStore.load(tmp_path, SPECS, tables, "first")
    assert np.array_equal(all_rows(store, "default", 7, 16), tables["default"])
    store.close()


def test_a_load_that_was_killed_is_done_again(tmp_path):
    tables = rows_of(SPECS)
    code = (
        "import os; import numpy as np; from hebe.embeddings.rocksdb_store import RocksDbStore as Store;"
        "from hebe.spec import EmbeddingTableSpec as Table;"
        f"Store.load({str(tmp_path)!r}, [Table('users', 9, 3)], {{'users': np.zeros((9, 3), 'f')}}, 'first',"
        "lambda *_: os._exit(9))"
    )
    run = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False)
    assert run.returncode == 9
    assert (tmp_path / "load.sst").exists()
    store = RocksDbStore.load(tmp_path, SPECS, tables, "first")
    assert np.array_equal(all_rows(store, "default", 7, 16), tables["default"])
    assert not (tmp_path / "load.sst").exists()
    store.close()


def test_a_read_only_store_refuses_writes(tmp_path):
    store = RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first")
    with pytest.raises(StoreError, match=f"{tmp_path}: cannot write table users"):
        store.insert("users", np.array([1]), np.zeros((1, 3), np.float32))
    store.close()


class TestWhatCanGoWrong:
    def test_no_store(self, tmp_path):
        with pytest.raises(StoreError, match=f"{tmp_path}: there is none"):
            RocksDbStore(tmp_path)
        with pytest.raises(StoreError, match="there is none"):
            RocksDbStore(tmp_path / "nowhere", read_only=True)

    def test_somebody_elses_directory(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(StoreError, match="is not empty and holds no store"):
            RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first")
        assert (tmp_path / "thesis.txt").exists()

    def test_a_path_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="file/store: cannot be"):
            RocksDbStore(tmp_path / "file" / "store", TABLES)
        with pytest.raises(StoreError, match="/proc/store: cannot be opened"):  # not even root may
            RocksDbStore(Path("/proc/store"), TABLES)

    @pytest.mark.parametrize(
        "record", ["", "[]", "{}", '{"format": 1, "dims": {"a": "x"}}', '{"format": 1, "dims": 3, "identity": ""}']
    )
    def test_a_corrupted_record(self, tmp_path, record):
        (tmp_path / "store.json").write_text(record)
        with pytest.raises(StoreError, match=r"store\.json is corrupted"):
            RocksDbStore(tmp_path, TABLES)

    def test_another_format(self, tmp_path):
        (tmp_path / "store.json").write_text(json.dumps({"format": 2, "dims": {}, "identity": None}))
        with pytest.raises(StoreError, match="has format 2, this version reads 1"):
            RocksDbStore(tmp_path, TABLES)

    def test_another_dim(self, tmp_path):
        RocksDbStore(tmp_path, {"users": 3}).close()
        with pytest.raises(StoreError, match="table users has embedding dim 3, not 4"):
            RocksDbStore(tmp_path, {"users": 4})

    def test_corrupted_rows(self, tmp_path):
        RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first").close()
        largest = max((tmp_path / "rows").glob("*.sst"), key=lambda file: file.stat().st_size)
        damage(largest)
        store = RocksDbStore.load(tmp_path, SPECS, {}, "first")
        with pytest.raises(StoreError, match=f"{tmp_path}: cannot read table users: .*[Cc]orruption") as failure:
            all_rows(store, "users", 5000, 3)
        assert "users" in failure.value.client_message
        assert "/" not in failure.value.client_message
        with pytest.raises(StoreError, match="cannot read table users"):
            store.size("users")
        store.close()

    def test_corrupted_index(self, tmp_path):
        RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first").close()
        damage(min((tmp_path / "rows").glob("*.sst"), key=lambda file: file.stat().st_size))
        with pytest.raises(StoreError, match=f"{tmp_path}: cannot be opened: .*remove the directory"):
            RocksDbStore.load(tmp_path, SPECS, {}, "first")

    @pytest.mark.parametrize("name", ["CURRENT", "MANIFEST", "sst"])
    def test_missing_files(self, tmp_path, name):
        RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first").close()
        for file in (tmp_path / "rows").iterdir():
            if name in file.name:
                file.unlink()
        with pytest.raises(StoreError, match=f"{tmp_path}: c"):
            all_rows(RocksDbStore(tmp_path, read_only=True), "users", 5000, 3)

    def test_rows_of_another_width(self, tmp_path):
        store = RocksDbStore(tmp_path, {"users": 3})
        with pytest.raises(StoreError, match="dim is 3"):
            store.insert("users", np.array([1]), np.zeros((1, 4), np.float32))
        store.insert("users", np.array([1]), np.ones((1, 3), np.float32))
        store.close()
        record = json.loads((tmp_path / "store.json").read_text())
        (tmp_path / "store.json").write_text(json.dumps({**record, "dims": {"users": 2}}))
        store = RocksDbStore(tmp_path)
        rows, found = np.zeros((1, 2), np.float32), np.zeros(1, np.bool_)
        with pytest.raises(StoreError, match="rows that are not 2 floats"):
            store.query("users", np.array([1]), rows, found)
        store.close()

    def test_a_writer_has_it_alone(self, tmp_path):
        with_writer = RocksDbStore(tmp_path, {"users": 3})
        in_use = f"{tmp_path}: is in use by another process or model"
        for how in ({"dims": {"users": 3}}, {"read_only": True}):
            with pytest.raises(StoreError, match=in_use):
                RocksDbStore(tmp_path, **how)
        code = f"import hebe.embeddings.rocksdb_store as r; r.RocksDbStore({str(tmp_path)!r}, read_only=True).close()"
        run, environment = [sys.executable, "-c", code], {"PYTHONPATH": ":".join(sys.path)}
        other = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
        assert "is in use by another process or model" in other.stderr
        with_writer.close()
        subprocess.run(run, env=environment, check=True)

    def test_a_store_in_use_is_not_replaced(self, tmp_path):
        tables = rows_of(SPECS)
        reader = RocksDbStore.load(tmp_path, SPECS, tables, "first")
        with pytest.raises(StoreError, match="in use"):
            RocksDbStore.load(tmp_path, SPECS, tables, "second")
        assert np.array_equal(all_rows(reader, "users", 5000, 3), tables["users"])
        reader.close()

    def test_too_little_disk(self, tmp_path, monkeypatch):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 5000, 5000))
        with pytest.raises(StoreError, match=r"needs 1,190,080 bytes of disk, 5,000 are free"):
            RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first")

    @pytest.mark.parametrize(("rows", "dim"), [(40_000, 1), (40_000, 4), (40_000, 16), (20_000, 64), (2000, 700)])
    def test_the_disk_that_is_asked_for_suffices_and_is_not_far_more(self, tmp_path, rows, dim):
        specs = [EmbeddingTableSpec("users", rows, dim)]
        RocksDbStore.load(tmp_path, specs, rows_of(specs), "first").close()
        taken = sum(file.stat().st_size for file in tmp_path.rglob("*"))
        assert taken <= disk_bytes(specs) < 1.15 * taken + (2 << 20)

    def test_a_disk_that_fills_up_while_loading(self, tmp_path):
        tables = rows_of(SPECS)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
        try:
            with pytest.raises(StoreError, match=f"{tmp_path}: cannot load table users: .*IO error"):
                RocksDbStore.load(tmp_path, SPECS, tables, "first")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        store = RocksDbStore.load(tmp_path, SPECS, tables, "first")
        assert np.array_equal(all_rows(store, "users", 5000, 3), tables["users"])
        store.close()
