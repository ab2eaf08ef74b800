import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.nodes import RedisNodes
from hebe.embeddings.store import StoreError
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.redis_stores import FOUR, NAMESPACES, fetched, fill_both, insert_both, put, rows_of
from tests.embeddings.stores.volatile_conformance import VolatileConformance
from tests.servers.redis_servers import RedisServer, wait_until


class TestOnOneInstance(VolatileConformance):
    @pytest.fixture(params=list(OverflowPolicy))
    def make_store(self, request, open_redis, redis_server):
        return lambda: open_redis(redis_server, VolatileOptions(4, overflow_policy=request.param))


class TestOnACluster(VolatileConformance):
    @pytest.fixture
    def make_store(self, open_redis, redis_cluster):
        return lambda: open_redis(redis_cluster, VolatileOptions(9, overflow_policy=OverflowPolicy.EVICT_LEAST_USED))


class TestInSmallExchanges(VolatileConformance):
    @pytest.fixture
    def make_store(self, open_redis, redis_server):
        return lambda: open_redis(redis_server, VolatileOptions(300), max_batch_size=1000)


@pytest.mark.parametrize("dim", [1, 1024, 100_000])
def test_dims(open_redis, redis_server, dim):
    store = open_redis(redis_server, dims={"users": dim})
    keys = np.arange(-50, 250 if dim < 100_000 else -20)
    put(store, keys)
    assert fetched(store, keys[::-1].copy()).all()


def test_it_lies_in_redis_as_the_document_says(open_redis, redis_server):
    options = VolatileOptions(2, overflow_policy=OverflowPolicy.EVICT_OLDEST)
    store = open_redis(redis_server, options, namespace="ctr {v1}", dims={"users/}x": 3})
    before_s = time.time()
    put(store, [5], "users/}x")
    place = key_partitions(np.array([5]), 2)[0]
    with redis_server.client() as client:
        names = sorted(client.scan_iter(f"hebe2:{{ctr%20%7Bv1%7D/users%2F%7Dx/{place}.*"))
        assert [name.rpartition(b":")[2] for name in names] == [b"rows", b"times"]
        key = (5).to_bytes(8, "little")
        fields = client.hgetall(names[0])
        assert fields.keys() == {key, b"state"}
        assert fields[b"state"] == b"hebe-2 dim=3 num_partitions=2 overflow_policy=evict_oldest\x002" + bytes(8)
        assert fields[key][:8] == (-1).to_bytes(8, "little", signed=True), "no update has reached it"
        assert fields[key][16:] == rows_of([5]).tobytes()
        assert before_s <= client.zscore(names[1], key) / 1e6 <= time.time()


def test_stores_of_a_namespace_share_rows_and_others_do_not(open_redis, redis_server):
    first, second, other = (
        open_redis(redis_server, namespace="a"),
        open_redis(redis_server, namespace="a"),
        open_redis(redis_server, namespace="b"),
    )
    put(first, [1, 2])
    assert fetched(second, [1, 2, 3]).tolist() == [True, True, False]
    assert other.size("users") == 0


@pytest.mark.parametrize(
    ("dims", "options", "there"),
    [
        ({"users": 4}, FOUR, "dim=3 .*, not as hebe-2 dim=4 "),
        ({"users": 3}, VolatileOptions(5), "num_partitions=4 .*, not as .* num_partitions=5"),
        ({"users": 3}, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), "random, not as .*oldest"),
    ],
)
def test_a_store_of_another_layout_is_refused_and_harms_nothing(open_redis, redis_server, dims, options, there):
    namespace = next(NAMESPACES)
    first = open_redis(redis_server, namespace=namespace)
    keys = np.arange(200)
    put(first, keys)
    other = open_redis(redis_server, options, dims=dims, namespace=namespace)
    rows = np.zeros((200, dims["users"]), np.float32)
    for call in (
        lambda: other.insert("users", keys, rows),
        lambda: other.update("users", keys, rows),
        lambda: other.query("users", keys, rows, np.zeros(200, np.bool_)),
    ):
        with pytest.raises(StoreError, match=there):
            call()
    assert fetched(first, keys).all()


def test_what_is_no_hash_is_an_error(open_redis, redis_server):
    store = open_redis(redis_server, VolatileOptions(1), namespace="spoilt")
    with redis_server.client() as client:
        client.set(store.table("users").partitions[0].rows, b"no hash")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        fetched(store, [1])


def test_arguments_that_do_not_fit(open_redis, redis_server):
    for more in ({"max_batch_size": 0}, {"dims": {"users": 0}}):
        with pytest.raises(ValueError, match="must be at least 1"):
            open_redis(redis_server, **more)


def test_a_key_that_comes_again_within_a_batch_of_several_exchanges(open_redis, redis_server):
    store = open_redis(redis_server, max_batch_size=3)
    keys = np.tile(np.arange(4), 5)
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    store.insert("users", keys, rows)
    got, found = np.zeros_like(rows), np.zeros(20, np.bool_)
    store.query("users", keys, got, found)
    assert np.array_equal(got, rows[16:][keys])
    assert store.update("users", keys, rows[::-1].copy()) == 4
    store.query("users", keys, got, found)
    assert np.array_equal(got, rows[::-1][16:][keys])
    assert store.delete("users", keys) == 4


@pytest.mark.parametrize("most_keys", [65536, 30])
def test_all_tables_cross_in_one_exchange_that_fit(open_redis, redis_server, monkeypatch, most_keys):
    store = open_redis(
        redis_server, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), max_batch_size=most_keys
    )
    exchanges, execute = [], RedisNodes.execute

    def counted(nodes, commands):
        exchanges.append(len(commands))
        return execute(nodes, commands)

    monkeypatch.setattr(RedisNodes, "execute", counted)
    keys, times = np.arange(100), 1 if most_keys > 200 else 7
    insert_both(store, keys)
    assert len(exchanges) == 2 * times, "states, then rows"
    exchanges.clear()
    assert fill_both(store, keys).all()
    assert len(exchanges) == times
    exchanges.clear()
    store.touch([("users", keys), ("items", keys)])
    assert len(exchanges) == times
    exchanges.clear()
    assert fetched(store, keys).all()
    assert len(exchanges) == (1 if times == 1 else 4)


def test_threads_share_the_connections(open_redis):
    with RedisServer() as server:
        store = open_redis(server, access=RedisAccess(timeout_s=30.0, num_node_connections=3))

        def work(number):
            keys = np.arange(500) + 1000 * number
            for _ in range(10):
                put(store, keys)
                assert fetched(store, keys).all()
                assert store.update("users", keys, rows_of(keys)) == 500
                assert store.delete("users", keys) == 500

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        with server.client() as client:
            assert len(client.client_list()) <= 3 + 1
        store.close()
        with server.client() as client:
            wait_until(lambda: len(client.client_list()) == 1, 20.0)


def test_all_keys_are_told_once_while_others_write(open_redis, redis_server):
    store = open_redis(redis_server)
    put(store, np.arange(20_000))
    done = threading.Event()

    def churn():
        number = 0
        while not done.is_set():
            keys = np.arange(100_000, 140_000)
            put(store, keys) if number % 2 == 0 else store.delete("users", keys)  # hashes grow and shrink
            number += 1

    with ThreadPoolExecutor(1) as thread:
        churning = thread.submit(churn)
        for _ in range(5):
            keys = np.concatenate(list(store.dump_keys("users", 300)))
            assert len(keys) == len(np.unique(keys))
            assert np.isin(np.arange(20_000), keys).all()
        done.set()
        churning.result()
