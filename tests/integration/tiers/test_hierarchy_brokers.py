"""Servers that share a volatile store in Redis, and follow one update log in another Redis: each of them fails."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from tests.integration.serving.served import HebeServe, eventually
from tests.integration.updates.trainer import QUICK, Trainer
from tests.servers.redis_servers import RedisServer

from .row_reader import (
    LATE_S,
    TABLE,
    Load,
    Reader,
    Versions,
    open_level_2,
    percentile_s,
    row_reader,
    rows_of,
    serving,
    store_reader,
)

SPEC = row_reader()
[TABLE_SPEC] = SPEC.tables
ROWS, DIM = TABLE_SPEC.rows, TABLE_SPEC.dim
PARTITIONS = 4
VISIBLE_S = 60.0
"""Within which all must be visible. Another server writes level 2 once the lease of a dead one is over."""
CATCH_UP_S = 20.0
"""For so long may a server answer from a level 3 that is behind what another one has put into level 2."""


class Fleet:
    """Two servers, each with a level 3 of its own, over one level 2; and the log that they follow."""

    def __init__(self, root: Path, broker: RedisServer, shared: RedisServer, opened: contextlib.ExitStack) -> None:
        self.broker, self.versions = broker, Versions(SPEC, catch_up_s=CATCH_UP_S)
        self.log = RedisStreamsLog(RedisStreamsOptions(broker.address, num_partitions=PARTITIONS))
        opened.callback(self.log.close)
        store_reader(root / "models", SPEC)
        tiers: dict[str, dict[str, Any]] = {
            "cache": {"cache_fraction": 0.1},
            "volatile_db": {
                "type": "redis",
                "address": shared.address,
                "num_partitions": PARTITIONS,
            },
            "update_source": {"type": "redis_streams", "address": broker.address, "poll_timeout_ms": 50},
        }
        self.servers = [
            opened.enter_context(
                serving(
                    root,
                    tiers | {"persistent_db": {"type": "rocks_db", "path": str(root / name)}},
                    name=name,
                    ready=False,
                )
            )
            for name in ("first", "second")
        ]
        for server in self.servers:
            server.wait_until_ready()
        self.level_2 = open_level_2(root, SPEC, shared.address, PARTITIONS)
        opened.callback(self.level_2.close)

    def load(self, *servers: HebeServe, **options: Any) -> Load:
        """Clients that read from these."""
        return Load(servers or self.servers, SPEC, self.versions, **options)

    def wait_until_level_2_is_newest(self, *, whole: bool = True) -> None:
        """Redis has every row as it was sent last, and none that was deleted; if not `whole`, some may be gone."""
        deadline_s = time.monotonic() + VISIBLE_S
        while wrong := self._wrong_in_level_2(whole=whole):
            assert time.monotonic() < deadline_s, f"level 2: {len(wrong)} rows are old, deleted or gone: {wrong[:5]}"
            time.sleep(0.5)

    def _wrong_in_level_2(self, *, whole: bool) -> list[str]:
        keys, versions = np.arange(ROWS), self.versions
        rows, found = np.zeros((ROWS, DIM), np.float32), np.zeros(ROWS, np.bool_)
        self.level_2.query(TABLE, keys, rows, found)
        newest = (rows == rows_of(keys, versions.sent, DIM)).all(1)
        deleted = versions.deleted
        return [
            f"key {key}: {rows[key] if found[key] else 'gone'}, "
            + ("deleted" if deleted[key] else f"sent {versions.sent[key]} times")
            for key in np.flatnonzero((found & (deleted | ~newest)) | (whole & ~found & ~deleted))
        ]

    def wait_until_newest(self, server: HebeServe) -> None:
        """A server answers every key with its newest row."""
        with Reader(server, SPEC, self.versions) as reader:
            eventually(reader.all_newest, "all that was sent is seen", VISIBLE_S)


def lags_of(server: HebeServe) -> list[float]:
    return [each.value for each in server.metrics().families["hebe_updates_lag_messages"].samples]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with RedisServer(options=["appendonly yes"]) as broker, RedisServer() as shared, contextlib.ExitStack() as opened:
        yield Fleet(tmp_path, broker, shared, opened)


def test_the_broker_is_restarted_and_then_a_server_dies(fleet: Fleet):
    """What a trainer sends meanwhile is in every tier soon after; the other server writes level 2 then."""
    versions = fleet.versions
    first, second = fleet.servers
    with fleet.log.producer(QUICK) as producer:
        with Trainer(producer, SPEC.name, versions, np.arange(ROWS)) as trainer, fleet.load() as load:
            eventually(lambda: (versions.sent > 0).sum() > ROWS / 2, "updates come", VISIBLE_S)
            fleet.broker.kill()
            sent = trainer.batches
            load.wait_for(200)
            eventually(lambda: trainer.batches > sent + 20, "the trainer goes on", VISIBLE_S)
            for server in fleet.servers:
                eventually(lambda server=server: not lags_of(server), "lag is not told any more", VISIBLE_S)
            fleet.broker.restart()
            load.wait_for(100)
        assert percentile_s(load.answers, 99) < LATE_S
        with fleet.load():
            fleet.wait_until_level_2_is_newest(whole=False)
            for server in fleet.servers:
                fleet.wait_until_newest(server)
        versions.settled[:] = versions.sent
        assert sorted(len(lags_of(server)) for server in fleet.servers) == [1, 2], "one of them writes level 2 too"

        with Trainer(producer, SPEC.name, versions, np.arange(ROWS)) as trainer, fleet.load() as load:
            eventually(lambda: trainer.batches > 30, "updates come", VISIBLE_S)
            load.wait_for(100)
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
            load.wait_for(200)
        with fleet.load(second) as load:
            fleet.wait_until_level_2_is_newest()
            fleet.wait_until_newest(second)
            versions.settled[:] = versions.sent
            load.wait_for(100)
    assert "are missing" not in second.log
