"""Redis as level 2 of a server under load and updates: killed, paused, restarted empty, failed over.

Whatever happens to it, queries are answered: with the right rows, which level 3 has, or with default vectors that the
response tells of; and all is as before soon after Redis is back. No answer goes back for long behind an update that was
seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.directory.log import LogDirectory
from tests.integration.serving.served import HebeServe, eventually, is_ready
from tests.integration.updates.trainer import QUICK, Trainer
from tests.servers.redis_servers import RedisCluster, RedisServer

from .row_reader import (
    LATE_S,
    TABLE,
    Load,
    Reader,
    Versions,
    open_level_2,
    percentile_s,
    row_reader,
    serving,
    store_reader,
)

SPEC = row_reader()
PARTITIONS = 4
TIMEOUT_MS = 50.0
CATCH_UP_S = 10.0
"""For so long may an answer be from a level 3 that is behind level 2, which other work brings up to date."""
HEALED_S = 15.0
"""Within which all must be as before. A circuit breaker tries a tier again after at most 5 s."""


@dataclass
class Served:
    """A server and the store that it has in Redis, as another client sees it."""

    server: HebeServe
    level_2: RedisStore
    versions: Versions
    log: LogDirectory

    def load(self, **options: Any) -> Load:
        """Clients that read from it."""
        return Load([self.server], SPEC, self.versions, **options)

    @contextlib.contextmanager
    def updates(self, *, deletes: bool = False) -> Iterator[None]:
        """While they are sent; in the end all of them are seen."""
        with contextlib.closing(self.log.producer(QUICK)) as producer:
            with Trainer(
                producer, SPEC.name, self.versions, np.arange(SPEC.tables[0].rows), deletes=deletes
            ) as trainer:
                eventually(lambda: trainer.batches > 50, "there are updates")
                yield
        with Reader(self.server, SPEC, self.versions) as reader:
            eventually(reader.all_newest, "every row is right", HEALED_S)


@contextlib.contextmanager
def served(root: Path, address: str, kind: str, level_3: bool) -> Iterator[Served]:
    """A server with a cache of a few rows in a hundred, so that nearly every query asks the lower tiers."""
    store_reader(root / "models", SPEC)
    volatile = {"type": kind, "address": address, "num_partitions": PARTITIONS, "timeout_ms": TIMEOUT_MS}
    tiers: dict[str, dict[str, Any]] = {"cache": {"cache_fraction": 0.05}, "volatile_db": volatile}
    tiers["update_source"] = {"type": "log_directory", "address": str(root / "log"), "poll_timeout_ms": 50}
    if level_3:
        tiers["persistent_db"] = {"type": "rocks_db", "path": str(root / "rocksdb"), "timeout_ms": 500.0}
    with serving(root, tiers) as server:
        with contextlib.closing(open_level_2(root, SPEC, address.split(";"), PARTITIONS)) as store:
            yield Served(server, store, Versions(SPEC, CATCH_UP_S), LogDirectory(root / "log"))


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def over_rocksdb(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Redis, and level 3 below it."""
    with served(tmp_path_factory.mktemp("redis"), redis.address, "redis", level_3=True) as running:
        wait_until_asked(running, redis)
        yield running


def settled(load: Load) -> None:
    """All is well, and the answers so far are no matter."""
    load.wait_until_whole()
    load.check()
    load.answers.clear()


def check_level_3_answered(load: Load, since_s: float) -> None:
    """Level 3 has answered for level 2, in time; default vectors were few, and all of them told."""
    answers = load.since(since_s)
    whole = [answer for answer in answers if answer.told is not None and answer.told.all_found]
    assert len(whole) >= 0.9 * len(answers) >= 90, f"{len(whole)} of {len(answers)} answers had every row"
    assert percentile_s(answers, 99) < LATE_S


def is_filled(level_2: RedisStore) -> bool:
    """Whether nearly all rows are there; not while it still looks for the node that took over."""
    with contextlib.suppress(StoreUnavailable):
        return level_2.size(TABLE) > 0.9 * SPEC.tables[0].rows
    return False


def is_asked(redis: RedisServer, load: Load) -> bool:
    """Whether queries go to Redis, rather than a probe now and then."""
    with redis.client() as client:
        before = client.info("stats")["total_commands_processed"]
        load.wait_for(50)
        return bool(client.info("stats")["total_commands_processed"] - before > 50)


def wait_until_asked(running: Served, redis: RedisServer) -> None:
    """As it is once it is known to have all updates."""
    with running.load() as load:
        eventually(lambda: is_asked(redis, load), "level 2 is asked", HEALED_S)


def test_redis_is_killed_and_restarted_empty(over_rocksdb: Served, redis: RedisServer):
    level_2 = over_rocksdb.level_2
    eventually(
        lambda: level_2.size(TABLE) == SPEC.tables[0].rows, "it is filled, since level 3 has all updates", HEALED_S
    )
    with over_rocksdb.load() as load, over_rocksdb.updates():
        settled(load)
        killed_s = time.monotonic()
        redis.kill()
        load.wait_for(300)
        check_level_3_answered(load, killed_s)
        assert is_ready(over_rocksdb.server.http), "level 3 can answer"
        redis.restart()
        restarted_s = time.monotonic()
        eventually(lambda: level_2.size(TABLE) > 1000, "level 2 is filled again", HEALED_S)
        load.wait_until_whole(HEALED_S)
        check_level_3_answered(load, restarted_s)


def test_redis_is_paused_and_continued(over_rocksdb: Served, redis: RedisServer):
    with over_rocksdb.load() as load, over_rocksdb.updates():
        settled(load)
        paused_s = time.monotonic()
        redis.pause()
        try:
            load.wait_for(300)
            check_level_3_answered(load, paused_s)
            waited = [answer for answer in load.since(paused_s) if answer.took_s > TIMEOUT_MS / 1e3]
            assert waited, "the first have waited for Redis until their time was over"
        finally:
            redis.resume()
        eventually(lambda: is_asked(redis, load), "level 2 is asked again", HEALED_S)
        load.wait_until_whole(HEALED_S)


def test_redis_alone_is_paused_and_continued(tmp_path: Path):
    """Without level 3 a stall makes default vectors, and the response tells how many, and a request may refuse them."""
    with (
        RedisServer() as redis,
        served(tmp_path, redis.address, "redis", level_3=False) as running,
        running.load() as load,
        Reader(running.server, SPEC, running.versions) as reader,
        running.updates(),
    ):
        settled(load)
        redis.pause()
        try:
            paused_s = time.monotonic()
            load.wait_for(300, lambda answer: answer.told is not None and answer.told.defaulted > 0)
            eventually(lambda: not is_ready(running.server.http), "it tells that it cannot answer", HEALED_S)
            keys = np.random.default_rng(0).integers(0, SPEC.tables[0].rows, 400)
            with pytest.raises(InferenceServerException, match="max_defaulted_fraction") as refusal:
                reader.read(keys, max_defaulted_fraction=0.1)
            assert refusal.value.status() == "StatusCode.UNAVAILABLE"
            assert percentile_s(load.since(paused_s), 99) < LATE_S
        finally:
            redis.resume()
        load.wait_until_whole(HEALED_S)
        eventually(lambda: is_ready(running.server.http), "ready again", HEALED_S)


def test_what_was_waited_for_a_redis_that_stood_still_keeps_no_query_out_afterwards(tmp_path: Path):
    """A query takes some milliseconds; that some have waited 600 ms for Redis says nothing of those that follow."""
    store_reader(tmp_path / "models", SPEC)
    keys = np.random.default_rng(0).integers(0, SPEC.tables[0].rows, (24, 400))
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "timeout_ms": 600.0}
        tiers = {"cache": {"cache_fraction": 0.05}, "volatile_db": volatile}
        with (
            serving(tmp_path, tiers, "--sla-ms", "200") as server,
            Reader(server, SPEC, Versions(SPEC)) as reader,
        ):
            redis.pause()
            try:
                told = [reader.read(own, timeout_us=5_000_000)[1] for own in keys[:4]]
                assert all(each.defaulted for each in told)
            finally:
                redis.resume()
            eventually(lambda: is_ready(server.http), "ready again", HEALED_S)
            answers = [reader.answer(own) for own in keys[4:]]
            assert [answer.status for answer in answers] == [""] * len(answers), "none is refused"


def test_redis_alone_is_killed_and_restarted_empty(tmp_path: Path):
    """Without level 3 it is filled anew, with all updates, before it answers again; until then, default vectors."""
    with (
        RedisServer() as redis,
        served(tmp_path, redis.address, "redis", level_3=False) as running,
        running.load() as load,
    ):
        settled(load)
        with running.updates(deletes=True):
            redis.kill()
            load.wait_for(100, lambda answer: answer.told is not None and answer.told.defaulted > 0)
            redis.restart()
            load.wait_until_whole(HEALED_S, holds=lambda told: not told.defaulted)
            eventually(lambda: is_ready(running.server.http), "ready again", HEALED_S)


def test_a_node_of_the_cluster_is_killed_and_failed_over(tmp_path: Path):
    with (
        RedisCluster(replicas=1) as cluster,
        served(tmp_path, ";".join(cluster.addresses), "redis_cluster", level_3=True) as running,
    ):
        victim = cluster.masters[0]
        wait_until_asked(running, victim)
        with running.load() as load, running.updates():
            settled(load)
            killed_s = time.monotonic()
            victim.kill()
            load.wait_for(200)
            cluster.wait_until_whole()
            load.wait_until_whole(HEALED_S)
            check_level_3_answered(load, killed_s)
            eventually(lambda: is_filled(running.level_2), "level 2 is filled", HEALED_S)
