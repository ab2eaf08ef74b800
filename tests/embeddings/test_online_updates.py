import contextlib
import re
import time
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.online_updates import OnlineUpdates, reader_of_store
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.directory.log import LogDirectory

from .update_nodes import TIMEOUT_S, Node, rocks, rows_of

KINDS = {
    "resident": lambda _: {},
    "rocks_db": rocks,
    "hash_map": lambda _: {"volatile_db": {"type": "parallel_hash_map"}},
    "all": lambda place: {**rocks(place), "volatile_db": {"type": "parallel_hash_map"}},
}


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


def test_each_store_has_a_name_of_its_own_and_keeps_it(tmp_path, monkeypatch) -> None:
    """Whatever its path is called: a relative one is another store in each directory, and containers are all alike."""
    names = []
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        monkeypatch.chdir(tmp_path / directory)
        with contextlib.closing(RocksDbStore(Path("tiers"), {"users": 4})) as store:
            store.checkpoint(tmp_path / directory / "copy")
        names.append(reader_of_store("hebe", "model", Path("tiers")))
        assert reader_of_store("hebe", "model", tmp_path / directory / "tiers") == names[-1]
    (tmp_path / "b" / "tiers").rename(tmp_path / "other")
    (tmp_path / "b" / "copy").rename(tmp_path / "b" / "tiers")
    names.append(reader_of_store("hebe", "model", tmp_path / "b" / "tiers"))
    assert len(set(names)) == 3


def test_a_store_goes_on_where_it_is_whatever_name_it_reports_under(make_node, tmp_path) -> None:
    log = LogDirectory(tmp_path / "log")
    first = Node(tmp_path, rocks(tmp_path))
    with log.producer() as producer:
        producer.send("model", "users", np.arange(100), rows_of(5, "users", 100))
    assert first.updates.drain(TIMEOUT_S)
    first.close()
    [older] = log.readers()
    (first.place / "update_member").unlink()
    with log.producer() as producer:
        producer.send("model", "users", np.array([100]), rows_of(6, "users", 1))
    node = make_node(tmp_path, rocks(tmp_path))
    assert node.updates.drain(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (0, 99, 100, 101)] == [5, 5, 6, 1]
    assert node.updates.statistics()["tiers"].rows == 1, "and not all of the log once more"
    node.close()
    assert set(log.readers()) > {older}


@pytest.mark.parametrize("kind", ["resident", "hash_map"])
def test_what_is_in_memory_alone_has_caught_up_before_anything_is_answered(make_node, tmp_path, kind) -> None:
    with LogDirectory(tmp_path / "log").producer() as producer:
        for key in range(50):
            producer.send("model", "users", np.array([key]), rows_of(3, "users", 1))
    node = make_node(tmp_path, KINDS[kind](tmp_path))
    assert node.updates.catch_up(TIMEOUT_S)
    assert [node.look_up(user, 0)[0] for user in (0, 49, 50)] == [3, 3, 1]


@pytest.mark.parametrize("kind", ["resident", "hash_map"])
def test_what_is_in_memory_alone_catches_up_however_much_there_is(make_node, tmp_path, kind) -> None:
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.arange(200), rows_of(3, "users", 200))
    node = make_node(tmp_path, KINDS[kind](tmp_path), max_rows_per_s=0.01, max_batch_size=10)
    asked = []
    assert node.updates.catch_up(go_on=lambda: asked.append(0))
    assert [node.look_up(user, 0)[0] for user in (0, 199)] == [3, 3]


@pytest.mark.parametrize("kind", ["resident", "hash_map"])
def test_who_has_catching_up_to_do_is_not_kept_by_a_log_that_is_away(make_node, tmp_path, kind, caplog) -> None:
    node = make_node(tmp_path, KINDS[kind](tmp_path), failure_backoff_ms=1)
    (tmp_path / "log" / "log.json").unlink()
    assert not node.updates.catch_up(0.05)
    assert "of which nothing came for 0.05 s; they go on" in caplog.text
    with pytest.raises(ZeroDivisionError):
        node.updates.catch_up(go_on=lambda: 1 / 0)


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


def test_poison_goes_where_it_is_told_to(make_node, tmp_path) -> None:
    node = make_node(tmp_path, {}, quarantine=str(tmp_path / "aside"))
    with LogDirectory(tmp_path / "log").producer() as producer:
        producer.send("model", "users", np.array([1]), np.ones((1, 3), np.float32))
    assert node.updates.drain(TIMEOUT_S)
    assert list((tmp_path / "aside" / "model").iterdir())


def test_without_a_source_nothing_is_opened() -> None:
    assert OnlineUpdates.open("model", None, None, HierarchyConfig(), None) is None


def test_a_log_that_cannot_be_opened_is_an_error_that_names_it(tmp_path) -> None:
    (tmp_path / "log").write_text("no directory")
    with pytest.raises(StoreError, match=f"update log {re.escape(str(tmp_path / 'log'))}: cannot be opened"):
        Node(tmp_path, {})


def test_what_cannot_be_followed_whole_leaves_no_thread(tmp_path, monkeypatch, threads_begun) -> None:
    """What was begun before it failed is ended."""
    begin, begun = OnlineUpdates._begin, []

    def begin_and_fail(self, *arguments, **options) -> None:
        begin(self, *arguments, **options)
        begun.extend(threads_begun())
        raise StoreError("the log of the next tier is away")

    monkeypatch.setattr(OnlineUpdates, "_begin", begin_and_fail)
    with pytest.raises(StoreError, match="of the next tier"):
        Node(tmp_path, {})
    assert len(begun) == 1
    assert threads_begun() == []
