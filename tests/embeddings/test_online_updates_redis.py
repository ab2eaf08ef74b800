"""Online updates of servers that share a Redis: alone, and over a RocksDB of each."""

import contextlib
import threading
import time

import numpy as np
import pytest

from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.writer import RedisWriter
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import redis_keeper
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.opening import open_update_log
from tests.servers.redis_servers import RedisServer, wait_until

from .update_nodes import TIMEOUT_S, Node, in_redis, is_filled, rocks, rows_of, send

COLD = {"cache": {"init_ec": False}}


def alone(redis: RedisServer) -> dict:
    return {"volatile_db": {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}}


@pytest.fixture
def tiers_of(redis, tmp_path):
    """The tiers of a server with a RocksDB of its own name, or without, over the one Redis."""

    def tiers(name: str, *, level_3: bool) -> dict:
        return {**(rocks(tmp_path, name) if level_3 else {}), **alone(redis)}

    return tiers


@contextlib.contextmanager
def nobody_writes(redis: RedisServer):
    """As if the server that is to write to Redis stood still."""
    with redis.client() as client:
        [lease] = client.keys("hebe2:*:writer")
        client.set(lease, "nobody")
        yield
        client.delete(lease)


def taken(node: Node, rows: int) -> None:
    """Wait until the server itself has seen so many rows, whatever Redis has."""
    wait_until(lambda: node.updates.statistics()["tiers"].rows >= rows, TIMEOUT_S)


def writers(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if "volatile_db" in node.updates.statistics()]


@pytest.mark.parametrize("level_3", [True, False])
def test_one_of_the_servers_that_share_redis_writes_and_all_see_it(make_node, tmp_path, tiers_of, level_3) -> None:
    nodes = [make_node(tmp_path, tiers_of(name, level_3=level_3), name=name) for name in ("one", "two")]
    for node in nodes:
        assert [node.look_up(user, 0)[0] for user in range(100)] == [1.0] * 100, "and they are in level 1 now"
    followers = nodes
    for pushed in (2, 3):
        with LogDirectory(tmp_path / "log").producer() as producer:
            producer.send("model", "users", np.arange(100), rows_of(pushed, "users", 100))
        for node in followers:
            assert node.updates.drain(TIMEOUT_S)
            assert {node.look_up(user, 0)[0] for user in range(100)} == {pushed}
            assert {in_redis(node, user) for user in range(100)} == {pushed}
        [writer] = writers(nodes)
        assert writer.updates.statistics()["volatile_db"].rows >= 100
        if pushed == 2:
            writer.hierarchy.tiers.keeper.close()
            followers = [node for node in nodes if node is not writer]
            wait_until(lambda others=followers: bool(writers(others)), TIMEOUT_S)


def test_a_server_follows_all_that_was_to_be_written_when_its_level_1_was_filled(make_node, tmp_path, redis) -> None:
    """Whoever writes it may do so at any time, before that server reads the log or later."""
    tiers = {**alone(redis), "cache": {"cache_fraction": 1.0}}
    first = make_node(tmp_path, tiers, name="one")
    send(tmp_path, "items")
    assert first.updates.drain(TIMEOUT_S)
    with nobody_writes(redis):
        send(tmp_path, "users")
        second = make_node(tmp_path, tiers, name="two", filled=lambda: send(tmp_path, "users", 60))
        assert second.look_up(0, 0)[1] == 5, "it was filled with what was there"
        wait_until(lambda: [second.look_up(user, 0)[0] for user in range(61)] == [5] * 60 + [1], TIMEOUT_S)
    assert second.updates.drain(TIMEOUT_S)
    assert in_redis(second, 59) == 5


def test_level_1_follows_at_no_rate(make_node, tmp_path, redis) -> None:
    tiers = {**alone(redis), "cache": {"cache_fraction": 1.0}}
    node = make_node(tmp_path, tiers, max_rows_per_s=0.01, max_batch_size=1)
    wait_until(lambda: writers([node]), TIMEOUT_S)
    send(tmp_path, "users")
    taken(node, 50)
    assert node.updates.statistics()["volatile_db"].rows < 50
    assert node.look_up(49, 0)[0] == 5


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("level_3", [True, False])
def test_what_redis_has_yet_to_be_given_is_not_kept_as_new(
    make_node, tmp_path, redis, tiers_of, deleted, level_3
) -> None:
    nodes = [
        make_node(tmp_path, {**tiers_of(name, level_3=level_3), "cache": {"cache_fraction": 1.0}}, name=name)
        for name in ("one", "two")
    ]
    wait_until(lambda: is_filled(nodes[0]), TIMEOUT_S)
    assert [node.look_up(7, 3) for node in nodes] == [(1, 1, (0, 0, 0))] * 2
    with nobody_writes(redis):
        wait_until(lambda: not writers(nodes), TIMEOUT_S)
        with LogDirectory(tmp_path / "log").producer() as producer:
            if deleted:
                producer.delete("model", "users", np.array([7]))
            else:
                producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
        seen = (5, 1, (0, 0, 0))
        if deleted:
            seen = (0, 1, (0, 0, 1)) if level_3 else (1, 1, (0, 1, 0))
        for node in nodes:
            wait_until(lambda node=node: node.updates.statistics()["tiers"].visible["cache"].answers == 1, TIMEOUT_S)
            for _ in range(2):
                assert node.look_up(7, 3) == seen
            node.hierarchy.tiers.refresh.refresh()
            assert node.look_up(7, 3)[0] == seen[0], "level 1 was refreshed"
        assert in_redis(nodes[0], 7) == 1
    after = (0, 1, (0, 0, 1)) if deleted else (5, 1, (0, 0, 0))
    for node in nodes:
        assert node.updates.drain(TIMEOUT_S)
        wait_until(lambda node=node: node.look_up(7, 3) == after, TIMEOUT_S)


def test_rows_in_redis_are_of_one_content_whatever_version_it_calls_itself(make_node, tmp_path, redis) -> None:
    """As when a version's files were written again: Redis has rows of before, and updates too."""
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
    for trained in (11, 12, 11):
        node = make_node(tmp_path, alone(redis), trained=trained)
        assert node.updates.drain(TIMEOUT_S)
        assert (node.look_up(7, 0)[0], node.look_up(8, 0)[0]) == (5, trained)
        node.close()


@pytest.mark.parametrize("level_3", [True, False])
def test_a_redis_that_was_emptied_has_all_updates_again(make_node, tmp_path, redis, tiers_of, level_3) -> None:
    """Where it is alone its keys are defaulted meanwhile, not unknown."""
    nodes = [make_node(tmp_path, {**tiers_of(name, level_3=level_3), **COLD}, name=name) for name in ("one", "two")]
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.send("model", "users", np.arange(50), rows_of(5, "users", 50))
        producer.delete("model", "users", np.array([49]))
    assert all(node.updates.drain(TIMEOUT_S) for node in nodes)
    with redis.client() as client:
        client.flushall()
    if level_3:
        assert nodes[0].look_up(190, 30)[2] == (0, 0, 0)
    else:
        assert nodes[0].look_up(190, 30)[2] == (2, 0, 0)
    for node in nodes:
        wait_until(lambda node=node: node.look_up(190, 30)[2] == (0, 0, 0), TIMEOUT_S)
    third = make_node(tmp_path, {**tiers_of("three", level_3=level_3), **COLD}, name="three")
    assert third.updates.drain(TIMEOUT_S)
    for node in (*nodes, third):
        assert [node.look_up(user, 0)[0] for user in (0, 48, 50)] == [5, 5, 1]
        assert node.look_up(49, 0)[2] == (0, 0, 1), "deleted"
    with log.producer() as producer:
        producer.send("model", "users", np.array([0]), rows_of(6, "users", 1))
    assert all(node.updates.drain(TIMEOUT_S) for node in (*nodes, third))
    assert [node.look_up(0, 0)[0] for node in (*nodes, third)] == [6, 6, 6]
    assert in_redis(nodes[0], 49) is None
    assert len([reader for reader in log.readers() if "model.1." in reader]) == 1


def test_a_redis_alone_has_all_updates_before_it_answers(make_node, tmp_path, redis) -> None:
    with LogDirectory(tmp_path / "log").producer() as producer:
        for key in range(50):
            producer.send("model", "users", np.array([key]), rows_of(3, "users", 1))
    node = make_node(tmp_path, alone(redis), max_rows_per_s=0.01, max_batch_size=1)
    assert [node.look_up(user, 0)[0] for user in (0, 49, 50)] == [3, 3, 1]


def test_rows_that_redis_alone_has_without_the_updates_of_the_log_are_stale(
    make_node, tmp_path, redis, monkeypatch
) -> None:
    """The log was away when they were put there: each server knows that, until it can be read."""
    monkeypatch.setattr(redis_keeper, "PATIENCE_S", 0.0)
    with RedisServer() as log_server:
        url = f"redis://{log_server.address}"
        with open_update_log(url).producer() as producer:
            producer.send("model", "users", np.arange(50), rows_of(5, "users", 50))
        log_server.pause()
        source = {"type": "redis_streams", "address": log_server.address}
        nodes = [make_node(tmp_path, {**alone(redis), **COLD}, name=name, **source) for name in ("one", "two")]
        for node in nodes:
            assert node.look_up(7, 3) == (1, 1, (0, 2, 0))
        log_server.resume()
        for node in nodes:
            wait_until(lambda node=node: node.look_up(7, 3) == (5, 1, (0, 0, 0)), TIMEOUT_S)


def test_a_log_that_lost_its_past_is_reported_at_once(make_node, tmp_path, redis, caplog) -> None:
    """Log and rows are in one Redis, which restarts empty: whatever updates there were are gone."""
    source = {"type": "redis_streams", "address": redis.address}
    nodes = [make_node(tmp_path, {**alone(redis), **COLD}, name=name, **source) for name in ("one", "two")]
    with open_update_log(f"redis://{redis.address}").producer() as producer:
        producer.send("model", "users", np.arange(50), rows_of(5, "users", 50))
    for node in nodes:
        assert node.updates.drain(TIMEOUT_S)
        assert node.hierarchy.tiers.state.lost_log is None
    time.sleep(1.5 * redis_keeper._LOOK_S)  # so that each has seen that there were updates
    with redis.client() as client:
        client.flushall()
    for node in nodes:
        wait_until(lambda node=node: node.hierarchy.tiers.state.lost_log is not None, TIMEOUT_S)
        wait_until(lambda node=node: node.look_up(100, 3)[2] == (0, 2, 0), TIMEOUT_S)
        wait_until(lambda node=node: node.updates.statistics()["tiers"].last_error is not None, TIMEOUT_S)
    assert node.hierarchy.tiers.state.lost_log in caplog.text
    with open_update_log(f"redis://{redis.address}").producer() as producer:
        producer.send("model", "users", np.array([100]), rows_of(6, "users", 1))
    for node in nodes:
        assert node.updates.drain(TIMEOUT_S)
        wait_until(lambda node=node: node.look_up(100, 3) == (6, 1, (0, 1, 0)), TIMEOUT_S)


def test_each_redis_is_given_all_updates_though_two_have_one_log(make_node, tmp_path, tiers_of) -> None:
    """As in two regions, or with staging beside production."""
    with RedisServer() as other:
        nodes = [
            make_node(tmp_path, tiers_of("here", level_3=True), name="here"),
            make_node(tmp_path, {**rocks(tmp_path, "there"), **alone(other)}, name="there"),
        ]
        send(tmp_path, "users", 100)
        for node in nodes:
            assert node.updates.drain(TIMEOUT_S)
            assert in_redis(node, 99) == 5
            node.close()


def test_a_server_that_stood_still_as_it_filled_redis_puts_no_old_rows_over_newer_ones(
    make_node, tmp_path, tiers_of, monkeypatch
) -> None:
    """Others write updates to the same Redis meanwhile."""
    fill, starts, go_on, ended = RedisStore.fill, threading.Event(), threading.Event(), threading.Event()

    def held_up(*arguments):
        if starts.is_set():
            return fill(*arguments)
        starts.set()
        assert go_on.wait(TIMEOUT_S)
        refused = fill(*arguments)
        ended.set()
        return refused

    monkeypatch.setattr(RedisStore, "fill", held_up)
    make_node(tmp_path, {**tiers_of("late", level_3=True), **COLD}, name="late")
    assert starts.wait(TIMEOUT_S)
    node = make_node(tmp_path, {**tiers_of("node", level_3=True), **COLD}, name="node")
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([150]), rows_of(5, "users", 1))
        producer.delete("model", "users", np.array([151]))
    assert node.updates.drain(TIMEOUT_S), "it writes once the other one's lease has expired"
    go_on.set()
    assert ended.wait(TIMEOUT_S)
    assert [in_redis(node, key) for key in (150, 151)] == [5, None]
    assert in_redis(node, 0) in (None, 1)


@pytest.mark.parametrize("level_3", [True, False])
def test_a_server_that_stood_still_within_a_write_leaves_no_old_row(
    make_node, tmp_path, tiers_of, monkeypatch, level_3
) -> None:
    """Another one has written a newer row of the key meanwhile."""
    apply, stands_still, go_on = RedisWriter.apply, threading.Event(), threading.Event()

    def held_up(*arguments, **more):
        if not stands_still.is_set():
            stands_still.set()
            assert go_on.wait(TIMEOUT_S)
        return apply(*arguments, **more)

    tiers = [{**tiers_of(name, level_3=level_3), **COLD} for name in ("late", "node")]
    late = make_node(tmp_path, tiers[0], name="late")
    monkeypatch.setattr(RedisWriter, "apply", held_up)
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
        producer.flush()
        assert stands_still.wait(TIMEOUT_S)
        late.hierarchy.tiers.keeper._closing.set()  # nothing prolongs its lease any more
        node = make_node(tmp_path, tiers[1], name="node")
        producer.send("model", "users", np.array([7]), rows_of(6, "users", 1))
        producer.flush()
        assert node.updates.drain(TIMEOUT_S)
    assert in_redis(node, 7) == 6
    go_on.set()
    late.close()
    assert in_redis(node, 7) == 6
    assert node.look_up(7, 3)[0] == 6


def test_redis_is_given_nothing_of_a_level_3_that_lacks_updates(make_node, tmp_path, tiers_of, monkeypatch) -> None:
    apply, full = RocksDbStore.apply, threading.Event()

    def applied(*arguments, **more):
        if full.is_set():
            raise StoreError("the disk is full")
        return apply(*arguments, **more)

    monkeypatch.setattr(RocksDbStore, "apply", applied)
    full.set()
    node = make_node(tmp_path, {**tiers_of("node", level_3=True), **COLD})
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([7]), rows_of(5, "users", 1))
        producer.delete("model", "users", np.array([8]))
    wait_until(lambda: in_redis(node, 7) == 5, TIMEOUT_S)
    wait_until(lambda: in_redis(node, 8) is None, TIMEOUT_S)
    assert node.hierarchy.tiers.keeper.drain(TIMEOUT_S)
    assert node.look_up(8, 0)[0] == 1, "it is what level 3 has, which is behind"
    node.hierarchy.tiers.background.drain()
    assert in_redis(node, 8) is None, "nor is it put back into Redis"
    full.clear()
    assert node.updates.drain(TIMEOUT_S)
    assert node.look_up(8, 0)[2] == (0, 0, 1)
    node.hierarchy.tiers.background.drain()
    assert in_redis(node, 8) is None


def test_redis_keeps_no_deleted_row_that_a_lagging_server_still_has(make_node, tmp_path, tiers_of, monkeypatch) -> None:
    apply, go_on = RocksDbStore.apply, threading.Event()

    def slow(store, *arguments, **more):
        if store.path == late.place:
            assert go_on.wait(TIMEOUT_S)
        return apply(store, *arguments, **more)

    late, node = (make_node(tmp_path, {**tiers_of(name, level_3=True), **COLD}, name=name) for name in ("late", "node"))
    wait_until(lambda: is_filled(node), TIMEOUT_S)
    monkeypatch.setattr(RocksDbStore, "apply", slow)
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.delete("model", "users", np.array([7, 8]))
    assert node.updates.drain(TIMEOUT_S)
    assert (in_redis(node, 7), in_redis(node, 8)) == (None, None)
    for key in (7, 8):
        assert node.look_up(key, 0)[2] == (0, 0, 1)
        assert late.look_up(key, 0)[0] == 1
        late.hierarchy.tiers.background.drain()
        assert in_redis(node, key) is None
    go_on.set()
    assert late.updates.drain(TIMEOUT_S)
    assert late.look_up(7, 0)[2] == (0, 0, 1)


def test_a_restart_believes_no_row_of_redis_that_level_3_has_a_newer_one_of(
    make_node, tmp_path, redis, tiers_of
) -> None:
    first = Node(tmp_path, {**tiers_of("node", level_3=True), **COLD})
    wait_until(lambda: is_filled(first), TIMEOUT_S)
    with nobody_writes(redis):
        wait_until(lambda: not writers([first]), TIMEOUT_S)
        send(tmp_path, "users", 8)
        taken(first, 8)
        first.close()
        node = make_node(tmp_path, {**tiers_of("node", level_3=True), "cache": {"cache_fraction": 1.0}})
        assert in_redis(node, 7) == 1
        assert node.look_up(7, 3)[0] == 5, "level 1 was filled from level 3"
        other = make_node(tmp_path, {**tiers_of("other", level_3=True), **COLD}, name="other")
        taken(other, 8)
        assert other.look_up(7, 3)[0] == 5
    assert node.updates.drain(TIMEOUT_S)
    assert in_redis(node, 7) == 5
