from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions
from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.redis.layout import Progress, mark_of
from hebe.embeddings.store import UNKNOWN_POSITION, StoreError
from hebe.embeddings.tiers import volatile_tier
from hebe.embeddings.tiers.batch_lookup import Answer, BatchLookup
from hebe.embeddings.tiers.update_positions import UpdatePositions
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from tests.embeddings.stores.dict_store import DictStore

DIMS = {"users": 3, "items": 1}
NO_UPDATES = dict.fromkeys(DIMS, np.empty(0, np.int64))


@pytest.fixture
def answer():
    """Rows of level 3, each its key, for all but item 9."""
    batch = BatchLookup.of([("items", np.array([9, 1])), ("users", np.array([4, 5, 8]))], DIMS)
    batch.rows[:] = [9, 1, *[4] * 3, *[5] * 3, *[8] * 3]
    return Answer(batch, np.array([False, True, True, True, True]))


def client_of(store, **options):
    return TierClient("tier", store, DIMS, TierClientOptions(20.0, **options))


def ask(client, keys):
    """Whether it answered for these users."""
    count = len(keys)
    return client.wait(client.start(("users",), np.array(keys), np.array([0, count]), np.array([0, 3 * count])), 20.0)


def test_it_is_filled_with_what_it_lacks(answer):
    store = DictStore(DIMS)
    store.insert("users", np.array([5]), np.full((1, 3), 55, np.float32))
    assert VolatileTier(store).fill(answer, NO_UPDATES, UpdatePositions(DIMS)) == 0
    found = {table: {key: row[0] for key, row in rows.items()} for table, rows in store.tables.items()}
    assert found == {"items": {1: 1}, "users": {4: 4, 5: 55, 8: 8}}


def test_redis_takes_rows_at_settled_positions_unless_it_has_later_updates(open_redis, redis_server, answer):
    store, updates = open_redis(redis_server, dims=DIMS), UpdatePositions(DIMS)
    for number in range(2):
        updates.begin("users", number, 5)
    numbers = dict(zip([4, 5, 8], updates.partitions_of("users", np.array([4, 5, 8])).tolist(), strict=True))
    assert len({*numbers.values()}) == 2, "else choose other keys"
    reached = np.array([5, 7])
    store.begin(Progress.SEALED, {"users": np.array([mark_of(position) for position in reached])})
    tier = VolatileTier(store, client_of(store))
    settled = {**NO_UPDATES, "users": np.array([5, UNKNOWN_POSITION])}
    assert tier.fill(answer, settled, updates) == 0
    first = [key for key, number in numbers.items() if number == 0]
    assert users_of(store) == {key: (key, 5) for key in first}, "an update came to the others meanwhile"
    assert store.size("items") == 1, "of a table that the log has not"
    late = 3 - len(first)
    assert tier.fill(answer, {**settled, "users": np.array([5, 6])}, updates) == late
    assert users_of(store) == {key: (key, 5) for key in first}, "Redis may have, or have deleted, newer ones"
    assert tier.fill(answer, {**settled, "users": np.array([6, 8])}, updates) == 0
    assert users_of(store) == {key: (key, [5, 8][number]) for key, number in numbers.items()}


def users_of(store):
    """By key the first number of the row, and its position."""
    keys, rows = np.array([4, 5, 8]), np.empty(9, np.float32)
    found, (at, own) = np.zeros(3, np.bool_), np.empty((2, 3), np.int64)
    store.fill_tables(
        ("users",), keys, np.array([0, 3]), rows, np.array([0, 9]), np.ones(3, np.bool_), found, at, own
    )  # fmt: skip
    return {
        key: (row, position)
        for key, row, position, there in zip(keys.tolist(), rows[::3], own.tolist(), found, strict=True)
        if there
    }


@pytest.mark.parametrize("refused", ["rows", "times of use"])
def test_one_without_memory_has_no_room_for_some_seconds(answer, monkeypatch, refused):
    """Its circuit stays closed, as it answers questions."""

    def refuse(*_arguments):
        raise RedisFull("no memory left")

    now_s, store, used = 1000.0, DictStore(DIMS), [("users", np.array([4]))]
    monkeypatch.setattr(volatile_tier, "time", SimpleNamespace(monotonic=lambda: now_s))
    tier = VolatileTier(store, client_of(store))
    with monkeypatch.context() as full:
        full.setattr(store, "insert_tables", refuse)
        full.setattr(store, "touch", refuse)
        assert tier.has_room
        with pytest.raises(RedisFull):
            tier.touch(used) if refused == "times of use" else tier.fill(answer, NO_UPDATES, UpdatePositions(DIMS))
        assert (tier.available, tier.has_room) == (True, False)
        tier.touch(used)
    tier.touch(used)
    assert store.touched == [], "it is not even tried"
    now_s += 5.0
    assert tier.has_room
    tier.touch(used)
    assert store.touched == [4]
    tier.close()


def test_nothing_is_sent_to_one_whose_circuit_is_open(answer):
    store = DictStore(DIMS)
    client = client_of(store, breaker=BreakerOptions(failures=1, pause_s=1000.0, longest_pause_s=1000.0))
    tier = VolatileTier(store, client)
    tier.touch([("users", np.array([4])), ("items", np.array([1]))])
    store.fault = StoreError("gone")
    assert not ask(client, [1]).any()
    assert not tier.available
    store.fault = None
    tier.touch([("users", np.array([4]))])
    assert tier.fill(answer, NO_UPDATES, UpdatePositions(DIMS)) == 0
    assert (store.touched, store.tables) == ([4, 1], {"users": {}, "items": {}})
    tier.close()
    assert store.closed


def test_a_client_that_cannot_be_closed_does_not_keep_the_store_open(monkeypatch):
    def refuse():
        raise StoreError("not to be closed")

    store, queried = DictStore(DIMS), DictStore(DIMS)
    monkeypatch.setattr(queried, "close", refuse)
    with pytest.raises(StoreError, match="not to be closed"):
        VolatileTier(store, client_of(queried)).close()
    assert store.closed
