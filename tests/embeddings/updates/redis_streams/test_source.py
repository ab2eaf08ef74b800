from __future__ import annotations

import pytest

from tests.embeddings.updates.conformance.beginning_conformance import AT
from tests.embeddings.updates.conformance.redis_stream_logs import LOG_OF_USERS, come, keys_in, quick
from tests.embeddings.updates.conformance.update_conformance import (
    USERS,
    last_offsets,
    push,
    tables_of,
    take,
    take_rows,
)
from tests.servers.redis_servers import RedisServer


@pytest.mark.parametrize("pushed", [True, False])
def test_a_log_that_was_emptied_is_reported_at_once(own: RedisServer, pushed: bool) -> None:
    """Whether or not there is anything new in it."""
    log = quick(own, num_partitions=3)
    push(log, range(30))
    source = log.source("g", [USERS])
    found = take_rows(source, 30)
    source.commit(last_offsets(found))
    before, parts = source.log_identity(), source.assigned()
    own.client().flushall()
    expected = push(log, range(100, 130), 5.0) if pushed else {}
    found = come(
        source, lambda found: len({d.at for d in found if d.restarts}) == 3 and keys_in(found) >= len(expected)
    )
    reported = [d for d in found if d.message is None]
    assert len(reported) == 3, "once for each partition"
    assert {d.at for d in reported} == parts
    assert found[:3] == reported
    assert tables_of(d for d in found if d.message) == ({"users": expected} if pushed else {})
    assert source.assigned() == (parts if pushed else frozenset())
    assert source.log_identity() != before
    source.commit(last_offsets(found))
    assert not any(source.lag().values())
    source.close()
    log.close()


@pytest.mark.parametrize("rows", [5, 25])
def test_a_log_that_went_back_to_an_older_copy_is_told(own: RedisServer, rows: int) -> None:
    """As a snapshot that was restored: the same identity, and other messages in the place of lost ones, so few that it
    ends before where it was, or more."""
    log = quick(own)
    push(log, range(10))
    client = own.client()
    names = [name for name in client.scan_iter("hebe:updates:*") if client.type(name) != b"none"]
    copy = {name: client.dump(name) for name in names}
    push(log, range(20, 40), 1.0)
    source = log.source("g", [USERS])
    source.commit(last_offsets(take_rows(source, 30)))
    client.flushall()
    for name, content in copy.items():
        client.restore(name, 0, content)
    expected = push(log, range(50, 50 + rows), 2.0)
    last = 49 + rows
    found = come(source, lambda found: {50, last} <= set(tables_of(d for d in found if d.message).get("users", {})))
    [told] = [d for d in found if d.message is None]
    assert told.restarts, "it must say that something was lost"
    assert all(told.offset < d.offset for d in found if d.message)
    users = tables_of(d for d in found if d.message)["users"]
    assert {key: users.get(key) for key in expected} == expected
    source.commit(last_offsets([told]))
    assert sum(log.reader_lag("g").values()) > 0, "to have reported it is not to have applied what came since"
    source.commit(last_offsets(found))
    assert not any(source.lag().values())
    assert not any(log.reader_lag("g").values())
    source.close()
    log.close()


def test_what_trimming_took_from_a_reader_is_reported(own: RedisServer) -> None:
    log = quick(own, most_entries=20, trim_uncommitted=True)
    push(log, range(10))
    source = log.source("g", [USERS])
    source.commit(last_offsets(take_rows(source, 10)))
    expected = push(log, range(2000), 1.0)
    found = take(
        source, lambda found: bool(found) and 1999 in (tables_of(d for d in found if d.message).get("users", {}))
    )
    [gap] = [d for d in found if d.message is None]
    assert gap.error is not None
    assert not gap.restarts
    users = tables_of(d for d in found if d.message)["users"]
    assert 0 < len(users) < 2000
    assert {key: expected[key] for key in users} == users
    source.close()
    log.close()


def test_a_log_that_was_begun_before_its_first_number_was_kept_has_no_known_beginning(own: RedisServer) -> None:
    log = quick(own)
    push(log, range(10))
    own.client().hdel("hebe:updates:{m/users/0}:end", "first")
    own.client().xtrim(LOG_OF_USERS, maxlen=1, approximate=False)
    push(log, [10])
    source = log.source(None, [USERS])
    assert len(take_rows(source, 6)) == 2
    assert source.lost_beginning(AT) is None
    source.close()
    log.close()
