"""Updates over Redis Streams: what every update log does, on a real server, and what becomes of it when that fails."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hebe.embeddings.redis_command import Command
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates import redis_source
from hebe.embeddings.updates.batching import BatchingOptions, UpdateCarrier
from hebe.embeddings.updates.contract import Delivery, UpdateLog, UpdateMessage, UpdateSource
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.redis_partition import PartitionCommands
from hebe.embeddings.updates.redis_streams import RedisCarrier, RedisStreamsLog, RedisStreamsOptions

from ...redis_servers import RedisCluster, RedisServer
from .beginning_conformance import AT, BeginningConformance, Trimmable
from .fault_conformance import FaultConformance
from .update_conformance import (
    SMALL,
    TIMEOUT_S,
    USERS,
    UpdateLogConformance,
    last_offsets,
    push,
    rows_for,
    tables_of,
    take,
    take_rows,
)

LOG_OF_USERS = "hebe:updates:{m/users/0}:log"


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
            logs.append(RedisStreamsLog(RedisStreamsOptions(server.address, num_partitions=4, lease_s=1.0)))
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
            logs.append(
                RedisStreamsLog(RedisStreamsOptions(";".join(cluster.addresses), num_partitions=4, lease_s=1.0))
            )
            return logs[-1]

        yield make
        for log in logs:
            log.close()


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server to be broken."""
    with RedisServer(options=["appendonly yes", "appendfsync always"]) as server:
        yield server


def quick(server: RedisServer, **changed: object) -> RedisStreamsLog:
    options: dict[str, object] = {"num_partitions": 1, "lease_s": 0.5, **changed}
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


def payload_of(size: int) -> bytes:
    return encode(UpdateMessage("p", 0, 0.0, np.arange(size // 8), None), AT)


def append(log: RedisStreamsLog, payload: bytes, count: int) -> None:
    carrier = RedisCarrier(log.options)
    carrier.partitions(USERS)
    for _ in range(count):
        carrier.append(AT, payload)
    carrier.close()


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


@pytest.fixture
def small() -> Iterator[RedisServer]:
    with RedisServer(options=["maxmemory 12mb", "maxmemory-policy noeviction"]) as server:
        yield server


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


def test_a_server_that_was_killed_is_in_its_group_until_its_lease_ends(own: RedisServer) -> None:
    log = quick(own, lease_s=2.0)
    push(log, [0])
    killed = log.source("g", [USERS])
    take_rows(killed, 1, commit=True)
    killed._closed.set()  # its thread that prolongs the leases ends, and nothing is given back
    killed._keeper.join()
    with pytest.raises(StoreError, match=r"a server is still in group g: stop it first.*lease of some 2 s"):
        log.forget_group("g")
    end_s = time.monotonic() + TIMEOUT_S
    forgotten = False
    while not forgotten:
        assert time.monotonic() < end_s
        with contextlib.suppress(StoreError):
            forgotten = log.forget_group("g")
    assert not list(own.client().scan_iter("*members*"))
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
