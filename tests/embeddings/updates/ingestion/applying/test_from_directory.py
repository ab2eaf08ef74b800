"""Ingestion from a real log, a directory: servers are killed, and meet what nobody can read."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.directory.log import DirectoryCarrier, LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import AT, QUICK, TIMEOUT_S, make_ingestion, rows_of, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS
from tests.embeddings.updates.conformance.update_conformance import (
    SMALL,
    USERS,
    push,
    rows_for,
    take_rows,
)

SERVER = """
    import sys, time
    from pathlib import Path
    from hebe.embeddings.rocksdb.store import RocksDbStore
    from hebe.embeddings.updates.contract import Topic
    from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
    from hebe.embeddings.updates.ingestion.options import IngestionOptions
    from hebe.embeddings.updates.directory.log import LogDirectory

    log, store = LogDirectory(Path(sys.argv[1])), RocksDbStore(Path(sys.argv[2]), {"users": 3})
    source = log.source("server", [Topic("m", "users")])
    options = IngestionOptions(max_batch_size=16, max_commit_interval=7)
    ingestion = UpdateIngestion(source, {"persistent": store}, "m", {"users": 3}, options)
    while True:
        print(ingestion.statistics().messages, flush=True)
        time.sleep(0.001)
"""


def test_killed_in_the_middle_of_updates_it_has_what_the_log_says(tmp_path):
    """A real process, killed with -9 again and again while a trainer sends; then rows and log agree."""
    log = LogDirectory(tmp_path / "log")
    rng, expected = np.random.default_rng(0), {}
    stop = threading.Event()

    def train():
        with log.producer(SMALL) as producer:
            for stamp in itertools.count():
                keys = rng.integers(0, 500, 20)
                if stamp % 7 == 6:
                    producer.delete("m", "users", keys)
                    for key in keys.tolist():
                        expected.pop(key, None)
                else:
                    rows = rows_for(keys, stamp)
                    producer.send("m", "users", keys, rows)
                    expected.update(zip(keys.tolist(), rows.tolist(), strict=True))
                if stop.wait(0.002):
                    return

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(3):
            server = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(SERVER), str(tmp_path / "log"), str(tmp_path / "store")],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
                text=True,
            )
            assert any(int(line) > 20 for line in server.stdout)
            server.send_signal(signal.SIGKILL)
            server.wait()
            server.stdout.close()
    finally:
        stop.set()
        trainer.join()
    store = RocksDbStore(tmp_path / "store", {"users": 3})
    source = log.source("server", [USERS])
    with UpdateIngestion(source, {"persistent": store}, "m", {"users": 3}, QUICK) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert ingestion.statistics().gaps == 0
    keys = np.array(sorted(expected))
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query("users", keys, rows, found) == len(keys) == store.size("users")
    assert rows.tolist() == [expected[key] for key in keys.tolist()]
    store.close()


def test_poison_in_a_real_log(tmp_path):
    log, store = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    carrier = DirectoryCarrier(log)
    carrier.append(AT, b"broken")
    carrier.close()
    push(log, range(10))
    with make_ingestion(log.source("g", [USERS]), store, quarantine=tmp_path / "aside") as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == set(range(10))
    assert kept_in(tmp_path / "aside") == [b"broken"]
    assert not any(log.reader_lag("g").values())


@pytest.mark.parametrize("first", [0, 10], ids=["all of it", "its end"])
def test_poison_is_met_once_however_often_a_server_starts(tmp_path, first):
    """Also where no row comes after it, by which a store would have noted a position."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    if first:
        push(log, range(first))
    with contextlib.closing(DirectoryCarrier(log)) as carrier:
        for payload in (b"broken", b"broken too"):
            carrier.append(AT, payload)

    def start():
        store = RocksDbStore(tmp_path / "store", DIMS)
        source = log.source("g", [USERS])
        with (
            contextlib.closing(store),
            UpdateIngestion(source, {"store": store}, "m", DIMS, QUICK, quarantine=tmp_path / "aside") as ingestion,
        ):
            assert ingestion.drain(TIMEOUT_S)
            statistics = ingestion.statistics()
            return statistics.poison, statistics.rows, store.size("users")

    before = 10 if first else 0
    assert start() == (2, before, before)
    assert start() == start() == (0, 0, before)
    for file in (tmp_path / "aside").iterdir():
        file.unlink()
    push(log, range(20, 30))
    assert start() == (0, 10, before + 10), "what comes after it is applied"
    assert kept_in(tmp_path / "aside") == []


def test_poison_of_a_log_that_was_made_anew_takes_no_ones_place(tmp_path):
    """Its offsets begin with 0 again."""
    for payload in (b"broken", b"broken too"):
        log = LogDirectory(tmp_path / "log")
        with contextlib.closing(DirectoryCarrier(log)) as carrier:
            carrier.append(AT, payload)
        with make_ingestion(log.source("g", [USERS]), DictStore(DIMS), quarantine=tmp_path / "aside") as ingestion:
            assert ingestion.drain(TIMEOUT_S)
        shutil.rmtree(tmp_path / "log")
    assert kept_in(tmp_path / "aside") == [b"broken", b"broken too"]


def kept_in(quarantine):
    """All bytes that were put aside."""
    return sorted(file.read_bytes() for file in quarantine.glob("*.message"))


def test_a_closed_log_fails_no_more_than_a_poll(tmp_path):
    log, store = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    source = log.source("g", [USERS])
    source.close()
    with make_ingestion(source, store) as ingestion:
        wait_until(lambda: ingestion.statistics().failures > 1)
    assert "closed" in ingestion.statistics().last_error
    with pytest.raises(StoreError, match="closed"):
        take_rows(source, 1)


def test_a_log_that_is_emptied_under_trainer_and_server_is_gone_on_with(tmp_path):
    log, store = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    aside, source = tmp_path / "aside", log.source("g", [USERS])
    with make_ingestion(source, store, quarantine=aside) as ingestion, log.producer(SMALL) as producer:
        keys = np.arange(100)
        producer.send("m", "users", keys, rows_for(keys, 1.0))
        producer.flush()
        assert ingestion.drain(TIMEOUT_S)
        shutil.rmtree(tmp_path / "log" / "topics")
        keys = np.arange(50, 80)
        producer.send("m", "users", keys, rows_for(keys, 2.0))
        producer.flush()
        expected = dict(zip(keys.tolist(), rows_for(keys, 2.0).tolist(), strict=True))
        wait_until(lambda: expected.items() <= rows_of(store).items())
        assert ingestion.drain(TIMEOUT_S)
        assert "went back" in ingestion.statistics().last_poison[0]
        assert not aside.exists(), "that is no message to put aside"
        assert not any(log.reader_lag("g").values())
