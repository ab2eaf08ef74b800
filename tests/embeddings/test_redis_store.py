import contextlib
import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.redis_connection import RedisAccess
from hebe.embeddings.redis_nodes import RedisNodes
from hebe.embeddings.redis_store import RedisStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.volatile_options import OverflowPolicy, VolatileOptions
from hebe.kernels.xxh64 import key_partitions

from ..redis_servers import RedisCluster, RedisServer, make_certificates, wait_until
from .store_conformance import TABLES
from .volatile_conformance import VolatileConformance

PATIENT = RedisAccess(timeout_s=30.0)
"""For what must work on a machine that is busy with something else."""

IMPATIENT = RedisAccess(timeout_s=0.3)
FOUR = VolatileOptions(4)
NAMESPACES = (f"model-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server():
    with RedisServer(unix_socket=True) as server:
        yield server


@pytest.fixture(scope="module")
def cluster():
    with RedisCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def opened():
    """Opens stores, and closes them after the test."""
    with contextlib.ExitStack() as stack:

        def opened(addresses, options=FOUR, *, dims=TABLES, namespace=None, access=PATIENT, **more):
            address = getattr(addresses, "address", None) or getattr(addresses, "addresses", addresses)
            namespace = namespace or next(NAMESPACES)
            store = RedisStore(dims, address, options, namespace=namespace, access=access, **more)
            return stack.enter_context(contextlib.closing(store))

        yield opened


def rows_of(keys, dim=3, add=0.0):
    """A row that tells its key."""
    return (np.asarray(keys)[:, None] + np.arange(dim) / 8 + add).astype(np.float32)


def fetched(store, keys, table="users", add=0.0):
    """Which of `keys` are there; their rows are as `rows_of` made them."""
    keys = np.asarray(keys)
    rows, found = np.full((len(keys), store.dims[table]), np.nan, np.float32), np.zeros(len(keys), np.bool_)
    assert store.query(table, keys, rows, found) == found.sum()
    assert np.array_equal(rows[found], rows_of(keys[found], store.dims[table], add))
    assert np.isnan(rows[~found]).all()
    return found


def put(store, keys, table="users", add=0.0):
    store.insert(table, np.asarray(keys), rows_of(keys, store.dims[table], add))


def both(keys):
    """A call for these keys of both tables: table names, and arrays by name; rows tell their key."""
    count = len(keys)
    rows = np.concatenate([rows_of(keys, TABLES[table]).reshape(-1) for table in ("users", "items")])
    starts, bases = np.array([0, count, 2 * count]), np.array([0, 3 * count, 4 * count])
    return ("users", "items"), {"keys": np.tile(keys, 2), "starts": starts, "rows": rows, "bases": bases}


def insert_both(store, keys):
    tables, arrays = both(keys)
    store.insert_tables(tables, **arrays, chosen=np.ones(2 * len(keys), np.bool_))


def fill_both(store, keys):
    """Which are there of both tables, one after the other; their rows are as `both` made them."""
    tables, arrays = both(keys)
    expected = arrays["rows"].copy()
    arrays["rows"][:] = np.nan
    wanted, found = np.ones(2 * len(keys), np.bool_), np.zeros(2 * len(keys), np.bool_)
    assert store.fill_tables(tables, **arrays, wanted=wanted, found=found) == found.sum()
    filled = np.concatenate([np.repeat(found[: len(keys)], 3), found[len(keys) :]])
    assert np.array_equal(arrays["rows"][filled], expected[filled])
    return found


def all_keys(store, table="users"):
    return np.sort(np.concatenate([np.empty(0, np.int64), *store.dump_keys(table, 1000)]))


class TestOnOneInstance(VolatileConformance):
    @pytest.fixture(params=list(OverflowPolicy))
    def make_store(self, request, opened, server):
        return lambda: opened(server, VolatileOptions(4, overflow_policy=request.param))


class TestOnACluster(VolatileConformance):
    @pytest.fixture
    def make_store(self, opened, cluster):
        return lambda: opened(cluster, VolatileOptions(9, overflow_policy=OverflowPolicy.EVICT_LEAST_USED))


class TestInSmallExchanges(VolatileConformance):
    @pytest.fixture
    def make_store(self, opened, server):
        return lambda: opened(server, VolatileOptions(300), max_batch_size=1000)


@pytest.mark.parametrize("dim", [1, 1024, 100_000])
def test_dims(opened, server, dim):
    store = opened(server, dims={"users": dim})
    keys = np.arange(-50, 250 if dim < 100_000 else -20)
    put(store, keys)
    assert fetched(store, keys[::-1]).all()


def test_it_lies_in_redis_as_the_document_says(opened, server):
    options = VolatileOptions(2, overflow_policy=OverflowPolicy.EVICT_OLDEST)
    store = opened(server, options, namespace="ctr {v1}", dims={"users/}x": 3})
    before_s = time.time()
    put(store, [5], "users/}x")
    place = key_partitions(np.array([5]), 2)[0]
    with server.client() as client:
        names = sorted(client.scan_iter(f"hebe:{{ctr%20%7Bv1%7D/users%2F%7Dx/{place}.*"))
        assert [name.rpartition(b":")[2] for name in names] == [b"layout", b"rows", b"times"]
        assert client.get(names[0]) == b"hebe-1 dim=3 num_partitions=2 overflow_policy=evict_oldest"
        key = (5).to_bytes(8, "little")
        assert client.hgetall(names[1]) == {key: rows_of([5]).tobytes()}
        assert before_s <= client.zscore(names[2], key) / 1e6 <= time.time()


def test_stores_of_a_namespace_share_rows_and_others_do_not(opened, server):
    first, second, other = opened(server, namespace="a"), opened(server, namespace="a"), opened(server, namespace="b")
    put(first, [1, 2])
    assert fetched(second, [1, 2, 3]).tolist() == [True, True, False]
    assert other.size("users") == 0


@pytest.mark.parametrize(
    ("dims", "options", "there"),
    [
        ({"users": 4}, FOUR, "dim=3 .*, not as hebe-1 dim=4 |has a row of 12 bytes, where its dim needs 16"),
        ({"users": 3}, VolatileOptions(5), "num_partitions=4 .*, not as .* num_partitions=5"),
        ({"users": 3}, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), "random, not as .*oldest"),
    ],
)
def test_a_store_of_another_layout_is_refused_and_harms_nothing(opened, server, dims, options, there):
    namespace = next(NAMESPACES)
    first = opened(server, namespace=namespace)
    keys = np.arange(200)
    put(first, keys)
    other = opened(server, options, dims=dims, namespace=namespace)
    rows = np.zeros((200, dims["users"]), np.float32)
    for call in (
        lambda: other.insert("users", keys, rows),
        lambda: other.update("users", keys, rows),
        lambda: other.query("users", keys, rows, np.zeros(200, np.bool_)),
    ):
        with pytest.raises(StoreError, match=there):
            call()
    assert fetched(first, keys).all()


def test_a_row_of_another_length_is_an_error_and_the_store_goes_on(opened, server):
    store = opened(server, VolatileOptions(1), namespace="spoilt")
    put(store, [1, 2, 3])
    with server.client() as client:
        [name] = client.scan_iter("hebe:{spoilt/users/0.*}:rows")
        client.hset(name, (2).to_bytes(8, "little"), b"abc")
        with pytest.raises(StoreError, match="table users has a row of 3 bytes, where its dim needs 12"):
            fetched(store, [1, 2, 3])
        assert fetched(store, [1, 3]).all()
        client.set(name, b"no hash")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            fetched(store, [1])


def test_arguments_that_do_not_fit(opened, server):
    store = opened(server)
    keys, found = np.arange(3), np.zeros(3, np.bool_)
    with pytest.raises(StoreError, match=r"rows \[2, 3\] for 3 keys of table users: dim is 3"):
        store.insert("users", keys, np.zeros((2, 3), np.float32))
    with pytest.raises(StoreError, match=r"rows \[3, 4\] for 3 keys"):
        store.update("users", keys, np.zeros((3, 4), np.float32))
    for rows in (np.zeros((3, 3)), np.zeros((3, 6), np.float32)[:, ::2]):
        with pytest.raises(StoreError, match="C-contiguous float32"):
            store.query("users", keys, rows, found)
    with pytest.raises(StoreError, match="batch_size is 0: must be at least 1"):
        next(store.dump_keys("users", 0))
    for more in ({"max_batch_size": 0}, {"dims": {"users": 0}}):
        with pytest.raises(ValueError, match="must be at least 1"):
            opened(server, **more)


def test_a_key_that_comes_again_within_a_batch_of_several_exchanges(opened, server):
    store = opened(server, max_batch_size=3)
    keys = np.tile(np.arange(4), 5)
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    store.insert("users", keys, rows)
    got, found = np.zeros_like(rows), np.zeros(20, np.bool_)
    store.query("users", keys, got, found)
    assert np.array_equal(got, rows[16:][keys])
    assert store.update("users", keys, rows[::-1]) == 4
    store.query("users", keys, got, found)
    assert np.array_equal(got, rows[::-1][16:][keys])
    assert store.delete("users", keys) == 4


@pytest.mark.parametrize("most_keys", [65536, 30])
def test_all_tables_cross_in_one_exchange_that_fit(opened, server, monkeypatch, most_keys):
    store = opened(server, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), max_batch_size=most_keys)
    exchanges, execute = [], RedisNodes.execute

    def counted(nodes, commands):
        exchanges.append(len(commands))
        return execute(nodes, commands)

    monkeypatch.setattr(RedisNodes, "execute", counted)
    keys, times = np.arange(100), 1 if most_keys > 200 else 7
    insert_both(store, keys)
    assert len(exchanges) == 2 * times, "layouts, then rows"
    exchanges.clear()
    assert fill_both(store, keys).all()
    assert len(exchanges) == times
    exchanges.clear()
    store.touch([("users", keys), ("items", keys)])
    assert len(exchanges) == times
    exchanges.clear()
    assert fetched(store, keys).all()
    assert len(exchanges) == (1 if times == 1 else 4)


class TestEviction:
    def filled(self, opened, server, policy, margin=100, target=0.5, partitions=1):
        options = VolatileOptions(partitions, margin, policy, target)
        store = opened(server, options)
        put(store, np.arange(margin))
        return store

    def test_up_to_the_margin_all_stay(self, opened, server):
        store = self.filled(opened, server, OverflowPolicy.EVICT_OLDEST)
        assert store.size("users") == 100
        put(store, np.arange(100), add=1.0)  # replaced, not more
        assert fetched(store, np.arange(100), add=1.0).all()

    @pytest.mark.parametrize("policy", OverflowPolicy)
    def test_beyond_it_the_target_is_left(self, opened, server, policy):
        store = self.filled(opened, server, policy)
        put(store, [1000])
        kept = all_keys(store)
        assert len(kept) == store.size("users") == 50
        assert fetched(store, kept).all()

    def test_the_oldest_leave(self, opened, server):
        store = self.filled(opened, server, OverflowPolicy.EVICT_OLDEST)
        store.touch([("users", np.arange(0, 98, 2))])
        put(store, [1000])
        assert all_keys(store).tolist() == [*range(0, 98, 2), 1000]

    def test_replaced_rows_count_as_new(self, opened, server):
        store = self.filled(opened, server, OverflowPolicy.EVICT_OLDEST)
        put(store, np.arange(49))
        put(store, [1000])
        assert all_keys(store).tolist() == [*range(49), 1000]

    def test_the_least_used_leave(self, opened, server):
        store = self.filled(opened, server, OverflowPolicy.EVICT_LEAST_USED)
        for _ in range(3):
            store.touch([("users", np.arange(20))])
        store.touch([("users", np.repeat(np.arange(20, 40), 4))])
        store.touch([("users", np.arange(40, 80))])
        store.touch([("users", np.arange(40, 50))])
        put(store, np.arange(40), add=1.0)  # replacing leaves the count as it is
        put(store, np.arange(40))
        put(store, [1000])
        assert all_keys(store).tolist() == list(range(50))

    def test_chance_evicts_any(self, opened, server):
        store = self.filled(opened, server, OverflowPolicy.EVICT_RANDOM)
        put(store, [1000])
        kept = all_keys(store)
        assert 5 < np.count_nonzero(kept < 50) < 45

    def test_each_partition_for_itself(self, opened, server):
        store = opened(server, VolatileOptions(4, 50, OverflowPolicy.EVICT_OLDEST, 0.5))
        keys = np.arange(1000)
        by_partition = [keys[key_partitions(keys, 4) == part] for part in range(4)]
        for own in by_partition[1:]:
            put(store, own[:50])
        put(store, by_partition[0][:51])
        assert [fetched(store, own).sum() for own in by_partition] == [25, 50, 50, 50]

    @pytest.mark.parametrize("policy", OverflowPolicy)
    def test_many_rows_leave_in_steps(self, opened, server, policy):
        store = opened(server, VolatileOptions(2, 4000, policy, 0.25))
        put(store, np.arange(12_000))
        assert store.size("users") == 2000

    def test_a_margin_of_one(self, opened, server):
        store = opened(server, VolatileOptions(1, 1, OverflowPolicy.EVICT_OLDEST, 0.1))
        put(store, np.arange(5))
        put(store, [7])
        assert all_keys(store).tolist() == [7]

    def test_rows_of_which_no_access_is_known_can_leave(self, opened, server):
        store = opened(server, VolatileOptions(1, 100, OverflowPolicy.EVICT_OLDEST, 0.5), namespace="unknown")
        put(store, np.arange(100))
        with server.client() as client:
            [name] = client.scan_iter("hebe:{unknown/users/0.*}:times")
            client.delete(name)
            client.zadd(name, {b"no such": 1, b"nor that": 2})
        put(store, [1000])
        assert store.size("users") == 50

    @pytest.mark.parametrize("policy", [OverflowPolicy.EVICT_OLDEST, OverflowPolicy.EVICT_LEAST_USED])
    def test_touching_brings_nothing_back(self, opened, server, policy):
        store = opened(server, VolatileOptions(1, overflow_policy=policy), namespace=f"gone-{policy}")
        put(store, [1, 2])
        store.delete("users", np.array([1, 3]))
        store.touch([("users", np.array([1, 2, 3]))])
        assert all_keys(store).tolist() == [2]
        with server.client() as client:
            [name] = client.scan_iter(f"hebe:{{gone-{policy}/users/0.*}}:*s", _type="zset")
            assert client.zrange(name, 0, -1) == [(2).to_bytes(8, "little")]

    @pytest.mark.parametrize("policy", OverflowPolicy)
    def test_servers_that_evict_at_the_same_time_do_no_harm(self, opened, server, policy):
        options, namespace = VolatileOptions(2, 1000, policy, 0.6), next(NAMESPACES)
        stores = [opened(server, options, namespace=namespace) for _ in range(4)]

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


def test_threads_share_the_connections(opened):
    with RedisServer() as server:
        store = opened(server, access=RedisAccess(timeout_s=30.0, num_node_connections=3))

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


def test_all_keys_are_told_once_while_others_write(opened, server):
    store = opened(server)
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


class TestAccess:
    def tls(self, files, **fields):
        given = {
            "timeout_s": 30.0,
            "enable_tls": True,
            "tls_ca_certificate": files.authority,
            "tls_client_certificate": files.client_certificate,
            "tls_client_key": files.client_key,
        }
        return RedisAccess(**{**given, **fields})

    def test_tls_user_and_password(self, opened, files):
        with RedisServer(tls=files, users={"hebe": "geheim"}) as server:
            access = self.tls(files, user_name="hebe", password="geheim")
            store = opened(server, access=access)
            keys = np.arange(3000)
            put(store, keys)
            assert fetched(store, keys).all()
            name = self.tls(files, user_name="hebe", password="geheim", tls_server_name_identification="localhost")
            assert opened(server, access=name).size("users") == 0

    def test_tls_that_does_not_fit(self, opened, files, tmp_path):
        others = make_certificates(tmp_path)
        with RedisServer(tls=files) as server:
            for fields, expected, message in (
                ({"tls_ca_certificate": others.authority}, StoreError, "certificate is not accepted"),
                (
                    {"tls_server_name_identification": "else.where"},
                    StoreError,
                    "certificate is not accepted: .*else.where",
                ),
                ({"tls_client_certificate": None, "tls_client_key": None}, StoreUnavailable, "Redis 127.0.0.1"),
                ({"enable_tls": False}, StoreError, "Redis 127.0.0.1"),
            ):
                with pytest.raises(expected, match=message):
                    opened(server, access=self.tls(files, **fields)).size("users")

    def test_a_server_without_tls_where_it_is_asked_for(self, opened, files):
        with RedisServer() as plain, pytest.raises(StoreUnavailable, match=r"has not answered within 0.3 s"):
            opened(plain, access=self.tls(files, timeout_s=0.3)).size("users")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"user_name": "hebe", "password": "wrong-one"}, "WRONGPASS"),
            ({"user_name": "nobody", "password": "geheim"}, "WRONGPASS"),
            ({"password": "geheim"}, "WRONGPASS"),
            ({}, "NOAUTH"),
        ],
    )
    def test_refused_users(self, opened, fields, code):
        with RedisServer(users={"hebe": "geheim"}) as server:
            store = opened(server, access=RedisAccess(timeout_s=30.0, **fields))
            with pytest.raises(StoreError, match=code) as raised:
                put(store, [1])
            assert not isinstance(raised.value, StoreUnavailable)
            for secret in ("geheim", "wrong-one"):
                assert secret not in f"{raised.value}{raised.value.client_message}"

    def test_a_user_who_may_not_write(self, opened):
        with RedisServer(users={"hebe": "a"}) as server:
            with server.client() as client:
                client.acl_setuser("reader", True, passwords="+b", keys="*", commands=["+@read", "+cluster|slots"])
            store = opened(server, access=RedisAccess(timeout_s=30.0, user_name="reader", password="b"))
            assert not fetched(store, [1]).any()
            with pytest.raises(StoreError, match="NOPERM"):
                put(store, [1])

    def test_a_password_of_the_default_user(self, opened):
        with RedisServer(users={"default": "geheim"}) as server:
            store = opened(server, access=RedisAccess(timeout_s=30.0, password="geheim"))
            put(store, [1])
            assert fetched(store, [1]).all()


class TestFaults:
    @pytest.fixture
    def server(self):
        with RedisServer() as server:
            yield server

    def calls(self, store):
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

    def store(self, opened, server, **more):
        return opened(server, VolatileOptions(4, overflow_policy=OverflowPolicy.EVICT_OLDEST), **more)

    def test_paused(self, opened, server):
        put(self.store(opened, server, namespace="paused"), np.arange(100))
        hasty = self.store(opened, server, access=IMPATIENT, namespace="paused")
        server.pause()
        for call in self.calls(hasty):
            with pytest.raises(StoreUnavailable, match=r"has not answered within 0.3 s"):
                call()
        server.resume()
        assert heals(lambda: fetched(hasty, np.arange(100)).all())

    def test_killed_and_restarted_empty(self, opened, server):
        store = self.store(opened, server)
        put(store, np.arange(100))
        server.kill()
        for call in self.calls(store):
            with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*refused"):
                call()
        server.start()
        assert not fetched(store, np.arange(100)).any()
        put(store, np.arange(50))
        assert fetched(store, np.arange(100)).sum() == 50

    def test_restarted_between_two_calls(self, opened, server):
        store = self.store(opened, server)
        put(store, np.arange(100))
        server.restart()
        assert store.size("users") == 0
        put(store, np.arange(100))
        assert fetched(store, np.arange(100)).all()

    def test_killed_under_load(self, opened, server):
        """Every answer is right or an error, and all threads come through."""
        store = self.store(opened, server, access=RedisAccess(timeout_s=2.0, num_node_connections=2))
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

    def test_not_there_from_the_beginning(self, opened, server):
        server.kill()
        store = self.store(opened, server)
        with pytest.raises(StoreUnavailable):
            store.size("users")
        server.start()
        assert store.size("users") == 0

    def test_a_socket_that_is_not_there(self, opened, tmp_path):
        with pytest.raises(StoreUnavailable, match=f"Redis unix:{tmp_path}/none cannot be reached: .*No such file"):
            self.store(opened, f"unix:{tmp_path}/none").size("users")

    def test_a_name_that_is_not_known(self, opened):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            self.store(opened, "nowhere.invalid:6379").size("users")

    def test_no_memory_left(self, opened, server):
        store = self.store(opened, server)
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

    def test_became_a_replica(self, opened, server):
        store = self.store(opened, server)
        put(store, np.arange(10))
        with server.client() as client, RedisServer() as master:
            client.replicaof("127.0.0.1", master.port)
            with pytest.raises(StoreUnavailable, match="READONLY"):
                put(store, [1000])
            client.replicaof("NO", "ONE")
        put(store, [1000])

    def test_several_servers_that_are_no_cluster(self, opened, server):
        with RedisServer() as other, pytest.raises(StoreError, match="is no cluster: give its address alone"):
            self.store(opened, [server.address, other.address]).size("users")


class TestClusterFaults:
    def test_partitions_are_spread_over_the_nodes(self, opened, cluster):
        store = opened(cluster, VolatileOptions(12), namespace="spread")
        put(store, np.arange(1000))
        held = [node.client().keys("hebe:{spread/*:rows") for node in cluster.masters]
        assert [len(names) for names in held] == [4, 4, 4]

    def test_one_node_suffices_to_find_the_others(self, opened, cluster):
        for address in cluster.addresses:
            store = opened(address)
            put(store, np.arange(100))
            assert fetched(store, np.arange(100)).all()

    def test_a_seed_that_is_gone_or_silent(self, opened, cluster):
        with RedisServer() as gone, RedisServer() as silent:
            gone.kill()
            silent.pause()
            store = opened([gone.address, silent.address, *cluster.addresses], access=RedisAccess(timeout_s=4.0))
            put(store, np.arange(100))
            assert fetched(store, np.arange(100)).all()

    def test_a_slot_that_moves_while_it_is_used(self, opened, cluster):
        """Before, in the middle and after: ASK, TRYAGAIN and MOVED are followed."""
        options = VolatileOptions(1, overflow_policy=OverflowPolicy.EVICT_OLDEST)
        store = opened(cluster, options, namespace="moving", access=RedisAccess(timeout_s=4.0))
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

        holder = next(node for node in cluster.masters if node.client().keys("hebe:{moving/*"))
        taker = next(node for node in cluster.masters if node is not holder)
        with holder.client() as source, taker.client() as target:
            names = source.keys("hebe:{moving/*")
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

    def test_a_paused_node_costs_no_more_than_the_time_out(self, opened, cluster):
        store = opened(cluster, VolatileOptions(6), access=IMPATIENT)
        assert heals(lambda: put(store, np.arange(600)) is None)
        node = cluster.masters[1]
        node.pause()
        with pytest.raises(StoreUnavailable, match=r"Redis 127\.0\.0\.1"):
            fetched(store, np.arange(600))
        node.resume()
        assert heals(lambda: fetched(store, np.arange(600)).all())
        cluster.wait_until_whole()

    def test_a_node_is_killed_and_its_replica_takes_over(self, opened, cluster):
        store = opened(cluster, VolatileOptions(6), access=RedisAccess(timeout_s=2.0))
        keys = np.arange(3000)
        put(store, keys)
        with contextlib.ExitStack() as stack:
            for node in cluster.masters:
                assert stack.enter_context(node.client()).wait(1, 30_000) == 1  # the replica has it
        done, outcomes = threading.Event(), Counter()

        def read():
            while not done.is_set():
                try:
                    assert fetched(store, keys).all()
                    outcomes["answered"] += 1
                except StoreUnavailable:
                    outcomes["unavailable"] += 1

        killed = cluster.masters[0]
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
        cluster.wait_until_whole()
        assert heals(lambda: fetched(store, keys, add=1.0).all())

    def test_user_password_and_tls_hold_for_all_nodes(self, opened, files):
        with RedisCluster(tls=files, users={"hebe": "geheim"}) as cluster:
            access = RedisAccess(
                user_name="hebe",
                password="geheim",
                timeout_s=30.0,
                enable_tls=True,
                tls_ca_certificate=files.authority,
                tls_client_certificate=files.client_certificate,
                tls_client_key=files.client_key,
            )
            store = opened(cluster.addresses[:1], VolatileOptions(6), access=access)
            put(store, np.arange(1000))
            assert fetched(store, np.arange(1000)).all()


def heals(holds, timeout_s=60.0):
    """Whether `holds()` within the time, `StoreUnavailable` aside."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(StoreUnavailable):
            if holds():
                return True
        time.sleep(0.05)
    return False
