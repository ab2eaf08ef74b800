from __future__ import annotations

import contextlib
import time

import pytest

from hebe.embeddings.updates.redis_streams import source as redis_source
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from tests.embeddings.updates.conformance.beginning_conformance import AT
from tests.embeddings.updates.conformance.redis_stream_logs import LOG_OF_USERS, come, keys_in, quick
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


@pytest.mark.parametrize("group", ["g", None])
def test_a_log_that_was_emptied_is_told_and_gone_on_with(own: RedisServer, group: str | None) -> None:
    log = quick(own)
    push(log, range(30))
    source = log.source(group, [USERS])
    found = take_rows(source, 30)
    source.commit(last_offsets(found))
    before = source.log_identity()
    own.client().flushall()
    expected = push(log, range(100, 130), 5.0)
    found = come(source, lambda found: keys_in(found) >= 30)
    assert [d.fault for d in found if d.message is None], "it must say that something was lost"
    assert tables_of(d for d in found if d.message) == {"users": expected}
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
    for name in client.scan_iter("hebe:updates:*:group:*"):
        copy[name] = client.dump(name)  # the group is as far as it was
    client.flushall()
    for name, content in copy.items():
        client.restore(name, 0, content)
    expected = push(log, range(50, 50 + rows), 2.0)
    last = 49 + rows
    found = come(source, lambda found: {50, last} <= set(tables_of(d for d in found if d.message).get("users", {})))
    [told] = [d for d in found if d.message is None]
    assert told.fault is not None, "it must say that something was lost"
    assert "went back" in told.fault
    assert all(told.offset < d.offset for d in found if d.message)
    users = tables_of(d for d in found if d.message)["users"]
    assert {key: users.get(key) for key in expected} == expected
    source.commit(last_offsets([told]))
    assert sum(log.group_lag("g").values()) > 0, "to have told of it is not to have applied what came since"
    source.commit(last_offsets(found))
    assert not any(source.lag().values())
    assert not any(log.group_lag("g").values())
    source.close()
    again = log.source("g", [USERS])
    assert not again.poll(10, 0.3), "all of it is committed"
    again.close()
    log.close()


def test_an_offset_that_the_log_does_not_have_is_not_committed(own: RedisServer) -> None:
    log = quick(own)
    push(log, range(10))
    source = log.source("g", [USERS])
    found = take_rows(source, 10)
    part, last = source._parts[AT], found[-1].offset
    for offset, answer in ((last + 1, 2), (last - 1, 1), (last, 1), (last - 1, 1)):
        assert log._nodes.execute([part.commands.commit(b"g", part.token, offset, b"")]) == [answer]
    part.last = last + 1  # as if it had been handed over
    source.commit({AT: last + 1})
    assert part.committed < last
    source.commit({AT: last})
    assert (part.committed, source.lag(), log.group_lag("g")) == (last, {AT: 0}, {AT: 0})
    source.close()
    log.close()


def test_what_trimming_took_from_a_group_is_told(own: RedisServer) -> None:
    log = quick(own, most_entries=20, trim_uncommitted=True)
    push(log, range(10))
    source = log.source("g", [USERS])
    source.commit(last_offsets(take_rows(source, 10)))
    expected = push(log, range(2000), 1.0)
    found = take(
        source, lambda found: bool(found) and 1999 in (tables_of(d for d in found if d.message).get("users", {}))
    )
    [gap] = [d for d in found if d.message is None]
    assert gap.fault is not None
    assert "were removed from the log in Redis before this group had read them" in gap.fault
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


def test_a_server_that_stands_still_loses_its_partitions_and_its_commit(own: RedisServer) -> None:
    log = quick(own, num_partitions=2)
    expected = push(log, range(40))
    slow = log.source("g", [USERS])
    first = take_rows(slow, 40)
    slow._closed.set()  # its thread that prolongs the leases ends, as that of a process which is stopped
    slow._keeper.join()
    slow._closed.clear()
    other = log.source("g", [USERS])
    found = come(other, lambda found: keys_in(found) >= 40)
    assert tables_of(found) == {"users": expected}
    other.commit(last_offsets(found[:-1]))
    lag = log.group_lag("g")
    slow.commit(last_offsets(first))
    assert log.group_lag("g") == lag, "what is another's now cannot be committed"
    slow.close()
    other.close()
    log.close()


def test_what_may_be_anothers_is_not_a_members_any_more(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks nobody before it writes rows: a process may have stood still since it asked last."""
    slept_s, boot_s = 0.0, redis_source.boot_s
    monkeypatch.setattr(redis_source, "boot_s", lambda: boot_s() + slept_s)
    log = RedisStreamsLog(RedisStreamsOptions(own.address, num_partitions=1, lease_s=600.0, most_poll_gap_s=600.0))
    push(log, range(40))
    with contextlib.closing(log.source("g", [USERS])) as source, contextlib.closing(log.source(None, [USERS])) as alone:
        first = take_rows(source, 40)
        take_rows(alone, 40)
        slept_s = 300.0
        assert source.assigned() == {first[0].at}
        source.poll(10, 0.0)
        slept_s = 700.0
        assert source.assigned() == {first[0].at}, "it has asked since"
        slept_s = 1000.0
        assert not source.assigned()
        assert alone.assigned()
    log.close()


def test_a_lease_that_is_anothers_is_noticed_where_leases_are_prolonged(own: RedisServer) -> None:
    log = RedisStreamsLog(RedisStreamsOptions(own.address, num_partitions=1, lease_s=600.0, most_poll_gap_s=600.0))
    push(log, range(40))
    with contextlib.closing(log.source("g", [USERS])) as source:
        [first, *_] = take_rows(source, 40)
        source._prolong(b"g")
        assert source.assigned() == {first.at}
        own.client().hset("hebe:updates:{m/users/0}:group:g", "token", "another's")
        source._prolong(b"g")
        assert not source.assigned()
    log.close()


def test_it_knows_whether_others_have_partitions(own: RedisServer) -> None:
    log = quick(own, num_partitions=3, lease_s=60.0)
    push(log, range(30))
    first = log.source("g", [USERS])
    first.commit(last_offsets(take_rows(first, 30)))
    assert (len(first.assigned()), first.lacks) == (3, False)
    second = log.source("g", [USERS])
    end_s = time.monotonic() + TIMEOUT_S
    while not second.assigned():
        assert time.monotonic() < end_s
        first.poll(10, 0.05)
        second.poll(10, 0.05)
    assert second.lacks
    assert first.lacks
    first.close()
    while second.lacks:
        assert time.monotonic() < end_s
        second.poll(10, 0.05)
    assert len(second.assigned()) == 3
    alone = log.source(None, [USERS])
    alone.poll(10, 0.0)
    assert not alone.lacks
    alone.close()
    second.close()
    log.close()
