import contextlib
import itertools
import json
import resource
import shutil
import struct
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.options import RocksDbOptions
from hebe.embeddings.rocksdb import bulk_load as rocksdb_load
from hebe.embeddings.rocksdb import store as rocksdb_store
from hebe.embeddings.rocksdb.bulk_load import disk_bytes
from hebe.embeddings.rocksdb.directory import read_record, write_record
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreDamaged, StoreError
from hebe.spec import EmbeddingTableSpec
from tests.embeddings.stores.store_conformance import TABLES, StoreConformance, refuses_wrong_updates

SPECS = [EmbeddingTableSpec("users", 5000, 3), EmbeddingTableSpec("default", 7, 16)]


def rows_of(specs, seed=0):
    rng = np.random.default_rng(seed)
    return {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in specs}


def all_rows(store, table, count, dim):
    rows, found = np.zeros((count, dim), np.float32), np.zeros(count, np.bool_)
    assert store.query(table, np.arange(count), rows, found) == count
    return rows


def all_values(store, table, keys):
    rows, found = np.zeros((len(keys), 1), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query(table, keys, rows, found) == len(keys)
    return rows[:, 0].tolist()


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
    monkeypatch.setattr(rocksdb_load, "LOAD_FILE_BYTES", 20_000)  # several files a table
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
        "import os; import numpy as np; from hebe.embeddings.rocksdb.store import RocksDbStore as Store;"
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
    with pytest.raises(StoreError, match=f"{tmp_path}: cannot be written: it was opened to be read only"):
        store.insert("users", np.array([1]), np.zeros((1, 3), np.float32))
    store.close()


class TestOnlineUpdates:
    def test_a_loaded_store_takes_updates_and_keeps_them(self, tmp_path):
        tables = rows_of(SPECS)
        store = RocksDbStore.load(tmp_path, SPECS, tables, "first", read_only=False)
        keys = np.array([3, 5000, 3, -1])
        assert store.apply("users", keys, np.arange(12, dtype=np.float32).reshape(4, 3), ("m/users/0", 7))
        assert store.apply("users", np.array([4, 9999]), None, ("m/users/0", 9))
        assert store.size("users") == 5001
        store.close()
        store = RocksDbStore.load(tmp_path, SPECS, {}, "first", read_only=False)
        assert store.positions() == {"m/users/0": 9}
        assert store.size("users") == store.verify()["users"] == 5001
        rows, found = np.zeros((5, 3), np.float32), np.zeros(5, np.bool_)
        assert store.query("users", np.array([3, 4, 5, 5000, -1]), rows, found) == 4
        assert found.tolist() == [True, False, True, True, True]
        assert rows.tolist() == [[6, 7, 8], [0, 0, 0], tables["users"][5].tolist(), [3, 4, 5], [9, 10, 11]]
        store.close()
        other = rows_of(SPECS, seed=1)
        store = RocksDbStore.load(tmp_path, SPECS, other, "second", read_only=False)
        assert store.positions() == {}
        assert store.size("users") == 5000
        assert np.array_equal(all_rows(store, "users", 5000, 3), other["users"])
        store.close()

    def test_an_offset_is_applied_once(self, tmp_path):
        with contextlib.closing(RocksDbStore(tmp_path, {"users": 1})) as store:
            key = np.array([1])
            for offset, expected in ((5, True), (5, False), (4, False), (6, True)):
                row = np.full((1, 1), offset, np.float32)
                assert store.apply("users", key, row, ("log", offset)) is expected
            assert store.apply("users", key, np.full((1, 1), 60, np.float32), ("another log", 0))
            assert store.apply("users", np.array([2]), np.zeros((1, 1), np.float32))
            assert store.positions() == {"log": 6, "another log": 0}
            assert all_values(store, "users", key) == [60]

    def test_a_position_says_which_message_it_is_and_is_put_back_if_the_log_went_back(self, tmp_path):
        with contextlib.closing(RocksDbStore(tmp_path, {"users": 1})) as store:
            key = np.array([1])
            assert store.apply("users", key, np.full((1, 1), 9, np.float32), ("log", 9), mark="p/3")
            assert store.apply("users", key, None, ("another log", 2))
            assert not store.apply("users", key, np.full((1, 1), 4, np.float32), ("log", 4), mark="q/0")
            assert store.apply("users", key, np.full((1, 1), 5, np.float32), ("log", 5), mark="q/1", anew=True)
            assert (store.positions(), store.marks()) == (
                {"log": 5, "another log": 2},
                {"log": "q/1", "another log": ""},
            )
        with contextlib.closing(RocksDbStore(tmp_path, read_only=True)) as store:
            assert (store.positions()["log"], store.marks()["log"]) == (5, "q/1")
            assert all_values(store, "users", key) == [5]

    def test_positions_of_an_older_version_have_no_mark(self, tmp_path, monkeypatch):
        with monkeypatch.context() as older, contextlib.closing(RocksDbStore(tmp_path, {"users": 1})) as store:
            older.setattr(
                rocksdb_store,
                "position_note",
                lambda position: (b"position:" + position.log.encode(), struct.pack(">q", position.offset)),
            )
            assert store.apply("users", np.array([1]), None, ("log", 2), mark="p/3")
        with contextlib.closing(RocksDbStore(tmp_path)) as store:
            assert (store.positions(), store.marks()) == ({"log": 2}, {"log": ""})
            assert store.apply("users", np.array([1]), None, ("log", 3), mark="p/4")
            assert store.marks() == {"log": "p/4"}

    def test_a_position_alone(self, tmp_path):
        """A message may have nothing for a store, and its position is to be noted all the same."""
        with contextlib.closing(RocksDbStore(tmp_path, {"users": 1})) as store:
            assert store.apply("users", np.empty(0, np.int64), np.empty((0, 1), np.float32), ("log", 1))
            assert store.apply("users", np.array([77]), None, ("log", 2))
            assert store.positions() == {"log": 2}
        with contextlib.closing(RocksDbStore(tmp_path, read_only=True)) as store:
            assert store.positions() == {"log": 2}

    def test_rows_are_counted_right_around_the_loaded_ones(self, tmp_path):
        """Keys that a load has put there are not looked for; deleted ones are again."""
        rng = np.random.default_rng(3)
        specs = [EmbeddingTableSpec("users", 50, 3)]
        store = RocksDbStore.load(tmp_path, specs, rows_of(specs), "first", read_only=False)
        present = set(range(50))
        for _ in range(60):
            keys = rng.integers(-5, 70, 6)
            if rng.random() < 0.5:
                assert store.delete("users", keys) == len(present & set(keys.tolist()))
                present -= set(keys.tolist())
            else:
                store.insert("users", keys, np.zeros((6, 3), np.float32))
                present |= set(keys.tolist())
            assert store.size("users") == len(present)
        assert np.concatenate(list(store.dump_keys("users", 7))).tolist() == sorted(present)
        store.close()

    def test_keys_are_dumped_in_order_from_one_end_of_int64_to_the_other(self, tmp_path):
        keys = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])
        with contextlib.closing(RocksDbStore(tmp_path, {"users": 1})) as store:
            store.insert("users", keys[[3, 0, 6, 2, 5, 1, 4]], np.zeros((7, 1), np.float32))
            assert np.concatenate(list(store.dump_keys("users", 2))).tolist() == keys.tolist()

    def test_threads_read_while_one_writes(self, tmp_path):
        """Every row that is read was written as one, and none is missing meanwhile."""
        specs = [EmbeddingTableSpec("users", 4000, 3)]
        zeros = {"users": np.zeros((4000, 3), np.float32)}
        store = RocksDbStore.load(tmp_path, specs, zeros, "first", read_only=False, options=RocksDbOptions(3))
        stop, faults = threading.Event(), []

        def read(seed):
            rng = np.random.default_rng(seed)
            rows, found = np.zeros((3000, 3), np.float32), np.zeros(3000, np.bool_)
            while not stop.is_set():
                if (
                    store.query("users", rng.integers(0, 4000, 3000), rows, found) != 3000
                    or (rows != rows[:, :1]).any()
                ):
                    faults.append(rows.copy())

        readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for reader in readers:
            reader.start()
        for stamp in range(1, 30):
            store.apply("users", np.arange(4000), np.full((4000, 3), stamp, np.float32), ("log", stamp))
        stop.set()
        for reader in readers:
            reader.join()
        assert not faults
        assert (all_rows(store, "users", 4000, 3) == 29).all()
        store.close()


class TestOptions:
    @pytest.mark.parametrize(
        "options", [RocksDbOptions(1), RocksDbOptions(4, 100), RocksDbOptions(block_cache_bytes=1 << 20)]
    )
    def test_rows_are_the_same_however_they_are_read(self, tmp_path, options):
        tables = rows_of(SPECS)
        with contextlib.closing(RocksDbStore.load(tmp_path, SPECS, tables, "first", options=options)) as store:
            keys = np.random.default_rng(0).integers(-3000, 8000, 6000)
            rows, found = np.zeros((6000, 3), np.float32), np.zeros(6000, np.bool_)
            known = (keys >= 0) & (keys < 5000)
            assert store.query("users", keys, rows, found) == known.sum()
            assert np.array_equal(found, known)
            assert np.array_equal(rows, np.where(known[:, None], tables["users"][keys % 5000], 0))


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
        "record", ["", "[]", "{}", '{"format": 3, "dims": {"a": "x"}}', '{"format": 3, "dims": 3, "check": 0}']
    )
    def test_a_corrupted_record(self, tmp_path, record):
        (tmp_path / "store.json").write_text(record)
        with pytest.raises(StoreError, match=r"store\.json is corrupted"):
            RocksDbStore(tmp_path, TABLES)

    def test_a_record_with_a_changed_bit_is_never_taken_for_another_identity(self, tmp_path):
        """It would be replaced by a load, with all updates that it has had."""
        RocksDbStore.load(tmp_path, SPECS, rows_of(SPECS), "first").close()
        whole = (tmp_path / "store.json").read_bytes()
        for place in range(len(whole)):
            (tmp_path / "store.json").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(StoreError):
                read_record(tmp_path)

    def test_another_format(self, tmp_path):
        (tmp_path / "store.json").write_text(json.dumps({"format": 1, "dims": {}, "identity": None}))
        with pytest.raises(StoreError, match="has format 1, this version reads 3: remove the directory"):
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
        with pytest.raises(StoreDamaged, match=f"{tmp_path}: cannot read table users: .*[Cc]orruption") as failure:
            all_rows(store, "users", 5000, 3)
        assert "users" in failure.value.client_message
        assert "/" not in failure.value.client_message
        with pytest.raises(StoreError, match="cannot read table users"):
            list(store.dump_keys("users", 1000))
        with pytest.raises(StoreError, match="cannot read table users"):
            store.verify()
        store.close()
        with pytest.raises(StoreError, match=r"cannot read table users: Corruption.*remove the directory"):
            RocksDbStore.load(tmp_path, SPECS, {}, "first", verify=True)
        RocksDbStore(tmp_path, read_only=True).close()  # nobody holds it

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
        with pytest.raises(StoreError, match=f"{tmp_path}: (is corrupted|cannot be opened: Corruption)"):
            all_rows(RocksDbStore(tmp_path, read_only=True), "users", 5000, 3)

    def test_rows_of_another_width(self, tmp_path):
        store = RocksDbStore(tmp_path, {"users": 3})
        with pytest.raises(StoreError, match="dim is 3"):
            store.insert("users", np.array([1]), np.zeros((1, 4), np.float32))
        store.insert("users", np.array([1]), np.ones((1, 3), np.float32))
        store.close()
        write_record(tmp_path, replace(read_record(tmp_path), dims={"users": 2}))
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
        code = f"import hebe.embeddings.rocksdb.store as r; r.RocksDbStore({str(tmp_path)!r}, read_only=True).close()"
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


def test_an_update_that_the_store_does_not_take_is_not_noted(tmp_path):
    store = RocksDbStore(tmp_path, {"users": 3})
    refuses_wrong_updates(store)
    store.close()
