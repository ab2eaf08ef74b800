import contextlib
import math

import numpy as np
import pytest

from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.rocksdb.directory import CACHE_KEYS
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.tiers.tiers import Tiers
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from tests.embeddings.example_tiers import ROCKS, SOURCES, TABLES, ask, config_of, damage_rows, held


@pytest.mark.parametrize("volatile", [{}, {"volatile_db": {"type": "parallel_hash_map"}}])
@pytest.mark.parametrize("parts", [ROCKS, {"persistent_db": {}}])
def test_every_row_of_every_table_is_answered(open_tiers, parts, volatile) -> None:
    config = config_of(**parts, **volatile)
    if not config.is_tiered:
        with pytest.raises(StoreError, match="neither volatile_db nor persistent_db is configured"):
            open_tiers(config)
        return
    tiers = open_tiers(config)
    for first in range(0, 3000, 500):
        assert ask(tiers, list(range(first, first + 500))) == list(range(first, first + 500))
    assert ask(tiers, [599, 0], "items") == [599, 0]
    assert tiers.can_answer
    state = tiers.state
    assert [level.name for level in state.levels] == (["persistent_db"] if parts is ROCKS else [])
    assert state.degraded == ()
    assert state.cached_rows <= state.cache_capacity_rows
    assert state.cache_evictions > 0
    assert (state.cache_unheld, state.hash_map_evictions) == (0, 0)
    rows = sum(table.rows for table in TABLES)
    assert {name: size.rows for name, size in state.sizes.items()} == dict.fromkeys(
        [*tiers.stores_of_this_process()], rows
    )
    if volatile:
        assert state.sizes["volatile_db"].memory_bytes == tiers.memory_bytes - state.cache_bytes > 0
    assert state.counts.defaulted == state.counts.unknown == 0


def test_level_3_is_only_writable_where_updates_come(open_tiers, tmp_path) -> None:
    tiers = open_tiers(config_of())
    with pytest.raises(StoreError, match="opened to be read only"):
        tiers.stores_of_this_process()["persistent_db"].insert("items", np.array([1]), np.ones((1, 1), np.float32))
    update_source = {"type": "log_directory", "address": str(tmp_path / "log")}
    following = open_tiers(config_of(update_source=update_source), version=2)
    mine = following.stores_of_this_process()
    assert list(mine) == ["persistent_db"]
    mine["persistent_db"].insert("items", np.array([1]), np.full((1, 1), 9, np.float32))


def test_a_table_without_rows_anywhere_is_an_error_and_leaves_the_directory_free(open_tiers, tmp_path) -> None:
    with pytest.raises(StoreError, match="items"):
        open_tiers(config_of(), sources={"users": SOURCES["users"]})
    with pytest.raises(StoreError, match="items"):
        open_tiers(
            config_of(persistent_db={}, volatile_db={"type": "parallel_hash_map"}), sources={"users": SOURCES["users"]}
        )
    open_tiers(config_of())
    assert (tmp_path / "model/1").is_dir()


def test_refreshes_bring_what_was_written_below(open_tiers, tmp_path) -> None:
    tiers = open_tiers(config_of(update_source={"type": "log_directory", "address": str(tmp_path / "log")}))
    key = min(held(tiers))
    tiers.stores_of_this_process()["persistent_db"].insert("users", np.array([key]), np.full((1, 4), -5, np.float32))
    assert ask(tiers, [key]) == [key]
    assert tiers.refresh.refresh().replaced > 0
    assert ask(tiers, [key]) == [-5]
    assert tiers.state.refreshes == 1


def test_unknown_keys_are_told(open_tiers) -> None:
    tiers = open_tiers(config_of())
    rows = np.empty((2, 4), np.float32)
    states = tiers.lookup.look_up("users", np.array([5, 2**40]), rows, math.inf)
    assert states is not None
    assert states[1] == RowState.UNKNOWN


def test_a_store_that_is_in_use_names_its_directory(open_tiers, tmp_path) -> None:
    open_tiers(config_of(update_source={"type": "log_directory", "address": str(tmp_path / "log")}))
    with pytest.raises(StoreError, match=r"in use|lock"):
        RocksDbStore(tmp_path / "model" / "1")


def test_damage_anywhere_is_told_where_every_row_is_verified(open_tiers, tmp_path) -> None:
    """Otherwise those rows are default vectors when they are asked for, and said to be; they alone."""
    place = tmp_path / "model" / "1"
    open_tiers(config_of()).close()
    damage_rows(place, 0.6)
    tiers = open_tiers(config_of())
    keys, rows, count = np.arange(3000), np.zeros((3000, 4), np.float32), 0
    for first in range(0, 3000, 50):
        part = slice(first, first + 50)
        states = tiers.lookup.look_up("users", keys[part], rows[part])
        defaulted = np.zeros(50, np.bool_) if states is None else states == RowState.DEFAULTED
        assert np.array_equal(rows[part, 0], np.where(defaulted, 0, keys[part]))
        count += int(np.count_nonzero(defaulted))
    assert 0 < count < 4096 / 16, "of one block of the file"
    assert "Corruption" in (tiers.state.levels[0].fault or "")
    assert not tiers.state.degraded
    tiers.close()
    with pytest.raises(StoreError, match=f"{place}: cannot read table .*remove the directory"):
        Tiers.open(ModelRows("model", 1, TABLES, SOURCES, "identity"), config_of(), place, verify=True)


def test_a_restart_does_not_use_rows_of_a_redis_that_lacks_updates_of_the_last_run(
    open_tiers, shared_redis_config, redis, tmp_path
) -> None:
    """Level 3 had them then; the server that is to write them to Redis is stuck."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    first, keys = open_tiers(shared_redis_config), np.array([0, 2999])
    first.lookup.volatile.store.insert("users", keys, np.full((2, 4), 5, np.float32))
    for offset, row in enumerate([6, 7]):
        position = f"{log.identity()}/model/users/0", offset
        first.lookup.persistent.store.apply("users", keys, np.full((2, 4), row, np.float32), position)
    writer = f"hebe2:{{{first.lookup.volatile.store.namespace.replace('/', '%2F')}}}:writer"
    first.close()
    with contextlib.closing(redis.client()) as client, log.producer() as producer:
        client.set(writer, "another server")
        for row in (6, 7):
            producer.send("model", "users", keys, np.full((2, 4), row, np.float32))
            producer.flush()
        tiers = open_tiers(shared_redis_config)
        assert 0 in held(tiers)
        assert 2999 not in held(tiers)
        assert ask(tiers, [0, 2999]) == [7, 7]
        assert tiers.state.counts.volatile_hits == 0
        client.delete(writer)
        tiers.keeper.start()
        assert tiers.keeper.drain(60.0)
    tiers.cache.delete("users", keys)
    assert ask(tiers, [0, 2999]) == [7, 7]
    assert tiers.state.counts.volatile_hits == 2
    log.close()


@pytest.mark.parametrize("failing", ["refresh", "background", "_keys_file"])
def test_what_cannot_be_closed_keeps_nothing_else_open(open_tiers, tmp_path, monkeypatch, failing) -> None:
    def refuse() -> None:
        raise RuntimeError("not to be closed")

    tiers = open_tiers(config_of(volatile_db={"type": "parallel_hash_map"}))
    ask(tiers, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(getattr(tiers, failing), "close", refuse)
        with pytest.raises(RuntimeError, match="not to be closed"):
            tiers.close()
    assert (failing != "_keys_file") == any(path.name == CACHE_KEYS for path in tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="closed"):
        ask(tiers, [1])
