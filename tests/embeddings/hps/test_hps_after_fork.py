import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.config.toml_writer import hierarchy_toml
from hebe.embeddings.forked import UsedAfterFork
from hebe.embeddings.hps.hps import HPS
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.directory.log import LogDirectory
from tests.examples.forked_child import in_child
from tests.examples.sparse_models import write_sparse_model

DIM, ROWS = 4, 5000
KEYS = np.arange(ROWS)
VALUES = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)

TIERS = {
    "rocksdb": {"persistent_db": {"type": "rocks_db", "path": "stores"}},
    "hash map": {"volatile_db": {"type": "parallel_hash_map"}},
    "updates": {
        "persistent_db": {"type": "rocks_db", "path": "stores"},
        "update_source": {"type": "log_directory", "address": "log"},
    },
}
EXIT = """
import os, sys
from hebe.embeddings.hps.hps import HPS
hps = HPS("hebe.toml")
hps.lookup([1, 2], "m", "t", wait=True)
child = os.fork()
if not child:
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert hps.lookup([4999], "m", "t", wait=True)[0, 0] == 4999 * 4
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Makes a configuration of one table with these tiers, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_sparse_model(tmp_path / "t.model", KEYS, VALUES)
    table = {"name": "t", "dim": DIM, "sparse_file": "t.model"}
    return lambda tiers: HierarchyConfig.from_mapping({"tables": {"m": [table]}, **TIERS[tiers]})


@pytest.mark.parametrize("tiers", TIERS)
def test_a_forked_process_is_refused_and_harms_nothing(config, tiers) -> None:
    with HPS(config(tiers)) as hps:
        hps.lookup(KEYS[:100], "m", "t", wait=True)

        def use() -> object:
            try:
                hps.lookup(KEYS[4000:], "m", "t")
            except UsedAfterFork as error:
                hps.close()
                return error.opened_by
            return None

        assert in_child(use) == os.getpid()
        assert np.array_equal(hps.lookup(KEYS, "m", "t", wait=True), VALUES)


def test_the_error_comes_back_from_a_pool_of_processes() -> None:
    """An exception that cannot be unpickled has `multiprocessing.Pool` wait for ever."""
    error = pickle.loads(pickle.dumps(UsedAfterFork("opened elsewhere", 7)))
    assert (str(error), error.opened_by) == ("opened elsewhere", 7)


def test_updates_go_on_in_the_parent(config) -> None:
    with HPS(config("updates")) as hps:
        in_child(hps.close)
        with LogDirectory(Path("log")).producer() as trainer:
            trainer.send("m", "t", KEYS[:1], -np.ones((1, DIM), np.float32))
        assert hps.drain_updates(60.0)
        hps.refresh("m")
        assert hps.lookup(KEYS[:1], "m", "t", wait=True)[0, 0] == -1


def test_a_forked_process_may_open_it_anew(config) -> None:
    opened_from = config("rocksdb")
    with HPS(opened_from):

        def reopen() -> object:
            with HPS(opened_from) as own:
                return np.array_equal(own.lookup(KEYS, "m", "t", wait=True), VALUES)

        assert in_child(reopen)


def test_a_forked_process_is_not_to_write_with_the_threads_of_its_parent(config, tmp_path) -> None:
    with HPS(config("rocksdb")):

        def write() -> object:
            with pytest.raises(StoreError):
                RocksDbStore(tmp_path / "new", {"t": DIM})
            return True

        assert in_child(write)


def test_locks_end_with_the_parent(config) -> None:
    """A child that lives on, as a worker of a pre-forking server, does not hold the store."""
    hps = HPS(config("rocksdb"))
    child = os.fork()
    if not child:
        time.sleep(60.0)
        os._exit(0)
    try:
        hps.close()
        RocksDbStore(Path("stores/m/1")).close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_forked_process_ends_as_any_other(config, tmp_path) -> None:
    """Through the interpreter's end, with its status."""
    (tmp_path / "hebe.toml").write_text(hierarchy_toml(config("updates")))
    subprocess.run([sys.executable, "-c", EXIT], check=True, timeout=120)


def test_what_is_pickled_is_opened_again(config) -> None:
    with HPS(config("rocksdb")) as hps, pickle.loads(pickle.dumps(hps)) as again:
        assert np.array_equal(again.lookup(KEYS, "m", "t", wait=True), VALUES)
