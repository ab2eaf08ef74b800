"""Rows that have gone back in a Redis over a level 3: after a restart from a snapshot, after a replica took over."""

import logging

import numpy as np
import pytest

from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.watch import RedisWatch
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.redis_stores import fetched, put
from tests.servers.redis_servers import RedisCluster, RedisServer, wait_until

KEYS = np.arange(200)
TIMEOUT_S = 60.0


@pytest.fixture
def watched(open_redis, redis):
    """Watches, as those of so many servers over the same rows, and how often each has told of rows that went."""
    told: dict[RedisWatch, int] = {}

    def make():
        watch = RedisWatch(open_redis(redis, namespace="content"))
        told[watch] = 0

        def cleared():
            told[watch] += 1

        watch.cleared = cleared
        return watch

    yield make, told
    for watch in told:
        watch.close()


def test_rows_of_an_old_snapshot_are_not_answered(watched, redis):
    make, told = watched
    one, other = make(), make()
    for watch in (one, other):
        watch.look()
        told[watch] = 0
    store = one._store
    put(store, KEYS)
    with redis.client() as client:
        client.save()
    put(store, KEYS, add=1.0)
    redis.kill()
    with pytest.raises(StoreUnavailable):
        one.look()
    redis.start()
    assert fetched(store, KEYS).all(), "they have gone back"
    one.look()
    assert not fetched(store, KEYS).any()
    put(store, KEYS, add=1.0)
    other.look()
    assert fetched(store, KEYS, add=1.0).all(), "they are cleared once"
    assert set(told.values()) == {1}
    for watch in (one, other):
        watch.look()
    assert set(told.values()) == {1}


def test_it_looks_by_itself(watched, redis):
    make, told = watched
    watch = make()
    watch.look()
    told[watch] = 0
    watch.start()
    redis.restart()
    wait_until(lambda: told[watch] == 1, TIMEOUT_S)


def test_rows_that_nobody_has_watched_are_not_answered(watched):
    make, told = watched
    watch = make()
    put(watch._store, KEYS)
    watch.look()
    assert not fetched(watch._store, KEYS).any()
    assert told[watch] == 1, "they may have been read before the first look that was answered"


def test_rows_that_another_server_has_cleared_may_have_been_read_before_the_first_look(watched):
    make, told = watched
    late, other = make(), make()
    put(late._store, KEYS)
    other.look()
    assert not fetched(late._store, KEYS).any()
    late.look()
    assert told[late] == 1


def test_whether_redis_takes_writes_is_told_with_each_look(watched, redis):
    """What it refuses of one server it refuses of all: level 2 may lack updates then."""
    make, _ = watched
    watch, taking = make(), []
    watch.taking = lambda: taking.append(True)
    put(watch._store, KEYS)
    for looks in (1, 2):
        watch.look()
        assert len(taking) == looks
    put(watch._store, KEYS)
    with redis.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="OOM"):
            watch.look()
        assert fetched(watch._store, KEYS).all(), "it answers"
        assert len(taking) == 2
        client.config_set("maxmemory", 0)
    watch.look()
    assert len(taking) == 3
    redis.kill()
    with pytest.raises(StoreUnavailable):
        watch.look()
    assert len(taking) == 3


def test_of_a_cluster_those_go_that_a_replica_has_now(open_redis):
    with RedisCluster(replicas=1) as cluster:
        store = open_redis(cluster)
        watch = RedisWatch(store)
        watch.look()
        put(store, KEYS)
        runs = store.runs()
        assert len(set(runs)) == 3
        cluster.masters[0].kill()

        def looked():
            try:
                watch.look()
            except StoreError:
                return False
            return store.runs() != runs

        wait_until(looked, TIMEOUT_S)
        watch.look()
        kept = fetched(store, KEYS)
        assert 0.4 < kept.mean() < 0.9, "two thirds, about"


def test_a_user_who_may_not_ask_is_told_once(open_redis, caplog, monkeypatch):
    monkeypatch.setattr("hebe.embeddings.redis.watch._LOOK_S", 0.01)
    with RedisServer(users={"hebe": "geheim"}) as redis:
        with redis.client() as client:
            client.execute_command("ACL", "SETUSER", "hebe", "-info")
        access = RedisAccess(user_name="hebe", password="geheim", timeout_s=30.0)
        store = open_redis(redis, access=access)
        watch = RedisWatch(store)
        looks = 0
        runs, taking = store.runs, []
        watch.taking = lambda: taking.append(True)

        def counted():
            nonlocal looks
            looks += 1
            return runs()

        monkeypatch.setattr(store, "runs", counted)
        with caplog.at_level(logging.WARNING, "hebe.tiers"):
            watch.start()
            wait_until(lambda: looks > 3, TIMEOUT_S)
            watch.close()
        assert [record.message.startswith("Redis cannot be looked after, so") for record in caplog.records] == [True]
        assert taking, "nobody can tell that it takes no writes"
        put(store, KEYS)
        assert fetched(store, KEYS).all()
