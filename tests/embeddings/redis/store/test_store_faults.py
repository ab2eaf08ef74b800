"""What a store does while its Redis is away, full or another one than it was."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.redis_stores import IMPATIENT, fetched, fill_both, heals, insert_both, put, rows_of
from tests.servers.redis_servers import RedisServer, wait_until


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


def calls(store):
    keys = np.arange(10)
    return [
        lambda: fetched(store, keys),
        lambda: put(store, keys),
        lambda: store.update("users", keys, rows_of(keys)),
        lambda: store.delete("users", keys),
        lambda: store.touch([("users", keys), ("items", keys)]),
        lambda: fill_both(store, keys),
        lambda: insert_both(store, keys),
        lambda: store.size("users"),
        lambda: list(store.dump_keys("users", 10)),
    ]


def open_store(open_redis, server, **more):
    return open_redis(server, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), **more)


def test_paused(open_redis, server):
    put(open_store(open_redis, server, namespace="paused"), np.arange(100))
    hasty = open_store(open_redis, server, access=IMPATIENT, namespace="paused")
    server.pause()
    for call in calls(hasty):
        with pytest.raises(StoreUnavailable, match=r"has not answered within 0.3 s"):
            call()
    server.resume()
    assert heals(lambda: fetched(hasty, np.arange(100)).all())


def test_killed_and_restarted_empty(open_redis, server):
    store = open_store(open_redis, server)
    put(store, np.arange(100))
    server.kill()
    for call in calls(store):
        with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*refused"):
            call()
    server.start()
    assert not fetched(store, np.arange(100)).any()
    put(store, np.arange(50))
    assert fetched(store, np.arange(100)).sum() == 50


def test_restarted_between_two_calls(open_redis, server):
    store = open_store(open_redis, server)
    put(store, np.arange(100))
    server.restart()
    assert store.size("users") == 0
    put(store, np.arange(100))
    assert fetched(store, np.arange(100)).all()


def test_killed_under_load(open_redis, server):
    """Every answer is right or an error, and all threads come through."""
    store = open_store(open_redis, server, access=RedisAccess(timeout_s=2.0, num_node_connections=2))
    done, outcomes = threading.Event(), Counter()

    def work(number):
        keys = np.arange(2000) + 10_000 * number
        while not done.is_set():
            try:
                put(store, keys)
                fetched(store, keys)
                outcomes["answered"] += 1
            except StoreUnavailable:
                outcomes["unavailable"] += 1

    def more(outcome):
        seen = outcomes[outcome]
        wait_until(lambda: outcomes[outcome] > seen + 3, 60.0)

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, number) for number in range(4)]
        try:
            for _ in range(3):
                more("answered")
                server.kill()
                more("unavailable")
                server.start()
            more("answered")
            server.pause()
            more("unavailable")
            server.resume()
            more("answered")
        finally:
            done.set()
    for each in working:
        each.result()


def test_not_there_from_the_beginning(open_redis, server):
    server.kill()
    store = open_store(open_redis, server)
    with pytest.raises(StoreUnavailable):
        store.size("users")
    server.start()
    assert store.size("users") == 0


def test_a_socket_that_is_not_there(open_redis, tmp_path):
    with pytest.raises(StoreUnavailable, match=f"Redis unix:{tmp_path}/none cannot be reached: .*No such file"):
        open_store(open_redis, f"unix:{tmp_path}/none").size("users")


def test_a_name_that_is_not_known(open_redis):
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_store(open_redis, "nowhere.invalid:6379").size("users")


def test_no_memory_left(open_redis, server):
    store = open_store(open_redis, server)
    put(store, np.arange(100))
    with server.client() as client:
        client.config_set("maxmemory", 1)
        for call in (lambda: put(store, [1000]), lambda: store.update("users", np.arange(3), rows_of(range(3)))):
            with pytest.raises(StoreError, match="has no memory left: raise its maxmemory") as raised:
                call()
            assert not isinstance(raised.value, StoreUnavailable)
        assert fetched(store, np.arange(100)).all()
        client.config_set("maxmemory", 0)
    put(store, [1000])


def test_became_a_replica(open_redis, server):
    store = open_store(open_redis, server)
    put(store, np.arange(10))
    with server.client() as client, RedisServer() as master:
        client.replicaof("127.0.0.1", master.port)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            put(store, [1000])
        client.replicaof("NO", "ONE")
    put(store, [1000])


def test_several_servers_that_are_no_cluster(open_redis, server):
    with RedisServer() as other, pytest.raises(StoreError, match="is no cluster: give its address alone"):
        open_store(open_redis, [server.address, other.address]).size("users")
