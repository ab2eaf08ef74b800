"""Updates over Redis Streams: what every update log does, on a real server, and what becomes of it when that fails."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hebe.embeddings.redis.layout import Command
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.producer import UpdateCarrier
from hebe.embeddings.updates.redis_streams.log import RedisCarrier, RedisStreamsLog, RedisStreamsOptions
from hebe.embeddings.updates.redis_streams.partition import PartitionCommands
from tests.embeddings.updates.conformance.beginning_conformance import AT, BeginningConformance, Trimmable
from tests.embeddings.updates.conformance.fault_conformance import FaultConformance
from tests.embeddings.updates.conformance.redis_stream_logs import LOG_OF_USERS, come, keys_in, quick
from tests.embeddings.updates.conformance.update_conformance import (
    SMALL,
    TIMEOUT_S,
    USERS,
    UpdateLogConformance,
    push,
    rows_for,
    tables_of,
    take_rows,
)
from tests.servers.redis_servers import RedisCluster, RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(unix_socket=True) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


class TestConformance(UpdateLogConformance, FaultConformance, BeginningConformance):
    @pytest.fixture
    def make_log(self, server: RedisServer) -> Iterator[Callable[[], UpdateLog]]:
        logs = []

        def make() -> RedisStreamsLog:
            server.client().flushall()
            logs.append(RedisStreamsLog(RedisStreamsOptions(server.address, num_partitions=4)))
            return logs[-1]

        yield make
        for log in logs:
            log.close()

    @pytest.fixture
    def carrier_of(self) -> Callable[[UpdateLog], UpdateCarrier]:
        return lambda log: RedisCarrier(log.options)

    @pytest.fixture
    def trimmable(self, make_log: Callable[[], RedisStreamsLog]) -> Trimmable:
        log = make_log()

        def trim(count: int) -> None:
            key = LOG_OF_USERS.encode()
            [length] = log._nodes.execute([PartitionCommands(AT).length()])
            assert isinstance(length, int)
            log._nodes.execute([Command(key, (b"XTRIM", key, b"MAXLEN", b"%d" % (length - count)))])

        return log, trim


class TestOnACluster(TestConformance):
    @pytest.fixture
    def make_log(self, cluster: RedisCluster) -> Iterator[Callable[[], UpdateLog]]:
        logs = []

        def make() -> RedisStreamsLog:
            cluster.flush()
            logs.append(RedisStreamsLog(RedisStreamsOptions(";".join(cluster.addresses), num_partitions=4)))
            return logs[-1]

        yield make
        for log in logs:
            log.close()


def test_a_report_expires_by_itself(own: RedisServer) -> None:
    log, impatient = quick(own), quick(own, report_expiry_s=1.0)
    push(log, [0])
    with contextlib.closing(log.source("g", [USERS])) as source:
        take_rows(source, 1, commit=True)
    assert log.readers() == impatient.readers() == ["g"]
    with pytest.raises(StoreError):
        log.forget_reader("g")
    end_s = time.monotonic() + TIMEOUT_S
    while impatient.readers():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert impatient.reader_lag("g") == {}
    assert log.reader_lag("g") == {AT: 0}
    log.close()
    impatient.close()


def test_a_redis_that_is_killed_and_comes_back_has_what_it_took(own: RedisServer) -> None:
    log = quick(own)
    before = push(log, range(20))
    source = log.source("g", [USERS])
    first = take_rows(source, 20)
    producer = log.producer(SMALL)
    own.kill()
    keys = np.arange(20, 60)
    sending = threading.Thread(target=producer.send, args=("m", "users", keys, rows_for(keys, 1.0)))
    sending.start()
    with pytest.raises(StoreUnavailable):
        source.poll(10, 0.1)
    own.start()
    sending.join(TIMEOUT_S)
    producer.flush(TIMEOUT_S)
    producer.close()
    found = first + come(source, lambda found: keys_in(found) >= 40)
    after = dict(zip(keys.tolist(), rows_for(keys, 1.0).tolist(), strict=True))
    assert tables_of(found) == {"users": before | after}
    source.close()
    log.close()
