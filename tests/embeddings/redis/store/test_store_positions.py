"""Rows in Redis that know how new they are: what is filled, what a query learns of positions, and rows that are not as
they were written.
"""

import numpy as np
import pytest

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.layout import Progress, mark_of
from hebe.embeddings.redis.nodes import RedisNodes
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.writer import RedisWriter
from hebe.embeddings.store import UNKNOWN_POSITION, StoreUnavailable
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.redis_stores import fetched, put, rows_of

PARTITIONS, LOG_PARTITIONS = 3, 2
KEYS = np.arange(40)
OWN = KEYS[key_partitions(KEYS, PARTITIONS) == 1]
"""Of partition 1."""


@pytest.fixture
def open_store(open_redis, redis_server):
    def opened(partitions=PARTITIONS, **more):
        store = open_redis(redis_server, VolatileOptions(partitions), **more)
        store.log_partitions = lambda _: LOG_PARTITIONS
        return store

    return opened


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def client(redis_server):
    with redis_server.client() as client:
        yield client


def begin(store, *positions, progress=Progress.SEALED):
    store.begin(progress, {table: np.array([mark_of(each) for each in positions]) for table in store.dims})


def fill(store, keys, position, *, add=0.0, chosen=None):
    keys = np.asarray(keys)
    rows, numbers = rows_of(keys, add=add), key_partitions(keys, LOG_PARTITIONS)
    chosen = np.ones(len(keys), np.bool_) if chosen is None else chosen
    positions = np.broadcast_to(np.asarray(position, np.int64), keys.shape).copy()
    arrays = keys, np.array([0, len(keys)]), rows.reshape(-1), np.array([0, rows.size])
    return store.fill(("users",), *arrays, chosen, positions, numbers)


def ask(store, keys):
    """Which keys are there, what was added to their rows, and both their positions."""
    keys = np.asarray(keys)
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    positions, own = np.full((2, len(keys)), -7)
    arrays = keys, np.array([0, len(keys)]), rows.reshape(-1), np.array([0, rows.size])
    assert store.fill_tables(("users",), *arrays, np.ones(len(keys), np.bool_), found, positions, own) == found.sum()
    return found, rows[:, 0] - keys, positions, own


def partition(store, number=1, table="users"):
    return store.table(table).partitions[number].rows


def name_of(key):
    return int(key).to_bytes(8, "little", signed=True)


def write(store, keys, offset, *, end=None):
    """Of one log partition, all up to `end`."""
    writer = RedisWriter(store, "model", "log", lambda _: LOG_PARTITIONS)
    writer.positions()
    number = int(key_partitions(keys[:1], LOG_PARTITIONS)[0])
    at = f"log/model/users/{number}", offset if end is None else end
    writer.apply("users", keys, rows_of(keys, add=offset), at, offsets=np.full(len(keys), offset))


class TestFill:
    def test_only_what_is_absent(self, store):
        begin(store, 5, 5)
        assert fill(store, KEYS[:20], 5) == 0
        assert fill(store, KEYS[10:], 9, add=100.0) == 0
        found, added, positions, own = ask(store, KEYS)
        assert found.all()
        assert added.tolist() == [0.0] * 20 + [100.0] * 20
        assert own.tolist() == positions.tolist() == [5] * 20 + [9] * 20

    def test_only_what_is_chosen(self, store):
        begin(store, 5, 5)
        fill(store, KEYS, 5, chosen=KEYS % 3 == 0)
        assert ask(store, KEYS)[0].tolist() == (KEYS % 3 == 0).tolist()

    def test_nothing_that_the_partition_has_later_updates_than(self, store):
        begin(store, 5, 9)
        numbers = key_partitions(KEYS, LOG_PARTITIONS)
        assert fill(store, KEYS, 8) == np.count_nonzero(numbers == 1)
        assert ask(store, KEYS)[0].tolist() == (numbers == 0).tolist()
        assert fill(store, KEYS, np.where(numbers == 0, 5, 9)) == 0
        assert ask(store, KEYS)[0].all()

    def test_nothing_into_a_partition_without_a_state(self, store):
        begin(store, 5, 5)
        store.clear("users", [1])
        assert fill(store, KEYS, 7) == 0
        assert ask(store, KEYS)[0].tolist() == (key_partitions(KEYS, PARTITIONS) != 1).tolist()
        assert store.states()["users"][1] is None

    def test_nothing_while_updates_are_of_another_number_of_log_partitions(self, store):
        begin(store, 5, 5, 5)
        assert fill(store, KEYS, 7) == len(KEYS)
        assert not ask(store, KEYS)[0].any()

    def test_rows_of_the_model_where_no_update_was(self, store):
        store.begin(Progress.BEGUN)
        assert fill(store, KEYS, -1) == 0
        assert ask(store, KEYS)[0].all()
        assert set(ask(store, KEYS)[3].tolist()) == {-1}

    def test_prunes(self, open_redis, redis_server):
        options = VolatileOptions(1, overflow_margin=20, overflow_resolution_target=0.5)
        store = open_redis(redis_server, options)
        store.log_partitions = lambda _: LOG_PARTITIONS
        store.begin(Progress.SEALED)
        fill(store, KEYS[:20], 0)
        assert store.size("users") == 20
        fill(store, KEYS[20:21], 0)
        assert store.size("users") == 10


class TestPositions:
    def test_a_row_has_all_that_was_written_into_its_partition(self, store):
        begin(store, 5, 9)
        numbers = key_partitions(KEYS, LOG_PARTITIONS)
        fill(store, KEYS, 20)
        assert set(ask(store, KEYS)[2].tolist()) == {20}
        store.clear()
        begin(store, 5, 9)
        put(store, KEYS)
        _, _, positions, own = ask(store, KEYS)
        assert positions.tolist() == np.where(numbers == 0, 5, 9).tolist()
        assert set(own.tolist()) == {-1}

    def test_of_other_log_partitions_than_are_known_nothing_is_known(self, store):
        begin(store, 5, 5, 5)
        put(store, KEYS)
        assert set(ask(store, KEYS)[2].tolist()) == {UNKNOWN_POSITION}
        store.log_partitions = lambda _: 0
        assert set(ask(store, KEYS)[2].tolist()) == {5}

    def test_a_partition_that_went_back_is_not_trusted(self, open_store, client):
        store = open_store()
        begin(store, 3, 3)
        put(store, OWN)
        copy = client.dump(partition(store))
        own = OWN[key_partitions(OWN, LOG_PARTITIONS) == 0]
        write(store, own[:2], 8)
        assert ask(store, own)[2].tolist() == [8] * len(own)
        client.restore(partition(store), 0, copy, replace=True)
        found, _, positions, _ = ask(store, own)
        assert found.all()
        assert set(positions.tolist()) == {UNKNOWN_POSITION}
        fresh = open_store(namespace=store.namespace)
        assert set(ask(fresh, own)[2].tolist()) == {3}, "it has seen nothing else"
        other = OWN[key_partitions(OWN, LOG_PARTITIONS) == 1]
        assert set(ask(store, other)[2].tolist()) == {3}, "of the other log partition nothing is missing"
        write(store, own[:2], 9)
        assert ask(store, own)[2].tolist() == [9] * len(own)

    def test_rows_below_the_oldest_trusted_position(self, store):
        begin(store, 3, 3)
        put(store, OWN[:2])
        fill(store, OWN[2:4], 7)
        store.oldest_trusted = 5
        assert ask(store, OWN[:4])[2].tolist() == [UNKNOWN_POSITION] * 2 + [7] * 2

    def test_what_comes_between_the_commands_of_a_query(self, open_store, monkeypatch):
        """A row is no newer for an update that is written after it was read."""
        store, other = open_store(1, namespace="between"), open_store(1, namespace="between")
        keys = np.arange(20_000)[key_partitions(np.arange(20_000), LOG_PARTITIONS) == 0]
        begin(store, 3, 3)
        put(store, keys)
        execute, offsets = RedisNodes.execute, iter(range(4, 1000))

        def executed(nodes, commands):
            replies = []
            for command in commands:
                replies += execute(nodes, [command])
                with monkeypatch.context() as own:
                    own.setattr(RedisNodes, "execute", execute)
                    write(other, keys, next(offsets))
            return replies

        monkeypatch.setattr(RedisNodes, "execute", executed)
        found, added, positions, own = ask(store, keys)
        assert found.all()
        written = np.where(own < 0, 3, added)
        assert len(set(written.tolist())) > 2, "writes came between"
        assert (positions <= written).all()


class TestStates:
    def test_begin_leaves_states_as_they_are(self, store):
        begin(store, 1, 2)
        store.clear("users", [1])
        begin(store, 7, 8, progress=Progress.BEGUN)
        found = store.states()
        assert [state.progress for state in found["users"]] == [Progress.SEALED, Progress.BEGUN, Progress.SEALED]
        assert [state.complete.tolist() for state in found["users"]] == [[1, 2], [7, 8], [1, 2]]
        assert {state.progress for state in found["items"]} == {Progress.SEALED}
        store.clear("items")
        assert store.states()["items"] == [None] * PARTITIONS
        store.clear()
        assert store.states()["users"] == [None] * PARTITIONS

    def test_advance_one_step_at_a_time_and_with_enough_rows(self, store):
        store.begin(Progress.BEGUN)
        assert not store.advance(Progress.SEALED)
        counts = np.bincount(key_partitions(KEYS, PARTITIONS), minlength=PARTITIONS)
        least = {"users": counts, "items": np.zeros(PARTITIONS, np.int64)}
        fill(store, KEYS[key_partitions(KEYS, PARTITIONS) != 1], -1)
        assert not store.advance(Progress.FILLED, least)
        progress = [state.progress for state in store.states()["users"]]
        assert progress == [Progress.FILLED, Progress.BEGUN, Progress.FILLED]
        fill(store, KEYS, -1)
        assert store.advance(Progress.FILLED, least)
        assert store.advance(Progress.SEALED)
        assert store.advance(Progress.FILLED, {"users": counts + 9, "items": counts}), "they are past that"
        store.clear("users", [2])
        assert not store.advance(Progress.SEALED)

    def test_alone_only_sealed_partitions_answer(self, open_store):
        store = open_store(alone=True)
        for progress in (None, Progress.BEGUN, Progress.FILLED):
            if progress is Progress.BEGUN:
                store.begin(Progress.BEGUN)
                fill(store, KEYS, -1)
            elif progress is Progress.FILLED:
                store.advance(Progress.FILLED)
            store.incomplete.clear()
            with pytest.raises(StoreUnavailable):
                fetched(store, KEYS)
            assert store.incomplete.is_set()
        store.advance(Progress.SEALED)
        assert fetched(store, KEYS).all()
        store.clear("users", [1])
        assert fetched(store, np.setdiff1d(KEYS, OWN)).all()
        with pytest.raises(StoreUnavailable):
            fetched(store, KEYS)


def other_bytes(row, _store, _client):
    return bytes(len(row))


def not_a_number(row, _store, _client):
    return row[:16] + np.full(3, np.nan, np.float32).tobytes()


def cut(row, _store, _client):
    return row[:-4]


def padded(row, _store, _client):
    return row + bytes(4)


def flipped(row, _store, _client):
    return row[:-1] + bytes([row[-1] ^ 1])


def newer(row, _store, _client):
    return (10**6).to_bytes(8, "little") + row[8:]


def of_another_key(_row, store, client):
    return client.hget(partition(store), name_of(OWN[1]))


def of_another_table(_row, store, client):
    put(store, OWN[:1], "same")
    return client.hget(partition(store, table="same"), name_of(OWN[0]))


def empty(_row, _store, _client):
    return b""


DAMAGES = [other_bytes, not_a_number, cut, padded, flipped, newer, of_another_key, of_another_table, empty]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("alone", [False, True])
def test_rows_that_are_not_as_they_were_written(open_store, client, damage, alone):
    store = open_store(dims={"users": 3, "same": 3}, alone=alone)
    begin(store, 3, 3)
    put(store, KEYS)
    name = name_of(OWN[0])
    client.hset(partition(store), name, damage(client.hget(partition(store), name), store, client))
    reported = []
    store.on_damage = reported.append
    if alone:
        with pytest.raises(StoreUnavailable):
            fetched(store, KEYS)
        assert store.incomplete.is_set()
        states = store.states()["users"]
        assert [state is None for state in states] == [False, True, False], "it is put in again"
    else:
        found = fetched(store, KEYS)
        assert found.tolist() == (OWN[0] != KEYS).tolist()
        assert not client.hexists(partition(store), name)
        assert fetched(store, KEYS).sum() == len(KEYS) - 1
        assert fill(store, OWN[:1], 3) == 0
        assert fetched(store, KEYS).all()
    assert store.damaged_rows == 1
    [damage] = reported
    assert "users" in damage


def test_a_damaged_row_that_is_written_again_meanwhile_stays(open_store, client):
    class Raced(RedisStore):
        """One whose damaged rows are written again after they were read."""

        def ask(self, asked):
            if self.damaged_rows:
                put(other, KEYS)
            return super().ask(asked)

    other = open_store()
    store = Raced(
        other.dims, other.where, other.options, namespace=other.namespace,
    )  # fmt: skip
    try:
        begin(store, 3, 3)
        put(store, KEYS)
        client.hset(partition(store), name_of(OWN[0]), bytes(28))
        assert fetched(store, KEYS).sum() == len(KEYS) - 1
        assert fetched(store, KEYS).all()
    finally:
        store.close()
