"""Which rows a table in Redis loses when one of its partitions is full."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.layout import Progress
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.redis_stores import NAMESPACES, all_keys, fetched, put


def filled(open_redis, redis_server, policy, margin=100, target=0.5, partitions=1):
    options = VolatileOptions(partitions, margin, policy, target)
    store = open_redis(redis_server, options)
    put(store, np.arange(margin))
    return store


def test_up_to_the_margin_all_stay(open_redis, redis_server):
    store = filled(open_redis, redis_server, OverflowPolicy.EVICT_OLDEST)
    assert store.size("users") == 100
    put(store, np.arange(100), add=1.0)  # replaced, not more
    assert fetched(store, np.arange(100), add=1.0).all()


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_beyond_it_the_target_is_left(open_redis, redis_server, policy):
    store = filled(open_redis, redis_server, policy)
    put(store, [1000])
    kept = all_keys(store)
    assert len(kept) == store.size("users") == 50
    assert fetched(store, kept).all()


def test_the_oldest_leave(open_redis, redis_server):
    store = filled(open_redis, redis_server, OverflowPolicy.EVICT_OLDEST)
    store.touch([("users", np.arange(0, 98, 2))])
    put(store, [1000])
    assert all_keys(store).tolist() == [*range(0, 98, 2), 1000]


def test_replaced_rows_count_as_new(open_redis, redis_server):
    store = filled(open_redis, redis_server, OverflowPolicy.EVICT_OLDEST)
    put(store, np.arange(49))
    put(store, [1000])
    assert all_keys(store).tolist() == [*range(49), 1000]


def test_the_least_used_leave(open_redis, redis_server):
    store = filled(open_redis, redis_server, OverflowPolicy.EVICT_LEAST_USED)
    for _ in range(3):
        store.touch([("users", np.arange(20))])
    store.touch([("users", np.repeat(np.arange(20, 40), 4))])
    store.touch([("users", np.arange(40, 80))])
    store.touch([("users", np.arange(40, 50))])
    put(store, np.arange(40), add=1.0)  # replacing leaves the count as it is
    put(store, np.arange(40))
    put(store, [1000])
    assert all_keys(store).tolist() == list(range(50))


def test_chance_evicts_any(open_redis, redis_server):
    store = filled(open_redis, redis_server, OverflowPolicy.EVICT_RANDOM)
    put(store, [1000])
    kept = all_keys(store)
    assert 5 < np.count_nonzero(kept < 50) < 45


def test_each_partition_for_itself(open_redis, redis_server):
    store = open_redis(redis_server, VolatileOptions(4, 50, OverflowPolicy.EVICT_OLDEST, 0.5))
    keys = np.arange(1000)
    by_partition = [keys[key_partitions(keys, 4) == part] for part in range(4)]
    for own in by_partition[1:]:
        put(store, own[:50])
    put(store, by_partition[0][:51])
    assert [fetched(store, own).sum() for own in by_partition] == [25, 50, 50, 50]


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_many_rows_leave_in_steps(open_redis, redis_server, policy):
    store = open_redis(redis_server, VolatileOptions(2, 4000, policy, 0.25))
    put(store, np.arange(12_000))
    assert store.size("users") == 2000


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_the_state_is_no_row_and_stays(open_redis, redis_server, policy):
    store = open_redis(redis_server, VolatileOptions(1, 40, policy, 0.5), namespace=f"kept-{policy}")
    store.begin(Progress.FILLED)
    assert (store.size("users"), all_keys(store).size) == (0, 0)
    put(store, np.arange(40))
    assert store.size("users") == 40
    for key in range(1000, 1400):
        put(store, [key])
        assert 20 <= store.size("users") == all_keys(store).size <= 40
    with redis_server.client() as client:  # so that chance decides
        client.delete(f"hebe2:{{kept-{policy}/users/0.0}}:times", f"hebe2:{{kept-{policy}/users/0.0}}:counts")
    put(store, np.arange(41))
    assert 20 <= store.size("users") <= 40
    assert [state.progress for state in store.states()["users"]] == [Progress.FILLED]


def test_a_margin_of_one(open_redis, redis_server):
    store = open_redis(redis_server, VolatileOptions(1, 1, OverflowPolicy.EVICT_OLDEST, 0.1))
    put(store, np.arange(5))
    put(store, [7])
    assert all_keys(store).tolist() == [7]


def test_rows_of_which_no_access_is_known_can_leave(open_redis, redis_server):
    store = open_redis(redis_server, VolatileOptions(1, 100, OverflowPolicy.EVICT_OLDEST, 0.5), namespace="unknown")
    put(store, np.arange(100))
    with redis_server.client() as client:
        [name] = client.scan_iter("hebe2:{unknown/users/0.*}:times")
        client.delete(name)
        client.zadd(name, {b"no such": 1, b"nor that": 2})
    put(store, [1000])
    assert store.size("users") == 50


@pytest.mark.parametrize("policy", [OverflowPolicy.EVICT_OLDEST, OverflowPolicy.EVICT_LEAST_USED])
def test_touching_brings_nothing_back(open_redis, redis_server, policy):
    store = open_redis(redis_server, VolatileOptions(1, overflow_policy=policy), namespace=f"gone-{policy}")
    put(store, [1, 2])
    store.delete("users", np.array([1, 3]))
    store.touch([("users", np.array([1, 2, 3]))])
    assert all_keys(store).tolist() == [2]
    with redis_server.client() as client:
        [name] = client.scan_iter(f"hebe2:{{gone-{policy}/users/0.*}}:*s", _type="zset")
        assert client.zrange(name, 0, -1) == [(2).to_bytes(8, "little")]


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_servers_that_evict_at_the_same_time_do_no_harm(open_redis, redis_server, policy):
    options, namespace = VolatileOptions(2, 1000, policy, 0.6), next(NAMESPACES)
    stores = [open_redis(redis_server, options, namespace=namespace) for _ in range(4)]

    def fill(number):
        rng = np.random.default_rng(number)
        for _ in range(20):
            keys = rng.integers(0, 50_000, 400)
            put(stores[number], keys)
            stores[number].touch([("users", keys)])
            fetched(stores[number], keys)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, range(4)))
    kept = all_keys(stores[0])
    assert len(kept) == stores[0].size("users")
    assert 2 * 600 <= len(kept) <= 2 * 1000
    assert fetched(stores[1], kept).all()
