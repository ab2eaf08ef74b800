"""A store in a cluster, of which nodes fail and slots move."""

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.layout import Progress
from hebe.embeddings.store import StoreUnavailable
from tests.embeddings.stores.redis_stores import IMPATIENT, fetched, heals, put, rows_of
from tests.servers.redis_servers import RedisCluster, RedisServer, wait_until


def test_partitions_are_spread_over_the_nodes(open_redis, redis_cluster):
    store = open_redis(redis_cluster, VolatileOptions(12), namespace="spread")
    put(store, np.arange(1000))
    held = [node.client().keys("hebe2:{spread/*:rows") for node in redis_cluster.masters]
    assert [len(names) for names in held] == [4, 4, 4]


def test_rows_that_a_cluster_evicts_by_itself_are_missed_where_redis_is_alone(open_redis, redis_cluster):
    store = open_redis(redis_cluster, VolatileOptions(12), namespace="evicted", alone=True)
    store.begin(Progress.BEGUN)
    put(store, np.arange(1000))
    with pytest.raises(StoreUnavailable):
        fetched(store, np.arange(1000))
    assert store.advance(Progress.FILLED)
    assert store.advance(Progress.SEALED)
    assert fetched(store, np.arange(1000)).all()
    for node in redis_cluster.masters:
        for key in node.client().keys("*evicted/users/7.*:rows"):
            node.client().delete(key)
    with pytest.raises(StoreUnavailable):
        fetched(store, np.arange(1000))
    assert store.incomplete.is_set()
    assert [number for number, state in enumerate(store.states()["users"]) if state is None] == [7]


def test_one_node_suffices_to_find_the_others(open_redis, redis_cluster):
    for address in redis_cluster.addresses:
        store = open_redis(address)
        put(store, np.arange(100))
        assert fetched(store, np.arange(100)).all()


def test_a_seed_that_is_gone_or_silent(open_redis, redis_cluster):
    with RedisServer() as gone, RedisServer() as silent:
        gone.kill()
        silent.pause()
        store = open_redis([gone.address, silent.address, *redis_cluster.addresses], access=RedisAccess(timeout_s=4.0))
        put(store, np.arange(100))
        assert fetched(store, np.arange(100)).all()


def test_a_slot_that_moves_while_it_is_used(open_redis, redis_cluster):
    """Before, in the middle and after: ASK, TRYAGAIN and MOVED are followed."""
    options = VolatileOptions(1, overflow_policy=OverflowPolicy.EVICT_OLDEST)
    store = open_redis(redis_cluster, options, namespace="moving", access=RedisAccess(timeout_s=4.0))
    keys = np.arange(200)
    put(store, keys)

    def works(add):
        put(store, keys[:100], add=add)
        assert fetched(store, keys[:100], add=add).all()
        with contextlib.suppress(StoreUnavailable):  # a script on two keys, one of which has moved
            assert store.update("users", keys[100:], rows_of(keys[100:])) == 100
        store.touch([("users", keys)])
        assert fetched(store, keys[100:]).all()
        assert store.size("users") == 200

    holder = next(node for node in redis_cluster.masters if node.client().keys("hebe2:{moving/*"))
    taker = next(node for node in redis_cluster.masters if node is not holder)
    with holder.client() as source, taker.client() as target:
        names = source.keys("hebe2:{moving/*")
        slot = source.execute_command("CLUSTER KEYSLOT", names[0])
        source_id, target_id = (each.execute_command("CLUSTER MYID").decode() for each in (source, target))
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source_id)
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target_id)
        for number, name in enumerate(sorted(names)):
            works(float(number))
            source.execute_command("MIGRATE", "127.0.0.1", taker.port, name, 0, 10_000)
        works(8.0)
        for client in (target, source):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)
        works(9.0)


def test_a_paused_node_costs_no_more_than_the_time_out(open_redis, redis_cluster):
    store = open_redis(redis_cluster, VolatileOptions(6), access=IMPATIENT)
    assert heals(lambda: put(store, np.arange(600)) is None)
    node = redis_cluster.masters[1]
    node.pause()
    with pytest.raises(StoreUnavailable, match=r"Redis 127\.0\.0\.1"):
        fetched(store, np.arange(600))
    node.resume()
    assert heals(lambda: fetched(store, np.arange(600)).all())
    redis_cluster.wait_until_whole()


def test_a_node_is_killed_and_its_replica_takes_over(open_redis, redis_cluster):
    store = open_redis(redis_cluster, VolatileOptions(6), access=RedisAccess(timeout_s=2.0))
    keys = np.arange(3000)
    put(store, keys)
    with contextlib.ExitStack() as stack:
        for node in redis_cluster.masters:
            assert stack.enter_context(node.client()).wait(1, 30_000) == 1  # the replica has it
    done, outcomes = threading.Event(), Counter()

    def read():
        while not done.is_set():
            try:
                assert fetched(store, keys).all()
                outcomes["answered"] += 1
            except StoreUnavailable:
                outcomes["unavailable"] += 1

    killed = redis_cluster.masters[0]
    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(read) for _ in range(2)]
        try:
            wait_until(lambda: outcomes["answered"] > 2, 60.0)
            killed.kill()
            wait_until(lambda: outcomes["unavailable"] > 0, 60.0)
            answered = outcomes["answered"]
            wait_until(lambda: outcomes["answered"] > answered + 2, 60.0)
        finally:
            done.set()
    for each in reading:
        each.result()
    put(store, keys, add=1.0)
    killed.start()
    redis_cluster.wait_until_whole()
    assert heals(lambda: fetched(store, keys, add=1.0).all())


def test_user_password_and_tls_hold_for_all_nodes(open_redis, tls_files):
    with RedisCluster(tls=tls_files, users={"hebe": "geheim"}) as cluster:
        access = RedisAccess(
            user_name="hebe",
            password="geheim",
            timeout_s=30.0,
            enable_tls=True,
            tls_ca_certificate=tls_files.authority,
            tls_client_certificate=tls_files.client_certificate,
            tls_client_key=tls_files.client_key,
        )
        store = open_redis(cluster.addresses[:1], VolatileOptions(6), access=access)
        put(store, np.arange(1000))
        assert fetched(store, np.arange(1000)).all()
