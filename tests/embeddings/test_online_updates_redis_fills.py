"""What a Redis over RocksDB is given of it, and when it is asked, while updates come."""

import math
import threading
import time

import numpy as np
import pytest

from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import levels_watch, shared_fills
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.group_progress import ends_and_committed, log_ends
from tests.servers.redis_servers import wait_until

from .update_nodes import TIMEOUT_S, Node, in_redis, is_filled, rows_of, send


def test_redis_is_given_nothing_of_a_level_3_that_lacks_updates(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    for name in ("_LOOK_S", "_CURRENT_S", "_PROGRESS_S"):
        monkeypatch.setattr(levels_watch, name, 0.05)
    apply, full, refused = RocksDbStore.apply, threading.Event(), threading.Semaphore(0)

    def applied(*arguments, **more):
        if full.is_set():
            refused.release()
            raise StoreError("the disk is full")
        return apply(*arguments, **more)

    monkeypatch.setattr(RocksDbStore, "apply", applied)
    full.set()
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
        producer.flush()
        node = make_node(tmp_path, over_rocks("node"))
        lookup = node.hierarchy.tiers.lookup
        wait_until(lambda: in_redis(node, 7) == 5, TIMEOUT_S)
        for _ in range(5):
            assert refused.acquire(timeout=TIMEOUT_S)
        assert not lookup.volatile.may_fill
        full.clear()
        wait_until(lambda: is_filled(node), TIMEOUT_S)
        assert lookup.volatile.may_fill
        assert (in_redis(node, 7), in_redis(node, 8)) == (5, 1)
        monkeypatch.setattr(shared_fills, "MOST_BEHIND_S", 0.2)
        full.set()
        producer.send("model", "users", np.array([7]), rows_of(6, "users", 1))
        producer.flush()
        wait_until(lambda: not lookup.volatile.may_fill, TIMEOUT_S)
        full.clear()
        wait_until(lambda: lookup.volatile.may_fill, TIMEOUT_S)
    assert node.updates.drain(TIMEOUT_S)
    assert in_redis(node, 7) in (6, None), "nothing, where it was taken back just as it was overwritten"


def test_redis_keeps_no_deleted_row_that_a_lagging_level_3_still_has(
    make_node, tmp_path, over_rocks, monkeypatch
) -> None:
    """Others have heard of the delete, and believe Redis once that is a minute ago."""
    for name in ("_LOOK_S", "_PROGRESS_S"):
        monkeypatch.setattr(levels_watch, name, 0.05)
    apply, go_on = RocksDbStore.apply, threading.Event()
    go_on.set()

    def slow(store, *arguments, **more):
        if store is late.hierarchy.tiers.lookup.persistent.store:
            assert go_on.wait(TIMEOUT_S)
        return apply(store, *arguments, **more)

    cache = {"cache": {"init_ec": False}}
    late, node = (make_node(tmp_path, {**over_rocks(name), **cache}, name=name) for name in ("late", "node"))
    monkeypatch.setattr(RocksDbStore, "apply", slow)
    tiers = late.hierarchy.tiers
    wait_until(lambda: is_filled(node) and tiers._filling.gi_frame is None, TIMEOUT_S)
    tiers.background.start()
    tiers.lookup.level_2_lag.taking()
    wait_until(lambda: tiers.lookup.level_2_lag.since_s > -math.inf, TIMEOUT_S)  # it asks Redis from then on
    go_on.clear()
    try:
        with LogDirectory(tmp_path / "log").producer() as producer:
            producer.delete("model", "users", np.array([7, 8]))
        wait_until(lambda: in_redis(node, 7) is None and in_redis(node, 8) is None, TIMEOUT_S)
        wait_until(lambda: node.look_up(7, 0)[2] == (0, 0, 1), TIMEOUT_S)
        assert late.look_up(7, 0)[0] == 1
        tiers.background.drain()
        assert in_redis(node, 7) == 1, "it is not known to lag yet"
        monkeypatch.setattr(shared_fills, "MOST_BEHIND_S", 0.1)
        wait_until(lambda: in_redis(node, 7) is None, TIMEOUT_S)
        assert late.look_up(8, 0)[0] == 1
        tiers.background.drain()
        assert in_redis(node, 8) is None
    finally:
        go_on.set()


@pytest.mark.parametrize("restarted", [True, False])
def test_what_a_server_that_stopped_had_yet_to_take_back_from_redis_goes(
    make_node, tmp_path, over_rocks, monkeypatch, restarted
) -> None:
    """It had filled Redis with a row that was deleted there, and did not live to hear of that."""
    for name in ("_LOOK_S", "_PROGRESS_S"):
        monkeypatch.setattr(levels_watch, name, 0.05)
    apply, stores = RocksDbStore.apply, []

    def full(store, *arguments, **more):
        if store in stores:
            raise StoreError("the disk is full")
        return apply(store, *arguments, **more)

    monkeypatch.setattr(RocksDbStore, "apply", full)
    cache = {"cache": {"init_ec": False}}
    node, stopped = (make_node(tmp_path, {**over_rocks(name), **cache}, name=name) for name in ("node", "stopped"))
    tiers = stopped.hierarchy.tiers
    wait_until(lambda: is_filled(node) and tiers._filling.gi_frame is None, TIMEOUT_S)
    stores.append(tiers.lookup.persistent.store)
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.delete("model", "users", np.array([7]))
    wait_until(lambda: node.look_up(7, 0)[2] == (0, 0, 1) and in_redis(node, 7) is None, TIMEOUT_S)
    topics = [Topic("model", table) for table in tiers.lookup.dims]

    def is_deleted_in_redis() -> bool:
        """And will not be once more: `node` takes its row back before the group deletes it, or after that."""
        ends, committed = ends_and_committed(log, topics, node.updates._group_in_redis(tiers))
        return ends == committed

    wait_until(is_deleted_in_redis, TIMEOUT_S)
    tiers.lookup.fill_level_2("users", np.array([7, 8]))
    assert in_redis(node, 7) == 1
    notes = tiers.lookup.volatile.fills.notes
    stopped.close()
    stores.clear()
    if restarted:
        make_node(tmp_path, {**over_rocks("stopped"), **cache}, name="stopped")
    else:
        with over_rocks.redis.client() as client:
            assert client.delete(notes._alive(notes._server)) == 1, "as when it was not heard of for long"
    wait_until(lambda: in_redis(node, 7) is None, TIMEOUT_S)


def test_redis_is_asked_as_soon_as_all_updates_are_there(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    """At the start it may lack some, which level 3 was given in the last run: the log tells how many."""
    monkeypatch.setattr(levels_watch, "_LOOK_S", 0.05)
    insert, away = RedisStore.insert, threading.Event()

    def inserted(*arguments):
        if away.is_set():
            raise StoreError("no memory left")
        insert(*arguments)

    monkeypatch.setattr(RedisStore, "insert", inserted)
    first = Node(tmp_path, over_rocks("node"))
    wait_until(lambda: is_filled(first), TIMEOUT_S)
    away.set()
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    wait_until(lambda: first.updates.statistics()["tiers"].rows == 1, TIMEOUT_S)
    first.close()
    node = make_node(tmp_path, over_rocks("node"))
    tiers = node.hierarchy.tiers
    tiers.start()
    wait_until(lambda: tiers.lookup.level_2_lag.waits, TIMEOUT_S)
    assert node.look_up(7, 3)[0] == 5
    assert in_redis(node, 7) is None, "the row of before was taken back, as far as this server had put it there"
    topics = [Topic("model", table) for table in tiers.lookup.dims]
    ends, written = ends_and_committed(log, topics, node.updates._group_in_redis(tiers))
    assert ends != written
    assert tiers.lookup.counts.volatile_hits == 0
    assert tiers.lookup.level_2_lag.since_s == -math.inf
    away.clear()
    wait_until(lambda: tiers.lookup.level_2_lag.since_s > 0, TIMEOUT_S / 2)
    assert in_redis(node, 7) == 5


def test_redis_is_behind_for_as_long_as_the_log_says_so(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    """Those who are to write there may be stuck, and it takes this server's writes all the same."""
    monkeypatch.setattr(levels_watch, "_LOOK_S", 0.02)
    monkeypatch.setattr(levels_watch, "_PROGRESS_S", 0.0)
    insert, stuck, asked = RedisStore.insert, threading.Event(), []

    def inserted(*arguments):
        if stuck.is_set():
            raise StoreError("no permission")
        insert(*arguments)

    monkeypatch.setattr(RedisStore, "insert", inserted)
    monkeypatch.setattr(levels_watch, "log_ends", lambda *what: asked.append(0) or log_ends(*what))
    node = make_node(tmp_path, over_rocks("node"))
    lag = node.hierarchy.tiers.lookup.level_2_lag
    wait_until(lambda: lag._written_s > 0, TIMEOUT_S)
    stuck.set()
    send(tmp_path, "users", 1)
    sent_s = time.monotonic()
    wait_until(lambda: node.updates.statistics()["tiers"].rows == 1, TIMEOUT_S)
    asked.clear()
    wait_until(lambda: len(asked) > 3, TIMEOUT_S)
    assert lag._written_s < sent_s
    stuck.clear()
    wait_until(lambda: lag._written_s > sent_s, TIMEOUT_S)
