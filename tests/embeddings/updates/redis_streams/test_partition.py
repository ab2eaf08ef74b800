from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.limits import BatchingOptions
from tests.embeddings.updates.conformance.beginning_conformance import AT
from tests.embeddings.updates.conformance.redis_stream_logs import LOG_OF_USERS, append, payload_of, quick
from tests.embeddings.updates.conformance.update_conformance import (
    TIMEOUT_S,
    USERS,
    last_offsets,
    push,
    tables_of,
    take,
    take_rows,
)
from tests.servers.redis_servers import RedisServer

REPORTS_OF_USERS = "hebe:updates:{m/users/0}:committed"
END_OF_USERS = "hebe:updates:{m/users/0}:end"


def test_a_partition_is_bounded_in_bytes(own: RedisServer) -> None:
    payload = payload_of(1000)
    log = quick(own, most_bytes=10 * len(payload))
    append(log, payload, 35)
    assert own.client().xlen(LOG_OF_USERS) == 10
    append(log, payload_of(4000), 1)
    assert own.client().xlen(LOG_OF_USERS) == 7, "six of the old ones have the place that is left"
    source = log.source("g", [USERS])
    found = take(source, lambda found: len(found) >= 7)
    source.commit({AT: found[1].offset})
    append(log, payload, 30)
    assert own.client().xlen(LOG_OF_USERS) == 36, "what a reader has yet to apply is kept, and what it applied last"
    own.client().xtrim(LOG_OF_USERS, maxlen=5, approximate=False)
    source.commit({AT: found[-1].offset})
    append(log, payload, 5)
    assert own.client().xlen(LOG_OF_USERS) == 10, "what somebody else has removed is not counted"
    source.close()
    log.close()


def test_messages_from_before_bytes_were_counted_are_the_first_to_go(own: RedisServer) -> None:
    payload = payload_of(1000)
    log = quick(own, most_bytes=10 * len(payload))
    append(log, payload, 1)
    client = own.client()
    client.delete(LOG_OF_USERS)
    last = int(client.hget("hebe:updates:{m/users/0}:end", "last"))
    client.hdel("hebe:updates:{m/users/0}:end", "bytes", "gone")
    for number in range(last + 1, last + 6):
        client.xadd(LOG_OF_USERS, {"p": payload, "d": "x", "t": "0"}, id=f"0-{number}")
    client.hset("hebe:updates:{m/users/0}:end", "last", last + 5)
    append(log, payload, 10)
    assert client.xlen(LOG_OF_USERS) == 15
    append(log, payload, 1)
    assert client.xlen(LOG_OF_USERS) == 10
    log.close()


def test_a_full_redis_takes_messages_again_once_readers_have_applied_others(small: RedisServer) -> None:
    """Nothing of it is beyond the log's own bounds: what is committed makes room."""
    log = quick(small)
    payload = payload_of(400_000)
    with pytest.raises(StoreUnavailable, match="OOM"):
        append(log, payload, 100)
    held = small.client().xlen(LOG_OF_USERS)
    assert held > 10, "nothing goes that nobody has applied, while there is no reader"
    source = log.source("g", [USERS])
    found = take(source, lambda found: len(found) >= held)
    with pytest.raises(StoreUnavailable):
        append(log, payload, 1)
    source.commit(last_offsets(found))
    assert log.reader_lag("g") == {AT: 0}
    for _ in range(3):
        append(log, payload, 20)
        assert held - 2 <= small.client().xlen(LOG_OF_USERS) <= held + 4
        found = take(source, lambda found: len(found) >= 20)
        assert not [d for d in found if d.message is None]
        source.commit(last_offsets(found))
    source.close()
    log.close()


def test_a_producer_waits_while_redis_is_full(small: RedisServer) -> None:
    log = quick(small)
    source = log.source("g", [USERS])
    append(log, payload_of(400_000), 1)
    take(source, lambda found: len(found) >= 1, commit=True)
    with pytest.raises(StoreUnavailable):
        append(log, payload_of(400_000), 100)
    producer = log.producer(BatchingOptions(max_rows=50_000))
    producer.delete("m", "users", np.arange(50_000))
    with pytest.raises(StoreUnavailable, match="its memory is used up"):
        producer.flush(0.3)
    held = small.client().xlen(LOG_OF_USERS)
    source.commit(last_offsets(take(source, lambda found: len(found) >= held - 1)))
    producer.flush(TIMEOUT_S)
    [deletes] = take(source, lambda found: len(found) >= 1)
    assert deletes.message is not None
    assert deletes.message.producer == producer.name
    producer.close()
    source.close()
    log.close()


def test_messages_that_a_reader_has_yet_to_apply_are_kept(own: RedisServer) -> None:
    log = quick(own, most_entries=20)
    source = log.source("g", [USERS])
    push(log, [0])
    take_rows(source, 1)
    source.poll(0, 0.0)  # which reports
    expected = push(log, range(1000), 1.0)
    assert tables_of(take_rows(source, 1000)) == {"users": expected}
    source.close()
    log.close()


def test_trimming_goes_on_without_a_reader_that_is_gone(own: RedisServer) -> None:
    """Nor does it wait for a consumer group of an older version, which stands there without a time."""
    log = quick(own, most_entries=20, report_expiry_s=2.0)
    push(log, [0])
    left, stays = log.source("left", [USERS]), log.source("stays", [USERS])
    take_rows(left, 1)
    left.poll(0, 0.0)
    left.close()
    assert sum(log.reader_lag("left").values()) == 1, "it has begun, and applied nothing"
    assert log.readers() == ["left"]
    own.client().hset(REPORTS_OF_USERS, "group", 0)
    push(log, range(1000), 1.0)
    take_rows(stays, 1001, commit=True)
    end_s = time.monotonic() + TIMEOUT_S
    while "left" in log.readers():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    push(log, range(100), 2.0)
    assert own.client().xlen(LOG_OF_USERS) < 201, "what all readers have goes, in whole nodes of a stream"
    assert tables_of(take_rows(stays, 100))["users"].keys() == set(range(100))
    assert [name.decode() for name in own.client().hkeys(REPORTS_OF_USERS)] == ["stays"], "and so do expired reports"
    stays.close()
    log.close()


def test_what_the_log_does_not_have_is_not_reported(own: RedisServer) -> None:
    """As of a log that went back, which its reader has not found out: it would be trimmed of what is not read yet."""
    log = quick(own)
    push(log, range(10))
    with contextlib.closing(log.source("g", [USERS])) as source:
        take_rows(source, 10, commit=True)
        before = own.client().hget(REPORTS_OF_USERS, "g")
        push(log, range(10))
        take_rows(source, 10)
        own.client().hset(END_OF_USERS, "last", int(before.split()[0]))
        source.commit({AT: int(before.split()[0]) + 2})
        assert own.client().hget(REPORTS_OF_USERS, "g") == before
    log.close()
