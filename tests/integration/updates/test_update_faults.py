"""A server and a trainer that never stops, while the server is killed with -9 or the log goes away: over every kind of
log, nothing is lost and nothing is wrong in the end.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.kafka.log import KafkaLog, KafkaOptions
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer

USERS = Topic("m", "users")
DIM = 8
KEYS = 400
TIMEOUT_S = 90.0

SERVER = """
import sys, time
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.rocksdb.store import RocksDbStore
from tests.integration.updates.test_update_faults import DIM, USERS, log_of

store = RocksDbStore(sys.argv[2], {"users": DIM})
options = IngestionOptions(max_batch_size=16, max_commit_interval=50, poll_timeout_ms=50)
source = log_of(sys.argv[1]).source("server", [USERS])
ingestion = UpdateIngestion(source, {"persistent": store}, "m", {"users": DIM}, options)
while True:
    print(ingestion.statistics().messages, flush=True)
    time.sleep(0.02)
"""


def log_of(where: str) -> UpdateLog:
    """As `opening` would, but quick to find topics."""
    kind, _, address = where.partition(" ")
    if kind == "redis":
        return RedisStreamsLog(RedisStreamsOptions(address, num_partitions=4))
    if kind == "kafka":
        return KafkaLog(KafkaOptions(address, create_topics=False, metadata_refresh_interval_ms=200))
    return LogDirectory(Path(address))


@dataclass
class Broker:
    """How a log is reached, and how that which carries it goes away and comes back. A directory does neither."""

    where: str
    stop: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "redis":
        with RedisServer(options=["appendonly yes", "appendfsync always"]) as server:
            yield Broker(f"redis {server.address}", server.kill, server.start)
    elif request.param == "kafka":
        with KafkaBroker() as mock:
            yield Broker(f"kafka {mock.brokers}", mock.down, mock.up)
    else:
        yield Broker(f"directory {tmp_path / 'log'}", lambda: None, lambda: None)


class Trainer:
    """Sends rows and deletes in a thread until it is stopped; `expected` is what the table must be then."""

    def __init__(self, log: UpdateLog) -> None:
        self.expected: dict[int, list[float]] = {}
        self._log, self._stopped = log, threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        rng = np.random.default_rng(0)
        producer = self._log.producer(BatchingOptions(max_rows=10, linger_s=0.01, send_timeout_s=TIMEOUT_S))
        try:
            for stamp in itertools.count():
                keys = rng.choice(KEYS, 20, replace=False)
                if stamp % 7 == 6:
                    producer.delete("m", "users", keys)
                    for key in keys.tolist():
                        self.expected.pop(key, None)
                else:
                    rows = np.repeat(np.float32(stamp), 20 * DIM).reshape(20, DIM) + keys[:, None].astype(np.float32)
                    producer.send("m", "users", keys, rows)
                    self.expected.update(zip(keys.tolist(), rows.tolist(), strict=True))
                if self._stopped.wait(0.02):
                    break
            producer.flush(TIMEOUT_S)
        except BaseException as fault:
            self._fault = fault
        finally:
            producer.close()


class Server:
    """A process that applies the updates to a store of its own."""

    def __init__(self, where: str, store: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, where, str(store)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.messages = 0
        self.ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # not one in which it was killed
                self.messages = int(line)
        self.ended = True


@contextlib.contextmanager
def server_of(where: str, store: Path) -> Iterator[Server]:
    server = Server(where, store)
    try:
        yield server
    finally:
        server.kill()


def wait_until(done: Callable[[], object], *running: Server) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert not any(server.ended for server in running)
        assert time.monotonic() < end_s
        time.sleep(0.02)


def rows_of(path: Path) -> dict[int, list[float]]:
    keys, rows, found = np.arange(KEYS), np.zeros((KEYS, DIM), np.float32), np.zeros(KEYS, np.bool_)
    with contextlib.closing(RocksDbStore(path, {"users": DIM})) as store:
        store.query("users", keys, rows, found)
    return {key: rows[key].tolist() for key in keys[found].tolist()}


def is_applied(log: UpdateLog) -> bool:
    lag = log.reader_lag("server")
    return bool(lag) and not any(lag.values())


@pytest.mark.parametrize("broker", ["directory", "redis", "kafka"], indirect=True)
def test_a_server_that_is_killed_in_the_middle_goes_on_where_its_rows_are(broker: Broker, tmp_path: Path) -> None:
    log = log_of(broker.where)
    trainer = Trainer(log)
    try:
        for _ in range(2):
            with server_of(broker.where, tmp_path / "store") as server:
                wait_until(lambda server=server: server.messages > 20, server)
        with server_of(broker.where, tmp_path / "store") as server:
            wait_until(lambda: server.messages > 20, server)
            trainer.stop()
            wait_until(lambda: is_applied(log), server)
        assert rows_of(tmp_path / "store") == trainer.expected
    finally:
        trainer.stop()
        log.close()


@pytest.mark.parametrize("broker", ["redis", "kafka"], indirect=True)
def test_a_log_that_is_gone_for_a_while_is_gone_on_with(broker: Broker, tmp_path: Path) -> None:
    log = log_of(broker.where)
    trainer = Trainer(log)
    try:
        with server_of(broker.where, tmp_path / "store") as server:
            wait_until(lambda: server.messages > 20, server)
            for _ in range(2):
                broker.stop()
                before = server.messages
                time.sleep(0.5)
                broker.start()
                wait_until(lambda before=before: server.messages > before + 50, server)
            trainer.stop()
            wait_until(lambda: is_applied(log), server)
        assert rows_of(tmp_path / "store") == trainer.expected
    finally:
        trainer.stop()
        log.close()
