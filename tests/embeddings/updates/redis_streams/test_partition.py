from __future__ import annotations

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
    assert own.client().xlen(LOG_OF_USERS) == 36, "what a group has yet to commit is kept, and what it committed last"
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


def test_a_full_redis_takes_messages_again_once_groups_have_applied_others(small: RedisServer) -> None:
    """Nothing of it is beyond the log's own bounds: what is committed makes room."""
    log = quick(small)
    payload = payload_of(400_000)
    with pytest.raises(StoreUnavailable, match=r"no message that all groups have applied is left to make.*\(OOM\)"):
        append(log, payload, 100)
    held = small.client().xlen(LOG_OF_USERS)
    assert held > 10, "nothing goes that nobody has applied, while there is no group"
    source = log.source("g", [USERS])
    found = take(source, lambda found: len(found) >= held)
    with pytest.raises(StoreUnavailable, match="no message that all groups have applied"):
        append(log, payload, 1)
    source.commit(last_offsets(found))
    assert log.group_lag("g") == {AT: 0}
    for _ in range(3):
        append(log, payload, 20)
        assert held - 2 <= small.client().xlen(LOG_OF_USERS) <= held + 4
        found = take(source, lambda found: len(found) >= 20)
        assert not [d for d in found if d.message is None]
        source.commit(last_offsets(found))
    source.close()
    again = log.source("g", [USERS])
    assert not again.poll(10, 0.3)
    again.close()
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


def test_messages_that_a_group_has_yet_to_read_are_kept(own: RedisServer) -> None:
    log = quick(own, most_entries=20)
    source = log.source("g", [USERS])
    push(log, [0])
    take_rows(source, 1)
    expected = push(log, range(1000), 1.0)
    assert tables_of(take_rows(source, 1000)) == {"users": expected}
    source.close()
    log.close()


def test_trimming_goes_on_when_a_group_is_forgotten(own: RedisServer) -> None:
    log = quick(own, most_entries=20)
    push(log, [0])
    gone, stays = log.source("gone", [USERS]), log.source("stays", [USERS])
    take_rows(gone, 1)
    gone.close()
    assert sum(log.group_lag("gone").values()) == 1, "it has begun, and committed nothing"
    assert log.groups() == ["gone"]
    push(log, range(1000), 1.0)
    take_rows(stays, 1001, commit=True)
    kept = own.client().xlen(LOG_OF_USERS)
    assert kept == 201
    assert sum(log.group_lag("gone").values()) == kept
    assert log.forget_group("gone")
    push(log, range(100), 2.0)
    assert own.client().xlen(LOG_OF_USERS) < kept, "what all groups have goes, in whole nodes of a stream"
    assert tables_of(take_rows(stays, 100))["users"].keys() == set(range(100))
    stays.close()
    log.close()
