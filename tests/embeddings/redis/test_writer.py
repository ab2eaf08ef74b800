"""Updates written into rows in Redis: which are applied, up to where partitions have them, and what shows that Redis
has lost some.
"""

import numpy as np
import pytest

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.layout import Progress, mark_of
from hebe.embeddings.redis.writer import RedisWriter
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.redis_stores import rows_of

PARTITIONS, LOG_PARTITIONS = 3, 2
KEYS = np.arange(200)[key_partitions(np.arange(200), LOG_PARTITIONS) == 1]
"""Of log partition 1."""
NAME = "log/model/users/1"


@pytest.fixture
def store(open_redis, redis_server):
    store = open_redis(redis_server, VolatileOptions(PARTITIONS), dims={"users": 3})
    store.log_partitions = lambda _: LOG_PARTITIONS
    store.begin(Progress.SEALED)
    return store


@pytest.fixture
def writer(store):
    return begun(store)


def begun(store, log_partitions=LOG_PARTITIONS):
    writer = RedisWriter(store, "model", "log", lambda _: log_partitions)
    writer.positions()
    return writer


def write(writer, keys, offset, position=None, *, add=0.0, deletes=False, **more):
    """At one offset or several; `position` -1: more follows."""
    keys = np.asarray(keys)
    offsets = np.broadcast_to(np.asarray(offset, np.int64), keys.shape).copy()
    position = offset if position is None else position
    rows = None if deletes else rows_of(keys, add=add)
    return writer.apply("users", keys, rows, None if position == -1 else (NAME, position), offsets=offsets, **more)


def read(store, keys):
    """By key that is there: what was added to its row, its position, and the one up to which it has all updates."""
    keys = np.asarray(keys)
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    positions, own = np.full((2, len(keys)), -7)
    starts, bases = np.array([0, len(keys)]), np.array([0, rows.size])
    store.fill_tables(
        ("users",), keys, starts, rows.reshape(-1), bases, np.ones(len(keys), np.bool_), found, positions, own
    )
    added = rows[:, 0] - keys
    return {int(keys[at]): (added[at], own[at], positions[at]) for at in np.flatnonzero(found)}


def marks_of(store):
    return [state.marks.tolist() for state in store.states()["users"]]


def test_updates_are_there_with_their_positions(store, writer):
    assert write(writer, KEYS, 5)
    assert read(store, KEYS) == dict.fromkeys(KEYS.tolist(), (0.0, 5, 5))
    assert write(writer, KEYS[:10], 8, add=100.0)
    assert read(store, KEYS[:10]) == dict.fromkeys(KEYS[:10].tolist(), (100.0, 8, 8))
    assert write(writer, KEYS[:5], 9, deletes=True)
    assert read(store, KEYS[:6]).keys() == {int(KEYS[5])}
    assert begun(store).positions() == {NAME: 9}


def test_a_batch_of_several_messages_has_the_offset_of_each_row(store, writer):
    write(writer, KEYS[:3], [4, 2, 9], position=11)
    assert [own for _, own, _ in read(store, KEYS[:3]).values()] == [4, 2, 9]
    assert [position for *_, position in read(store, KEYS[:3]).values()] == [11, 11, 11]


def test_who_writes_late_changes_nothing(store, writer):
    late = begun(store)
    write(writer, KEYS[:4], 5)
    write(writer, KEYS[2:4], 6, deletes=True)
    before = read(store, KEYS)
    write(late, KEYS[:4], 3, add=50.0)
    assert read(store, KEYS[:4]) == before, "what was deleted does not come back"
    write(late, KEYS[:4], 4, deletes=True)
    assert read(store, KEYS[:4]) == before
    write(late, KEYS[:4], 5)
    write(late, KEYS[2:4], 6, deletes=True)
    assert read(store, KEYS[:4]) == before


def test_what_is_filled_is_overtaken_by_later_updates_alone(store, writer):
    write(writer, KEYS[:1], 5)
    partitions, positions = np.ones(2, np.int64), np.full(2, 7)
    keys, rows = KEYS[1:3], rows_of(KEYS[1:3])
    store.fill(
        ("users",), keys, np.array([0, 2]), rows.reshape(-1), np.array([0, 6]), np.ones(2, np.bool_), positions,
        partitions,
    )  # fmt: skip
    write(writer, keys, 6, add=10.0)
    assert [added for added, *_ in read(store, keys).values()] == [0.0, 0.0]
    write(writer, keys, 8, add=20.0)
    assert [added for added, *_ in read(store, keys).values()] == [20.0, 20.0]


@pytest.mark.parametrize("max_batch_size", [1, 65536])
def test_partitions_are_raised_to_what_all_have(open_redis, redis_server, max_batch_size):
    store = open_redis(redis_server, VolatileOptions(PARTITIONS), dims={"users": 3}, max_batch_size=max_batch_size)
    store.begin(Progress.SEALED)
    writer = begun(store)
    own = KEYS[key_partitions(KEYS, PARTITIONS) == 2]
    write(writer, own, 5)
    assert marks_of(store) == [[], [], [-2, mark_of(5)]]
    assert begun(store).positions() == {}
    writer.raise_marks()
    assert marks_of(store) == [[-2, mark_of(5)]] * PARTITIONS
    assert begun(store).positions() == {NAME: 5}
    write(writer, KEYS, 6)
    assert marks_of(store) == [[-2, mark_of(6)]] * PARTITIONS
    assert writer.apply("users", KEYS[:0], None, (NAME, 9))  # nothing to apply up to there
    writer.raise_marks()
    assert begun(store).positions() == {NAME: 9}


def test_a_batch_is_put_into_a_partition_at_once(open_redis, redis_server):
    """Cut, it would have a mark with updates of keys whose last one, which a batch has alone, is still to come."""
    store = open_redis(redis_server, VolatileOptions(1), dims={"users": 3}, max_batch_size=1)
    store.begin(Progress.SEALED)
    keys = np.arange(50_000)[key_partitions(np.arange(50_000), LOG_PARTITIONS) == 1]
    other = open_redis(redis_server, VolatileOptions(1), dims={"users": 3}, namespace=store.namespace)
    writer, seen, ask = begun(store), [], store.ask

    def asked(commands):
        replies = ask(commands)
        seen.append(tuple(other.states()["users"][0].marks.tolist()))
        return replies

    store.ask = asked
    write(writer, keys, np.arange(len(keys)), position=len(keys))
    write(writer, keys[::2].copy(), len(keys) + 1, deletes=True)
    assert seen == [(-2, mark_of(len(keys))), (-2, mark_of(len(keys) + 1))]
    assert store.size("users") == len(keys) // 2


def test_a_message_in_part(store, writer):
    write(writer, KEYS, 5)
    write(writer, KEYS[:50], 6, -1, add=10.0)
    there = read(store, KEYS)
    assert [there[key] for key in KEYS[:50].tolist()] == [(10.0, 6, 6)] * 50
    assert {there[key][1:] for key in KEYS[50:].tolist()} == {(5, 5)}, "these may have an update to come"
    assert begun(store).positions() == {NAME: 5}
    write(writer, KEYS[50:], 6, add=10.0)
    assert set(read(store, KEYS).values()) == {(10.0, 6, 6)}
    assert begun(store).positions() == {NAME: 6}


def test_a_partition_that_went_back_within_a_message_is_noticed(store, writer, redis_server):
    write(writer, KEYS, 5)
    write(writer, KEYS[:20], 6, -1, add=10.0)
    with redis_server.client() as client:
        names = [part.rows for part in store.table("users").partitions]
        copies = [client.dump(name) for name in names]
        write(writer, KEYS[20:50], 6, -1, add=10.0)
        for name, copy in zip(names, copies, strict=True):
            client.restore(name, 0, copy, replace=True)
    with pytest.raises(StoreUnavailable):
        write(writer, KEYS[50:], 6, add=10.0)
    assert writer.lost
    again = begun(store)
    assert again.positions() == {NAME: 5}
    write(again, KEYS, 6, add=10.0)
    assert set(read(store, KEYS).values()) == {(10.0, 6, 6)}


def test_marks_are_not_raised_over_part_of_a_message_that_is_lost(store, writer, redis_server):
    other, first = KEYS[key_partitions(KEYS, PARTITIONS) == 2], KEYS[key_partitions(KEYS, PARTITIONS) == 0]
    write(writer, KEYS, 5)
    write(writer, first[:3], 6, -1, add=10.0)
    with redis_server.client() as client:
        name = store.table("users").partitions[0].rows
        copy = client.dump(name)
        write(writer, first[3:], 6, -1, add=10.0)
        write(writer, other, 6, add=10.0)
        client.restore(name, 0, copy, replace=True)
    with pytest.raises(StoreUnavailable):
        writer.raise_marks()
    assert begun(store).positions() == {NAME: 5}


def test_messages_that_were_put_back_into_order(store, writer):
    """The one at 7 comes before that at 6, which its producer sent later."""
    write(writer, KEYS[:2], 7, -1, add=1.0)
    write(writer, KEYS[:1], 6, 7, add=2.0)
    assert read(store, KEYS[:2]) == {int(KEYS[0]): (2.0, 7, 7), int(KEYS[1]): (1.0, 7, 7)}
    write(writer, KEYS[:1], 8, add=3.0)
    assert read(store, KEYS[:1]) == {int(KEYS[0]): (3.0, 8, 8)}


def test_log_marks_come_back_where_they_were_noted(store, writer):
    assert writer.marks() == {}
    write(writer, KEYS, 5, mark="a/5")
    writer.raise_marks()
    again = begun(store)
    assert again.marks() == {NAME: "a/5"}
    write(writer, KEYS, 6, mark="a/6")  # noted with the next `raise_marks`
    again = begun(store)
    assert again.positions() == {NAME: 6}
    assert again.marks() == {NAME: ""}, "that of the message before is not that of this one"


def flushed(_store, client):
    client.flushdb()


def begun_again(store, client):
    client.flushdb()
    store.begin(Progress.SEALED)


def emptied(store, _client):
    store.clear("users", [2])
    store.begin(Progress.SEALED)


def being_filled(store, _client):
    store.clear()
    store.begin(Progress.BEGUN, {"users": np.full(2, mark_of(100))})


def of_another_log(store, _client):
    store.clear()
    store.begin(Progress.SEALED, {"users": np.full(3, mark_of(100))})


@pytest.mark.parametrize("lose", [flushed, begun_again, emptied, being_filled, of_another_log])
@pytest.mark.parametrize("call", ["apply", "raise_marks"])
def test_a_redis_that_has_lost_what_was_written_is_written_to_no_more(store, writer, redis_server, lose, call):
    write(writer, KEYS, 5)
    with redis_server.client() as client:
        lose(store, client)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            write(writer, KEYS, 6) if call == "apply" else writer.raise_marks()
        assert writer.lost
    state = store.states()["users"][2]
    assert state is None or mark_of(6) not in state.marks


def test_a_new_writer_needs_a_state_of_as_many_log_partitions(store, writer):
    write(writer, KEYS, 5)
    assert begun(store).positions() == {NAME: 5}
    with pytest.raises(StoreUnavailable):
        begun(store, 3)
    store.clear("users", [1])
    with pytest.raises(StoreUnavailable):
        begun(store)


def test_a_writer_goes_on_from_the_partition_that_has_least(store):
    marks = {"users": np.array([mark_of(3), mark_of(8)])}
    store.clear()
    store.begin(Progress.SEALED, marks)
    store.clear("users", [2])
    store.begin(Progress.SEALED, {"users": np.array([mark_of(2), mark_of(9)])})
    assert begun(store).positions() == {"log/model/users/0": 2, NAME: 8}


def test_anew_is_refused_once_there_is_anything(writer):
    assert write(writer, KEYS[:5], 4, anew=True)
    with pytest.raises(StoreUnavailable):
        write(writer, KEYS[:5], 2, anew=True)


def test_rows_above_the_margin_are_pruned(open_redis, redis_server):
    options = VolatileOptions(1, overflow_margin=20, overflow_resolution_target=0.5)
    store = open_redis(redis_server, options, dims={"users": 3})
    store.begin(Progress.SEALED)
    writer = begun(store)
    write(writer, KEYS[:20], 1)
    assert store.size("users") == 20
    write(writer, KEYS[20:21], 2)
    assert store.size("users") == 10
    assert begun(store).positions() == {NAME: 2}


def test_arguments_that_do_not_fit(store, writer):
    for keys, rows in ((KEYS.astype(np.int32), None), (KEYS, rows_of(KEYS, dim=2))):
        with pytest.raises(StoreError):
            writer.apply("users", keys, rows, (NAME, 1), offsets=np.full(len(KEYS), 1))
    with pytest.raises(StoreError):
        writer.apply("nobody", KEYS, None, (NAME, 1), offsets=np.full(len(KEYS), 1))
    assert begun(store).positions() == {}
