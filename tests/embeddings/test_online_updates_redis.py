"""Online updates of servers that share a Redis."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings import online_updates
from hebe.embeddings.config.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.online_updates import OnlineUpdates
from hebe.embeddings.redis import generations as redis_generations
from hebe.embeddings.redis.layout import LayoutRule
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.tiers import levels_watch
from hebe.embeddings.tiers import open_volatile as volatile_opening
from hebe.embeddings.tiers.shared_fills import SharedFills
from hebe.embeddings.updates import replay as update_replay
from hebe.embeddings.updates.contract import Delivery, TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory
from tests.servers.redis_servers import RedisServer, wait_until

from .update_nodes import TIMEOUT_S, Node, in_redis, rocks, rows_of, send


def test_servers_that_share_redis_share_the_work_and_hear_of_all(make_node, tmp_path, redis_server) -> None:
    tiers = {
        "volatile_db": {"type": "redis", "address": redis_server.address, "num_partitions": 4, "timeout_ms": 60_000}
    }
    nodes = [make_node(tmp_path, tiers, name=name) for name in ("one", "two")]
    for node in nodes:
        assert [node.look_up(user, 0)[0] for user in range(100)] == [1.0] * 100, "and they are in level 1 now"
    pushed = 0

    def both_have_written() -> bool:
        nonlocal pushed
        pushed += 1
        with LogDirectory(tmp_path / "log").producer() as producer:
            producer.send("model", "users", np.arange(100), rows_of(pushed, "users", 100))
        assert all(node.updates.drain(TIMEOUT_S) for node in nodes)
        return all(node.updates.statistics()["volatile_db"].rows for node in nodes)

    wait_until(both_have_written, TIMEOUT_S)
    for node in nodes:
        wait_until(lambda node=node: {node.look_up(user, 0)[0] for user in range(100)} == {pushed}, TIMEOUT_S)
    assert sum(node.updates.statistics()["volatile_db"].rows for node in nodes) >= 100 * pushed, "at least once"
    assert [node.updates.statistics()["tiers"].rows for node in nodes] == [100 * pushed] * 2


def test_a_server_hears_of_all_that_was_to_be_written_when_its_level_1_was_filled(
    make_node, tmp_path, monkeypatch
) -> None:
    """Whoever writes it may do so at any time, before that server listens or later."""
    insert, go_on = RedisStore.insert, threading.Event()

    def held_up(*arguments) -> None:
        assert go_on.wait(TIMEOUT_S)
        insert(*arguments)

    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        tiers = {"volatile_db": volatile, "cache": {"cache_fraction": 1.0}}
        first = make_node(tmp_path, tiers, name="one")
        send(tmp_path, "items")
        assert first.updates.drain(TIMEOUT_S)
        monkeypatch.setattr(RedisStore, "insert", held_up)
        try:
            send(tmp_path, "users")
            second = make_node(tmp_path, tiers, name="two", filled=lambda: send(tmp_path, "users", 60))
            assert second.look_up(0, 0)[1] == 5, "it was filled with what was there"
            wait_until(lambda: [second.look_up(user, 0)[0] for user in range(61)] == [5] * 60 + [1], TIMEOUT_S)
            assert second.updates.statistics()["tiers"].rows == 110, "and has not heard of what was there"
        finally:
            go_on.set()


def test_a_server_hears_of_all_at_no_rate_and_asks_redis_for_what_it_has_missed(
    make_node, tmp_path, over_rocks
) -> None:
    """Several may write together faster than one alone, and the log keeps nothing for who only listens."""
    tiers = {"volatile_db": over_rocks("")["volatile_db"], "cache": {"cache_fraction": 1.0}}
    node = make_node(tmp_path, tiers, max_rows_per_s=0.01, max_batch_size=1)
    send(tmp_path, "users")
    wait_until(lambda: node.updates.statistics()["tiers"].rows == 50, TIMEOUT_S)
    assert node.updates.statistics()["volatile_db"].rows < 50
    store, listening = node.hierarchy.tiers.lookup.volatile.store, node.updates._ingestions["tiers"]
    store.insert("users", np.array([190]), rows_of(7, "users", 1))
    assert node.look_up(190, 0)[0] == 1
    poll, removed = (
        listening._source.poll,
        [Delivery(TopicPartition("model", "users", 0), 0, None, "some were removed")],
    )
    listening._source.poll = lambda most, wait_s: [removed.pop()] if most and removed else poll(most, wait_s)
    node.hierarchy.tiers.refresh.start()
    wait_until(lambda: node.look_up(190, 0)[0] == 7, TIMEOUT_S)


def test_what_others_write_while_the_log_is_away_is_asked_for_once_a_server_listens(
    make_node, tmp_path, monkeypatch
) -> None:
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        tiers = {"volatile_db": volatile, "cache": {"cache_fraction": 1.0}}
        first = make_node(tmp_path, tiers, name="one")

        def written() -> None:
            send(tmp_path, "users")
            assert first.updates.drain(TIMEOUT_S)

        monkeypatch.setattr(update_replay, "open_configured_log", broken_log)
        second = make_node(tmp_path, tiers, name="two", filled=written)
        assert [second.look_up(user, 0)[0] for user in (0, 49)] == [1, 1]
        second.hierarchy.tiers.refresh.start()
        wait_until(lambda: [second.look_up(user, 0)[0] for user in range(51)] == [5] * 50 + [1], TIMEOUT_S)


@pytest.mark.parametrize("deleted", [True, False])
def test_what_redis_alone_has_yet_to_be_given_is_not_kept_as_new(make_node, tmp_path, monkeypatch, deleted) -> None:
    """Each server hears of an update at once; one of them writes it, later."""
    monkeypatch.setattr(levels_watch, "_LOOK_S", 0.02)
    monkeypatch.setattr(levels_watch, "_PROGRESS_S", 0.0)
    go_on = threading.Event()
    for name, act in (("insert", RedisStore.insert), ("delete", RedisStore.delete)):

        def held_up(*arguments, act=act):
            assert go_on.wait(TIMEOUT_S)
            return act(*arguments)

        monkeypatch.setattr(RedisStore, name, held_up)
    with RedisServer() as redis:
        go_on.set()
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        tiers = {"volatile_db": volatile, "cache": {"cache_fraction": 1.0}}
        nodes = [make_node(tmp_path, tiers, name=name) for name in ("one", "two")]
        assert [node.look_up(7, 3) for node in nodes] == [(1, 1, (0, 0, 0))] * 2
        go_on.clear()
        try:
            with LogDirectory(tmp_path / "log").producer() as producer:
                if deleted:
                    producer.delete("model", "users", np.array([7]))
                else:
                    producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
            for node in nodes:
                wait_until(
                    lambda node=node: node.updates.statistics()["tiers"].visible["cache"].answers == 1, TIMEOUT_S
                )
                for _ in range(2):
                    assert node.look_up(7, 3) == (1 if deleted else 5, 1, (0, 0, 0))
                node.hierarchy.tiers.refresh.refresh()
                assert node.look_up(7, 3)[0] == (1 if deleted else 5), "level 1 was refreshed"
        finally:
            go_on.set()
        for node in nodes:
            after = (0, 1, (0, 0, 1)) if deleted else (5, 1, (0, 0, 0))
            wait_until(lambda node=node, after=after: node.look_up(7, 3) == after, TIMEOUT_S)


def broken_log(_source) -> LogDirectory:
    raise StoreUnavailable("it is away")


def test_rows_in_redis_are_of_one_content_whatever_version_it_calls_itself(make_node, tmp_path, redis_server) -> None:
    """As when a version's files were written anew: the Redis that servers share has rows of before, and updates too."""
    tiers = {
        "volatile_db": {"type": "redis", "address": redis_server.address, "num_partitions": 4, "timeout_ms": 60_000}
    }
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    for trained in (11, 12, 11):
        node = make_node(tmp_path, tiers, trained=trained)
        assert node.updates.drain(TIMEOUT_S)
        wait_until(lambda node=node: node.look_up(7, 0)[0] == 5, TIMEOUT_S)
        assert node.look_up(8, 0)[0] == trained
        node.close()


def test_what_redis_alone_has_and_loses_comes_back_with_all_updates(make_node, tmp_path) -> None:
    """Meanwhile its keys are defaulted, not unknown."""
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        cache = {"init_ec": False}
        nodes = [make_node(tmp_path, {"volatile_db": volatile, "cache": cache}, name=name) for name in ("one", "two")]
        log = LogDirectory(tmp_path / "log")
        with log.producer() as producer:
            producer.send("model", "users", np.arange(50), rows_of(5, "users", 50))
            producer.delete("model", "users", np.array([49]))
        assert all(node.updates.drain(TIMEOUT_S) for node in nodes)
        [group] = log.groups()
        for node in nodes:
            node.hierarchy.tiers.generations.start()
        with redis.client() as client:
            client.flushall()
        assert nodes[0].look_up(190, 30)[2] == (2, 0, 0)
        for node in nodes:
            wait_until(lambda node=node: node.look_up(190, 30)[2] == (0, 0, 0), TIMEOUT_S)
        wait_until(lambda: len(log.groups()) == 1 and log.groups() != [group], TIMEOUT_S)
        third = make_node(tmp_path, {"volatile_db": volatile, "cache": cache}, name="three")
        for node in (*nodes, third):
            assert [node.look_up(user, 0)[0] for user in (0, 48, 50)] == [5, 5, 1]
        assert third.look_up(49, 0)[2] == (0, 0, 1), "deleted"
        with log.producer() as producer:
            producer.send("model", "users", np.array([0]), rows_of(6, "users", 1))
        for node in (*nodes, third):
            wait_until(lambda node=node: node.look_up(0, 0)[0] == 6, TIMEOUT_S)


def test_no_update_on_its_way_to_the_rows_of_before_comes_over_those_that_redis_is_filled_with(
    make_node, tmp_path, over_rocks, monkeypatch
) -> None:
    """Those have had all of the log, and nobody writes the newest once more."""
    insert, late, written = RedisStore.insert, threading.Event(), threading.Event()
    node = make_node(tmp_path, {"volatile_db": over_rocks("")["volatile_db"]}, failure_backoff_ms=1)
    ingestion, generations = node.updates._ingestions["volatile_db"], node.hierarchy.tiers.generations
    changed = generations.changed

    def inserted(store, table, keys, rows) -> None:
        if store.rule is LayoutRule.REQUIRED and not late.is_set():
            raise StoreUnavailable("not in time")
        insert(store, table, keys, rows)
        if store.rule is LayoutRule.REQUIRED:
            written.set()

    def changed_when_it_was_written() -> None:
        late.set()
        wait_until(lambda: written.is_set() or not ingestion._thread.is_alive(), TIMEOUT_S)
        changed()

    monkeypatch.setattr(RedisStore, "insert", inserted)
    generations.changed = changed_when_it_was_written
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
        producer.flush()
        wait_until(lambda: ingestion.statistics().failures, TIMEOUT_S)
        producer.send("model", "users", np.array([7]), rows_of(6, "users", 1))
    generations.doubt()
    generations._look(thoroughly=False)
    assert in_redis(node, 7) == 6


def test_a_log_keeps_nothing_for_rows_that_redis_was_to_have(make_node, tmp_path, monkeypatch) -> None:
    """Each attempt to fill it replays the log in a group of its own."""
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    log = LogDirectory(tmp_path / "log")
    replayed = volatile_opening.replay

    def fails(*arguments):
        replayed(*arguments)
        assert len(log.groups()) == 1
        raise StoreError("not sealed")

    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        with monkeypatch.context() as patch:
            patch.setattr(volatile_opening, "replay", fails)
            with pytest.raises(StoreError, match="not sealed"):
                make_node(tmp_path, {"volatile_db": volatile})
        assert log.groups() == []
        assert make_node(tmp_path, {"volatile_db": volatile}).look_up(7, 0)[0] == 5
        assert len(log.groups()) == 1


def test_a_redis_that_is_filled_has_all_updates_before_it_answers(make_node, tmp_path) -> None:
    with LogDirectory(tmp_path / "log").producer() as producer:
        for key in range(50):
            producer.send("model", "users", np.array([key]), rows_of(3, "users", 1))
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        node = make_node(tmp_path, {"volatile_db": volatile}, max_rows_per_s=0.01, max_batch_size=1)
        assert [node.look_up(user, 0)[0] for user in (0, 49, 50)] == [3, 3, 1]


def test_rows_that_redis_alone_has_without_the_updates_of_the_log_are_stale(
    make_node, tmp_path, over_rocks, monkeypatch
) -> None:
    """The log was away when they were put there: the server that did it knows that, and one that starts since."""
    monkeypatch.setattr(update_replay, "PATIENCE_S", 0.0)
    monkeypatch.setattr(levels_watch, "_LOOK_S", 0.02)
    insert, go_on = RedisStore.insert, threading.Event()

    def held_up(store, *arguments) -> None:
        assert store.rule is LayoutRule.AWAITED or go_on.wait(TIMEOUT_S)
        insert(store, *arguments)

    send(tmp_path, "users")
    tiers = {"volatile_db": over_rocks("")["volatile_db"], "cache": {"init_ec": False}}
    monkeypatch.setattr(RedisStore, "insert", held_up)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(update_replay, "open_configured_log", broken_log)
            nodes = [make_node(tmp_path, tiers, name="one")]
        nodes.append(make_node(tmp_path, tiers, name="two"))
        for node in nodes:
            assert node.look_up(7, 3) == (1, 1, (0, 2, 0))
    finally:
        go_on.set()
    for node in nodes:
        wait_until(lambda node=node: node.look_up(7, 3) == (5, 1, (0, 0, 0)), TIMEOUT_S)


def test_each_redis_is_given_all_updates_though_two_have_one_log(make_node, tmp_path, over_rocks) -> None:
    """As in two regions, or with staging beside production."""
    with RedisServer() as other:
        volatile = {"type": "redis", "address": other.address, "num_partitions": 4, "timeout_ms": 60_000}
        nodes = [
            make_node(tmp_path, over_rocks("here"), name="here"),
            make_node(tmp_path, {**rocks(tmp_path, "there"), "volatile_db": volatile}, name="there"),
        ]
        send(tmp_path, "users", 100)
        for node in nodes:
            assert node.updates.drain(TIMEOUT_S)
            assert node.updates.statistics()["volatile_db"].rows == 100
            node.close()


def test_a_group_of_an_older_version_is_left_and_its_rows_go_as_nobody_knows_which_updates_they_have(
    make_node, tmp_path, over_rocks, monkeypatch
) -> None:
    """Servers of another Redis were in that group too, and took some."""
    log = LogDirectory(tmp_path / "log")
    with monkeypatch.context() as patch:
        shared_group = online_updates.shared_group
        patch.setattr(
            online_updates, "shared_group", lambda source, content, _name: shared_group(source, content, None)
        )
        before = Node(tmp_path, over_rocks("node"))
        send(tmp_path, "users", 100)
        assert before.updates.drain(TIMEOUT_S)
        [older] = [group for group in log.groups() if group.startswith("hebe.model.1.")]
        identity = before.hierarchy.tiers._keeper.identity
        before.close()
    with over_rocks.redis.client() as client:
        assert client.delete(identity._key) == 1
        [partition] = client.keys("hebe:*users/0*:rows")
        client.hset(partition, np.int64(199).tobytes(), np.full(4, 3, "<f4").tobytes())
    node = make_node(tmp_path, over_rocks("node"))
    assert node.updates.drain(TIMEOUT_S)
    assert older not in log.groups()
    assert node.updates._group_in_redis(node.hierarchy.tiers) in log.groups()
    assert node.updates.statistics()["volatile_db"].rows == 100, "its group begins with the oldest message"
    assert in_redis(node, 199) in (None, 1)


def test_servers_go_over_to_the_group_of_another_redis_at_their_address(make_node, tmp_path, over_rocks) -> None:
    nodes = [make_node(tmp_path, over_rocks(name), name=name) for name in ("one", "two")]
    watches = [node.hierarchy.tiers._keeper for node in nodes]

    def groups() -> set[str | None]:
        return {node.updates._group_in_redis(node.hierarchy.tiers) for node in nodes}

    [before] = groups()
    with over_rocks.redis.client() as client:
        client.flushall()
        for watch in watches:
            watch.look()
        assert groups() == {before}, "it is the same Redis, which was restarted empty"
        client.set(watches[0].identity._key, "other")
    for watch in watches:
        watch.look()
    [after] = groups()
    assert after == before.rpartition(".")[0] + ".other"
    send(tmp_path, "users", 100)
    assert all(node.updates.drain(TIMEOUT_S) for node in nodes)
    assert sum(node.updates.statistics()["volatile_db"].rows for node in nodes) >= 100
    log = LogDirectory(tmp_path / "log")
    assert (before in log.groups(), after in log.groups()) == (False, True)


def test_a_server_that_starts_puts_no_old_rows_over_what_others_have_written(
    make_node, tmp_path, over_rocks, monkeypatch
) -> None:
    """A start may take minutes, and the others write updates to the same Redis meanwhile."""
    insert, starts, go_on = RedisStore.insert_tables, threading.Event(), threading.Event()
    late = threading.Thread(target=lambda: make_node(tmp_path, over_rocks("late"), name="late"))

    def held_up(*arguments):
        if threading.current_thread() is late:
            starts.set()
            assert go_on.wait(TIMEOUT_S)
        insert(*arguments)

    monkeypatch.setattr(RedisStore, "insert_tables", held_up)
    late.start()
    assert starts.wait(TIMEOUT_S)
    node = make_node(tmp_path, over_rocks("node"))
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([150]), rows_of(5, "users", 1))
        producer.delete("model", "users", np.array([151]))
    assert node.updates.drain(TIMEOUT_S)
    newest = (5, None)  # nothing, where what `node` had put there was taken back just as it was overwritten
    wait_until(lambda: in_redis(node, 150) in newest and in_redis(node, 151) is None, TIMEOUT_S)
    go_on.set()
    late.join()
    store = node.hierarchy.tiers.lookup.volatile.store
    wait_until(lambda: in_redis(node, 150) in newest and in_redis(node, 151) is None, TIMEOUT_S)
    assert in_redis(node, 152) == 1
    assert store.size("users") >= 198


@pytest.mark.parametrize("level_3", [True, False])
def test_a_server_that_stood_still_within_a_write_leaves_no_old_row_in_redis(
    make_node, tmp_path, over_rocks, monkeypatch, level_3
) -> None:
    """Another one has taken its partitions meanwhile, and written a newer row of the key."""
    monkeypatch.setattr(redis_generations, "_LOOK_S", 0.05)
    insert, stood_still = RedisStore.insert, threading.Event()
    volatile = {**over_rocks("node")["volatile_db"], "initial_cache_rate": 0.0}
    tiers = (
        {**over_rocks("node"), "volatile_db": volatile} if level_3 else {"volatile_db": over_rocks("")["volatile_db"]}
    )
    node = make_node(tmp_path, {**tiers, "cache": {"init_ec": False}})
    ingestion, generations = node.updates._ingestions["volatile_db"], node.hierarchy.tiers.generations
    before = None if generations is None else generations.current
    producer = LogDirectory(tmp_path / "log").producer()

    def stands_still(store, table, keys, rows) -> None:
        if not stood_still.is_set():
            producer.send("model", "users", np.array([7]), rows_of(6, "users", 1))
            producer.flush()
            wait_until(lambda: node.updates.statistics()["tiers"].rows == 2, TIMEOUT_S)
            insert(store, "users", np.array([7]), rows_of(6, "users", 1))
            ingestion._source.assigned = frozenset
            stood_still.set()
        insert(store, table, keys, rows)

    monkeypatch.setattr(RedisStore, "insert", stands_still)
    producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    producer.flush()
    assert stood_still.wait(TIMEOUT_S)
    wait_until(lambda: not ingestion._partitions, TIMEOUT_S)
    if generations is not None:
        assert in_redis(node, 7) == 5
        generations.start()
        wait_until(lambda: generations.current != before, TIMEOUT_S)
    assert in_redis(node, 7) == (None if level_3 else 6)
    assert node.look_up(7, 3)[0] == 6
    producer.close()


class QuietSource:
    """Of a log in which nothing comes; `close` takes until `closes`."""

    shares = True
    closes = threading.Event()
    closing = threading.Event()

    def poll(self, _most: int, timeout_s: float) -> list:
        time.sleep(timeout_s)
        return []

    def lag(self) -> dict:
        return {}

    def assigned(self) -> frozenset:
        return frozenset()

    def close(self) -> None:
        self.closing.set()
        self.closes.wait(TIMEOUT_S)


def test_statistics_do_not_wait_for_a_new_generation_of_redis_to_be_followed() -> None:
    """They are asked for on the event loop; a source may take seconds to leave its group."""
    update_log = SimpleNamespace(
        source=lambda *_, **__: QuietSource(), forget_group=lambda _group: True, close=lambda: None
    )
    source = UpdateConfig(type=UpdateType.LOG_DIRECTORY, address="log", poll_timeout_ms=10)
    updates = OnlineUpdates("model", update_log, source, None)
    generations = SimpleNamespace(current="first", changed=None)
    lag = SimpleNamespace(written=lambda _until_s: None)
    volatile = SimpleNamespace(fills=SharedFills())
    lookup = SimpleNamespace(
        dims={"users": 4}, volatile=volatile, persistent=None, outdated=lambda *_: None, level_2_lag=lag
    )
    refresh = SimpleNamespace(ask=lambda: None)
    tiers = SimpleNamespace(lookup=lookup, rows_in_redis=generations, content="model.1", refresh=refresh, written=None)
    updates._follow(tiers, SimpleNamespace(), None)
    generations.current = "second"
    follower = threading.Thread(target=generations.changed)
    follower.start()
    asker = threading.Thread(target=updates.statistics, daemon=True)
    try:
        assert QuietSource.closing.wait(TIMEOUT_S)
        asker.start()
        asker.join(5.0)
        assert not asker.is_alive()
        assert follower.is_alive()
    finally:
        QuietSource.closes.set()
        follower.join()
        updates.close()
    assert list(updates.statistics()) == ["volatile_db"]
