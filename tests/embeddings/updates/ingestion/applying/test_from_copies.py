"""Ingestion from real logs that go back while no server runs: put back from a copy, or cut off by a loss of power."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from tests.embeddings.updates.conformance.ingestions import AT, TIMEOUT_S, make_ingestion
from tests.embeddings.updates.conformance.list_source import DIMS
from tests.embeddings.updates.conformance.update_conformance import USERS, push
from tests.servers.redis_servers import RedisServer

Copied = tuple[UpdateLog, Callable[[], Callable[[], None]]]
"""A log of one partition a topic, and a call that copies it; what that returns puts the copy back."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(unix_socket=True) as server:
        yield server


@pytest.fixture(params=["directory", "redis"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copied]:
    if request.param == "directory":
        log: UpdateLog = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))

        def copy() -> Callable[[], None]:
            shutil.copytree(tmp_path / "log", tmp_path / "copy")

            def put_back() -> None:
                shutil.rmtree(tmp_path / "log" / "topics")
                shutil.copytree(tmp_path / "copy" / "topics", tmp_path / "log" / "topics")

            return put_back

    else:
        server = request.getfixturevalue("server")
        client = server.client()
        client.flushall()
        log = RedisStreamsLog(RedisStreamsOptions(server.address, num_partitions=1))

        def copy() -> Callable[[], None]:
            content = {name: client.dump(name) for name in client.scan_iter("hebe:updates:*")}

            def put_back() -> None:
                client.flushall()
                for name, value in content.items():
                    client.restore(name, 0, value)

            return put_back

    yield log, copy
    log.close()


def ingested(log: UpdateLog, store: RocksDbStore, reader: str | None = "g") -> tuple[int, str]:
    """How many messages an ingestion applied until it had all, and what it could not apply."""
    with make_ingestion(log.source(reader, [USERS]), store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    statistics = ingestion.statistics()
    return statistics.messages, "; ".join(statistics.last_poison)


def rows_in(store: RocksDbStore, count: int) -> dict[int, list[float]]:
    rows, found = np.zeros((count, 3), np.float32), np.zeros(count, np.bool_)
    store.query("users", np.arange(count), rows, found)
    return {key: rows[key].tolist() for key in np.flatnonzero(found).tolist()}


@pytest.mark.parametrize("rows", [5, 250, 1000])
def test_none_of_what_came_since_is_lost(copied: Copied, tmp_path: Path, rows: int) -> None:
    """The log ends before the store's position; less than is read again beyond it; far beyond it."""
    log, copy = copied
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        push(log, range(100))
        ingested(log, store)
        put_back = copy()
        push(log, range(100, 350))
        assert ingested(log, store) == (50, "")
        put_back()
        expected = push(log, range(rows), 7.0)
        messages, told = ingested(log, store)
        assert "went back behind offset" in told
        assert messages == 20 + rows // 5
        assert {key: row for key, row in rows_in(store, rows).items() if key < rows} == expected
        assert store.size("users") == max(rows, 350)
        expected |= push(log, range(10), 8.0)
        assert ingested(log, store) == (2, "")
        assert rows_in(store, rows) == {key: row for key, row in expected.items() if key < rows}


def test_a_log_directory_that_was_cut_off_at_a_loss_of_power(tmp_path: Path) -> None:
    """RocksDB may be on the disk when the end of the log is not."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    [place] = [log.partition_path(AT)]
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        push(log, range(100))
        [segment] = place.glob("*.segment")
        size = segment.stat().st_size
        push(log, range(100, 200))
        ingested(log, store)
        os.truncate(segment, size + 11)
        expected = push(log, range(200, 700), 7.0)
        messages, told = ingested(log, store)
        assert "went back behind offset" in told
        assert messages == 120
        rows = rows_in(store, 700)
        assert {key: rows[key] for key in expected} == expected
        assert ingested(log, store, None) == (0, "")
