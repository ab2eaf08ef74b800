import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings import online_updates, update_replay, volatile_opening
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.hierarchy_config import HierarchyConfig, UpdateConfig, UpdateType
from hebe.embeddings.online_updates import OnlineUpdates, _groups_of_this_node
from hebe.embeddings.redis_store import RedisStore
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.log_directory import LogDirectory
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

from ..redis_servers import RedisServer, wait_until

SPEC = ModelSpec(
    "model",
    "dlrm",
    (EmbeddingTableSpec("users", 200, 4), EmbeddingTableSpec("items", 50, 2)),
    (FeatureSpec("user", "users", 1, Pooling.SUM), FeatureSpec("item", "items", 1, Pooling.SUM)),
)
TIMEOUT_S = 60.0


def rows_of(value: float, table: str, count: int) -> np.ndarray:
    return np.full((count, SPEC.table(table).dim), value, np.float32)


class Node:
    """A hierarchy whose rows are 1, or `trained`, that follows the log in `place / "log"`."""

    def __init__(
        self,
        place: Path,
        tiers: dict,
        name: str = "node",
        since_s: float | None = None,
        trained: float = 1,
        filled: Callable[[], None] = lambda: None,
        **updates,
    ) -> None:
        """`filled` is called before it begins to follow the log."""
        tables = {table.name: rows_of(trained, table.name, table.rows) for table in SPEC.tables}
        source = {"type": "log_directory", "address": str(place / "log"), "poll_timeout_ms": 10, **updates}
        config = HierarchyConfig.from_mapping({**tiers, "update_source": source})
        self.place = place / name / "1"
        self.hierarchy = EmbeddingHierarchy.open(SPEC, tables, persistent_dir=self.place, config=config)
        filled()
        memory, tiers_opened = self.hierarchy.memory, self.hierarchy.tiers
        opened = OnlineUpdates.open("model", memory, tiers_opened, config, self.place, since_s)
        assert opened is not None
        self.updates = opened

    def look_up(self, user: int, item: int) -> tuple[float, float, tuple[int, int, int]]:
        """The first number of either row, and how many keys were defaulted, stale and unknown."""
        out = np.full((1, 6), np.nan, np.float32)
        report = self.hierarchy.lookup(np.array([[user, item]]), out, self.hierarchy.new_scratch(1))
        assert (out[0, :4] == out[0, 0]).all()
        keys = report.keys
        return float(out[0, 0]), float(out[0, 4]), (keys.defaulted, keys.stale, keys.unknown)

    def close(self) -> None:
        self.updates.close()
        self.hierarchy.close()


def rocks(place: Path, name: str = "node") -> dict:
    return {"persistent_db": {"type": "rocks_db", "path": str(place / name), "timeout_ms": 60_000}}


KINDS = {
    "resident": lambda _: {},
    "rocks_db": rocks,
    "hash_map": lambda _: {"volatile_db": {"type": "parallel_hash_map"}},
    "all": lambda place: {**rocks(place), "volatile_db": {"type": "parallel_hash_map"}},
}


@pytest.fixture
def make_node():
    nodes: list[Node] = []

    def make(*arguments, **options) -> Node:
        nodes.append(Node(*arguments, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.mark.parametrize("kind", KINDS)
def test_updates_and_deletes_are_seen_by_lookups(make_node, tmp_path, kind) -> None:
    node = make_node(tmp_path, KINDS[kind](tmp_path))
    assert node.look_up(7, 3) == (1, 1, (0, 0, 0))
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send(
            "model", "users", np.array([7, 8, 7]), np.array([[5], [6], [9]], np.float32) * rows_of(1, "users", 3)
        )
        producer.send("model", "items", np.array([4]), rows_of(2, "items", 1))
        producer.delete("model", "items", np.array([3]))
        producer.flush()
    assert node.updates.drain(TIMEOUT_S)
    assert node.look_up(7, 4) == (9, 2, (0, 0, 0))
    user, item, (defaulted, stale, unknown) = node.look_up(8, 3)
    assert (user, item, defaulted, stale) == (6, 0, 0, 0)
    assert unknown == (0 if kind == "resident" else 1)
    assert all(each.rows == 4 and each.deletes == 1 for each in node.updates.statistics().values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_has_the_updates_of_before(make_node, tmp_path, kind) -> None:
    first = Node(tmp_path, KINDS[kind](tmp_path))
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    assert first.updates.drain(TIMEOUT_S)
    first.close()
    with log.producer() as producer:
        producer.send("model", "users", np.array([8]), rows_of(6, "users", 1))
    node = make_node(tmp_path, KINDS[kind](tmp_path))
    assert node.updates.catch_up()
    assert node.updates.drain(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (7, 8, 9)] == [5, 6, 1]


def test_each_store_has_a_group_of_its_own_and_keeps_it(tmp_path, monkeypatch) -> None:
    """Whatever its path is called: a relative one is another store in each directory, and containers are all alike."""
    groups = []
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        monkeypatch.chdir(tmp_path / directory)
        with contextlib.closing(RocksDbStore(Path("tiers"), {"users": 4})) as store:
            store.checkpoint(tmp_path / directory / "copy")
        groups.append(_groups_of_this_node("hebe", "model", Path("tiers"))[0])
        assert _groups_of_this_node("hebe", "model", tmp_path / directory / "tiers")[0] == groups[-1]
    (tmp_path / "b" / "tiers").rename(tmp_path / "other")
    (tmp_path / "b" / "copy").rename(tmp_path / "b" / "tiers")
    groups.append(_groups_of_this_node("hebe", "model", tmp_path / "b" / "tiers")[0])
    assert len(set(groups)) == 3


def test_a_store_of_an_older_version_goes_on_where_it_is_and_leaves_its_group(make_node, tmp_path, monkeypatch) -> None:
    log = LogDirectory(tmp_path / "log")
    with monkeypatch.context() as patch:
        patch.setattr(online_updates, "_groups_of_this_node", lambda *named: (_groups_of_this_node(*named)[1], None))
        first = Node(tmp_path, rocks(tmp_path))
        with log.producer() as producer:
            producer.send("model", "users", np.arange(100), rows_of(5, "users", 100))
        assert first.updates.drain(TIMEOUT_S)
        first.close()
    [older] = log.groups()
    (first.place / "update_member").unlink()
    with log.producer() as producer:
        producer.send("model", "users", np.array([100]), rows_of(6, "users", 1))
    node = make_node(tmp_path, rocks(tmp_path))
    assert node.updates.drain(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (0, 99, 100, 101)] == [5, 5, 6, 1]
    assert node.updates.statistics()["tiers"].rows == 1, "and not all of the log once more"
    assert len(log.groups()) == 1
    assert log.groups() != [older]


@pytest.mark.parametrize("kind", ["resident", "hash_map"])
def test_what_is_in_memory_alone_has_caught_up_before_anything_is_answered(make_node, tmp_path, kind) -> None:
    with LogDirectory(tmp_path / "log").producer() as producer:
        for key in range(50):
            producer.send("model", "users", np.array([key]), rows_of(3, "users", 1))
    node = make_node(tmp_path, KINDS[kind](tmp_path))
    assert node.updates.catch_up(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (0, 49, 50)] == [3, 3, 1]


def test_updates_that_the_model_has_are_passed_over(make_node, tmp_path) -> None:
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.send("model", "users", np.array([1]), rows_of(3, "users", 1))
    since_s = time.time()
    with log.producer() as producer:
        producer.send("model", "users", np.array([2]), rows_of(4, "users", 1))
    node = make_node(tmp_path, rocks(tmp_path), since_s=since_s)
    assert node.updates.drain(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (1, 2)] == [1, 4]


@pytest.fixture(scope="module")
def redis_server():
    with RedisServer() as server:
        yield server


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


def send(place: Path, table: str, keys: int = 50) -> None:
    with LogDirectory(place / "log").producer() as producer:
        producer.send("model", table, np.arange(keys), rows_of(5, table, keys))


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
        node = make_node(tmp_path, {"volatile_db": volatile})
        assert [node.look_up(user, 0)[0] for user in (0, 49, 50)] == [3, 3, 1]


@pytest.fixture
def over_rocks(tmp_path):
    """The tiers of servers, each with a RocksDB over one Redis, by their name; and that Redis."""
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        yield lambda name: {**rocks(tmp_path, name), "volatile_db": volatile}


def in_redis(node: Node, key: int) -> float | None:
    """The first number of a user's row there."""
    rows, found = np.empty((1, 4), np.float32), np.empty(1, np.bool_)
    node.hierarchy.tiers.lookup.volatile.store.query("users", np.array([key]), rows, found)
    return float(rows[0, 0]) if found[0] else None


def is_filled(node: Node) -> bool:
    store = node.hierarchy.tiers.lookup.volatile.store
    return store.size("users") == 200 and store.size("items") == 50


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


def test_redis_is_given_nothing_of_a_level_3_that_lacks_updates(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    for name in ("_LOOK_S", "_CURRENT_S"):
        monkeypatch.setattr(online_updates, name, 0.05)
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
        assert not lookup.level_3_is_current
        full.clear()
        wait_until(lambda: is_filled(node), TIMEOUT_S)
        assert lookup.level_3_is_current
        assert (in_redis(node, 7), in_redis(node, 8)) == (5, 1)
        full.set()
        producer.send("model", "users", np.array([7]), rows_of(6, "users", 1))
        producer.flush()
        wait_until(lambda: not lookup.level_3_is_current, TIMEOUT_S)
        full.clear()
        wait_until(lambda: lookup.level_3_is_current, TIMEOUT_S)
    assert node.updates.drain(TIMEOUT_S)
    assert in_redis(node, 7) in (6, None), "nothing, where it was taken back just as it was overwritten"


def test_redis_is_asked_as_soon_as_all_updates_are_there(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    """At the start it may lack some, which level 3 was given in the last run: the log tells how many."""
    monkeypatch.setattr(online_updates, "_LOOK_S", 0.05)
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
    ends, written = node.updates._written(tiers)
    assert ends != written
    assert tiers.lookup.counts.volatile_hits == 0
    assert tiers.lookup.level_2_lag.since_s == -math.inf
    away.clear()
    wait_until(lambda: tiers.lookup.level_2_lag.since_s > 0, TIMEOUT_S / 2)
    assert in_redis(node, 7) == 5


def test_redis_is_behind_for_as_long_as_the_log_says_so(make_node, tmp_path, over_rocks, monkeypatch) -> None:
    """Those who are to write there may be stuck, and it takes this server's writes all the same."""
    monkeypatch.setattr(online_updates, "_LOOK_S", 0.02)
    monkeypatch.setattr(online_updates, "_PROGRESS_S", 0.0)
    insert, ends_and_committed, stuck, asked = (
        RedisStore.insert,
        online_updates.ends_and_committed,
        threading.Event(),
        [],
    )

    def inserted(*arguments):
        if stuck.is_set():
            raise StoreError("no permission")
        insert(*arguments)

    monkeypatch.setattr(RedisStore, "insert", inserted)
    monkeypatch.setattr(
        online_updates, "ends_and_committed", lambda *what: asked.append(0) or ends_and_committed(*what)
    )
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
    lookup = SimpleNamespace(dims={"users": 4}, outdated=lambda *_: None)
    refresh = SimpleNamespace(ask=lambda: None)
    tiers = SimpleNamespace(lookup=lookup, generations=generations, content="model.1", refresh=refresh)
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


def test_poison_goes_where_it_is_told_to(make_node, tmp_path) -> None:
    node = make_node(tmp_path, {}, quarantine=str(tmp_path / "aside"))
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([1]), np.ones((1, 3), np.float32))
    assert node.updates.drain(TIMEOUT_S)
    assert list((tmp_path / "aside" / "model").iterdir())


def test_without_a_source_nothing_is_opened() -> None:
    assert OnlineUpdates.open("model", None, None, HierarchyConfig(), None) is None


def test_a_log_that_cannot_be_opened_is_an_error_and_leaves_no_thread(tmp_path) -> None:
    (tmp_path / "log").write_text("no directory")
    with pytest.raises(Exception, match="log"):
        Node(tmp_path, {})
