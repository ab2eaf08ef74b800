"""What a server has put into a shared Redis, as it is noted there."""

import numpy as np
import pytest

from hebe.embeddings.redis import fills as redis_fills
from hebe.embeddings.redis.fills import RedisFills
from hebe.embeddings.store import StoreError
from tests.embeddings.stores.redis_stores import fetched, put
from tests.servers.redis_servers import wait_until

KEYS = np.array([-(2**63), -1, 0, 5, 2**63 - 1])


@pytest.fixture
def store(open_redis, redis_server):
    return open_redis(redis_server)


@pytest.fixture
def make_fills(store):
    """Those of a server, into rows of a content of the test's own."""

    def make(server: str, over=store) -> RedisFills:
        return RedisFills(over, f"content/{id(store)}", server)

    return make


def filled(fills: RedisFills, store, keys, now_s: float, table: str = "users") -> None:
    fills.note([(table, np.asarray(keys))], now_s)
    put(store, keys, table)


def test_the_next_server_on_a_level_3_takes_back_what_the_one_before_had_yet_to(store, make_fills) -> None:
    before = make_fills("a")
    before.look()
    filled(before, store, KEYS, 10.0)
    filled(before, store, [7], 11.0, "items")
    put(store, [8])
    make_fills("b").look()
    assert fetched(store, KEYS).all(), "it may live"
    make_fills("a").look()
    assert not fetched(store, KEYS).any()
    assert not fetched(store, [7], "items").any()
    assert fetched(store, [8]).all(), "others had put it there"


def test_what_need_not_be_taken_back_stays(store, make_fills) -> None:
    before = make_fills("a")
    filled(before, store, [1, 2], 10.0)
    before.forget(20.0)
    before.look()
    assert not fetched(store, [1, 2]).any(), "of an earlier server it knows no times"
    filled(before, store, [1, 2], 10.0)
    filled(before, store, [3], 11.0)
    filled(before, store, [1], 12.0)
    before.forget(11.5)
    make_fills("a").look()
    assert fetched(store, [1, 2, 3]).tolist() == [False, True, True]


def test_of_a_server_that_is_gone_any_other_takes_it_back(store, make_fills, monkeypatch) -> None:
    gone, other = make_fills("a"), make_fills("b")
    for fills in (gone, other):
        fills.look()
    monkeypatch.setattr(redis_fills, "_ALIVE_S", 0.001)
    filled(gone, store, KEYS, 10.0)

    def taken_back() -> bool:
        other.look()
        return not fetched(store, KEYS).any()

    wait_until(taken_back, 30.0)
    put(store, KEYS)
    other.look()
    assert fetched(store, KEYS).all(), "it is taken back once"


def test_a_server_without_the_table_leaves_it_to_others(store, make_fills, open_redis, redis_server) -> None:
    gone = make_fills("a")
    filled(gone, store, [1], 10.0)
    fewer = open_redis(redis_server, dims={"items": store.dims["items"]})
    make_fills("a", fewer).look()
    assert fetched(store, [1]).all()
    make_fills("a").look()
    assert not fetched(store, [1]).any()


def test_what_cannot_be_noted_is_told(open_redis, redis) -> None:
    fills = RedisFills(open_redis(redis), "content", "a")
    redis.kill()
    for call in (fills.look, lambda: fills.note([("users", KEYS)], 1.0)):
        with pytest.raises(StoreError):
            call()
    fills.forget(1.0)
    redis.start()
    fills.look()
