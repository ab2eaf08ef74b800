"""Redis Streams as tests ask them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, UpdateMessage, UpdateSource
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.redis_streams.log import RedisCarrier, RedisStreamsLog, RedisStreamsOptions
from tests.servers.redis_servers import RedisServer

from .beginning_conformance import AT
from .update_conformance import TIMEOUT_S, USERS

LOG_OF_USERS = "hebe:updates:{m/users/0}:log"


def quick(server: RedisServer, **changed: object) -> RedisStreamsLog:
    options: dict[str, object] = {"num_partitions": 1, **changed}
    return RedisStreamsLog(RedisStreamsOptions(server.address, **options))  # type: ignore[arg-type]


def come(source: UpdateSource, done: Callable[[list[Delivery]], bool]) -> list[Delivery]:
    """Poll until `done`, however often the log is away meanwhile."""
    found: list[Delivery] = []
    end_s = time.monotonic() + TIMEOUT_S
    while not done(found):
        assert time.monotonic() < end_s
        with contextlib.suppress(StoreUnavailable):
            found += source.poll(10, 0.1)
    return found


def keys_in(found: list[Delivery]) -> int:
    return sum(len(d.message.keys) for d in found if d.message)


def payload_of(size: int) -> bytes:
    return encode(UpdateMessage("p", 0, 0.0, np.arange(size // 8), None), AT)


def append(log: RedisStreamsLog, payload: bytes, count: int) -> None:
    carrier = RedisCarrier(log.options)
    carrier.partitions(USERS)
    for _ in range(count):
        carrier.append(AT, payload)
    carrier.close()
