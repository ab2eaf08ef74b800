"""Updates over Redis Streams: what every update log does, on a real server, and what becomes of it when that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hebe.embeddings.updates.batching import UpdateCarrier
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.redis_streams import RedisCarrier, RedisStreamsLog, RedisStreamsOptions

from ...redis_servers import RedisCluster, RedisServer
from .fault_conformance import FaultConformance
from .update_conformance import UpdateLogConformance


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(unix_socket=True) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


class TestConformance(UpdateLogConformance, FaultConformance):
    @pytest.fixture
    def make_log(self, server: RedisServer) -> Iterator[Callable[[], UpdateLog]]:
        logs = []

        def make() -> RedisStreamsLog:
            server.client().flushall()
            logs.append(RedisStreamsLog(RedisStreamsOptions(server.address, num_partitions=4, lease_s=1.0)))
            return logs[-1]

        yield make
        for log in logs:
            log.close()

    @pytest.fixture
    def carrier_of(self) -> Callable[[UpdateLog], UpdateCarrier]:
        return lambda log: RedisCarrier(log.options)


class TestOnACluster(TestConformance):
    @pytest.fixture
    def make_log(self, cluster: RedisCluster) -> Iterator[Callable[[], UpdateLog]]:
        logs = []

        def make() -> RedisStreamsLog:
            cluster.flush()
            logs.append(
                RedisStreamsLog(RedisStreamsOptions(";".join(cluster.addresses), num_partitions=4, lease_s=1.0))
            )
            return logs[-1]

        yield make
        for log in logs:
            log.close()
