import math
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hebe.embeddings.batch_lookup import RowState
from hebe.embeddings.hierarchy_config import (
    HierarchyConfig,
)
from hebe.embeddings.model_rows import ModelRows
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.store_directory import CACHE_KEYS
from hebe.embeddings.tier_memory import planned_tier_bytes
from hebe.embeddings.tiers import Tiers
from hebe.spec import EmbeddingTableSpec

from ..redis_servers import RedisServer, wait_until

TABLES = (EmbeddingTableSpec("users", 3000, 4), EmbeddingTableSpec("items", 600, 1))
SOURCES = {
    table.name: np.repeat(np.arange(table.rows, dtype=np.float32)[:, None], table.dim, axis=1) for table in TABLES
}
ROCKS = {"persistent_db": {"type": "rocks_db", "path": "rows", "timeout_ms": 60_000}}


def config_of(**parts: dict) -> HierarchyConfig:
    cache = parts.pop("cache", {})
    size = {} if "cache_bytes" in cache else {"cache_fraction": 0.1}
    return HierarchyConfig.from_mapping({**ROCKS, **parts, "cache": {**size, **cache}})


@pytest.fixture
def open_tiers(tmp_path):
    opened: list[Tiers] = []

    def make(config: HierarchyConfig, version: int = 1, sources=SOURCES) -> Tiers:
        place = tmp_path / "model" / str(version)
        opened.append(Tiers.open(ModelRows("model", version, TABLES, sources, "identity"), config, place))
        return opened[-1]

    yield make
    for tiers in opened:
        tiers.close()


def ask(tiers: Tiers, keys: list[int], table: str = "users") -> list[float]:
    rows = np.full((len(keys), tiers.lookup.dims[table]), np.nan, np.float32)
    tiers.lookup.look_up(table, np.array(keys), rows)
    return rows[:, 0].tolist()


def held(tiers: Tiers, table: str = "users") -> set[int]:
    return {int(key) for keys in tiers.cache.dump_keys(table, 100) for key in keys}


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
    assert state.counts.defaulted == state.counts.unknown == 0


def test_level_1_is_warm_before_anything_is_asked(open_tiers) -> None:
    tiers = open_tiers(config_of())
    assert len(held(tiers)) > 200
    assert held(tiers) <= set(range(tiers.cache.tables["users"].capacity))
    assert tiers.lookup.counts.cache_misses == 0
    assert not held(open_tiers(config_of(cache={"init_ec": False}), version=2))


def test_a_restart_is_as_warm_as_the_run_before_and_so_is_the_next_version(open_tiers, tmp_path) -> None:
    wanted = list(range(2000, 2200))
    first = open_tiers(config_of(cache={"init_ec": False}))
    ask(first, wanted)
    first.close()
    assert held_on_disk(tmp_path / "model/1") == set(wanted)
    again = open_tiers(config_of())
    assert held(again) == set(wanted)
    again.close()
    assert held(open_tiers(config_of(), version=2)) == set(wanted)


def held_on_disk(place: Path) -> set[int]:
    return set(load_file(place / CACHE_KEYS)["users"].tolist())


def test_known_frequencies_fill_a_cache_that_has_no_past(open_tiers, tmp_path) -> None:
    hottest_first = np.arange(2999, -1, -1)
    save_file({"users": hottest_first}, tmp_path / "known.safetensors")
    tiers = open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "known.safetensors")}))
    capacity = tiers.cache.tables["users"].capacity
    assert min(held(tiers)) >= 3000 - capacity
    assert held(tiers) >= set(range(2999, 2999 - capacity // 2, -1)), "where a slabset is full the coldest give way"
    saved = tiers.cache.keys_by_use("users")
    assert set(saved.tolist()) == held(tiers)
    steps = np.arange(saved.size) // (saved.size // 8)
    assert (np.diff([np.median(saved[steps == step]) for step in range(8)]) < 0).all(), "the hottest first"
    assert held(tiers, "items") <= set(range(600)), "a table that the file lacks begins with its first rows"


def test_known_frequencies_that_are_not_there_are_an_error(open_tiers, tmp_path) -> None:
    with pytest.raises(StoreError, match=r"warm_up_keys .*typo\.safetensors: there is no such file"):
        open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "typo.safetensors")}))
    open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "typo.safetensors"), "init_ec": False}))


def test_level_3_is_only_writable_where_updates_come(open_tiers, tmp_path) -> None:
    tiers = open_tiers(config_of())
    with pytest.raises(StoreError, match="opened to be read only"):
        tiers.stores_of_this_process()["persistent_db"].insert("items", np.array([1]), np.ones((1, 1), np.float32))
    update_source = {"type": "log_directory", "address": str(tmp_path / "log")}
    following = open_tiers(config_of(update_source=update_source), version=2)
    mine = following.stores_of_this_process()
    assert list(mine) == ["persistent_db"]
    mine["persistent_db"].insert("items", np.array([1]), np.full((1, 1), 9, np.float32))


def test_level_2_in_this_process_comes_after_level_3_and_is_filled_from_it(open_tiers) -> None:
    config = config_of(volatile_db={"type": "parallel_hash_map", "initial_cache_rate": 0.5}, cache={"init_ec": False})
    tiers = open_tiers(config)
    assert list(tiers.stores_of_this_process()) == ["persistent_db", "volatile_db"]
    assert tiers.stores_of_this_process()["volatile_db"].size("users") == 1500
    assert tiers.memory_bytes > tiers.cache.memory_bytes


def test_a_level_2_without_memory_for_all_takes_new_rows_for_old_ones_where_level_3_has_both(open_tiers) -> None:
    """An update of a row that it lacks would be refused, and tried again for ever, where it could not."""
    volatile = {"type": "parallel_hash_map", "num_partitions": 1, "memory_bytes": 1 << 20}
    tiers = open_tiers(config_of(volatile_db=volatile))
    store = tiers.stores_of_this_process()["volatile_db"]
    for first in range(0, 100_000, 10_000):
        keys = np.arange(first, first + 10_000)
        store.insert("users", keys, np.repeat(keys.astype(np.float32)[:, None], 4, axis=1))
    assert 0 < store.size("users") < 50_000
    assert tiers.state.hash_map_evictions >= 50_000
    alone = open_tiers(config_of(persistent_db={}, volatile_db=volatile), version=2)
    with pytest.raises(StoreError, match="memory bound"):
        alone.stores_of_this_process()["volatile_db"].insert(
            "users", np.arange(99_000), np.zeros((99_000, 4), np.float32)
        )


@pytest.mark.parametrize("volatile", [{}, {"type": "parallel_hash_map"}])
@pytest.mark.parametrize("cache", [{}, {"cache_bytes": 4 << 20}, {"row_format": "int8"}])
def test_the_memory_is_known_before_it_is_taken(open_tiers, volatile, cache) -> None:
    config = config_of(volatile_db=volatile, cache=cache)
    planned = planned_tier_bytes("model", TABLES, config)
    tiers = open_tiers(config)
    if not volatile:
        assert tiers.memory_bytes == planned
    assert planned * 0.8 < tiers.memory_bytes <= planned


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


def damage_rows(place: Path, share: float) -> None:
    """Change some bytes of level 3's largest file of rows, so far into it."""
    file = max((place / "rows").glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    first = int(share * len(content))
    content[first : first + 8] = bytes(byte ^ 0x5A for byte in content[first : first + 8])
    file.write_bytes(content)


@pytest.mark.parametrize("parts", [{}, {"volatile_db": {"type": "parallel_hash_map"}}])
def test_rows_that_the_disk_has_damaged_are_told_when_they_are_to_warm_a_tier(open_tiers, tmp_path, parts) -> None:
    place = tmp_path / "model" / "1"
    open_tiers(config_of(**parts)).close()
    (place / CACHE_KEYS).unlink()
    damage_rows(place, 0.02)
    with pytest.raises(StoreError, match=f"{place}: cannot read table .*remove the directory"):
        open_tiers(config_of(**parts))
    RocksDbStore(place, read_only=True).close()  # nobody holds it


def test_damage_anywhere_is_told_where_every_row_is_verified(open_tiers, tmp_path) -> None:
    """Otherwise those rows are default vectors when they are asked for, and said to be."""
    place = tmp_path / "model" / "1"
    open_tiers(config_of()).close()
    damage_rows(place, 0.6)
    tiers = open_tiers(config_of())
    keys, rows = np.arange(3000), np.zeros((3000, 4), np.float32)
    for first in range(0, 3000, 50):
        part = slice(first, first + 50)
        states = tiers.lookup.look_up("users", keys[part], rows[part])
        defaulted = np.zeros(50, np.bool_) if states is None else states == RowState.DEFAULTED
        assert np.array_equal(rows[part, 0], np.where(defaulted, 0, keys[part]))
    assert "Corruption" in (tiers.state.levels[0].fault or "")
    tiers.close()
    with pytest.raises(StoreError, match=f"{place}: cannot read table .*remove the directory"):
        Tiers.open(ModelRows("model", 1, TABLES, SOURCES, "identity"), config_of(), place, verify=True)


def test_what_is_written_to_redis_takes_no_connection_from_queries(open_tiers) -> None:
    """One is all that they have; a write that hangs must not have it."""
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_node_connections": 1, "timeout_ms": 60_000}
        tiers = open_tiers(config_of(volatile_db=volatile, cache={"init_ec": False}))
        level_2 = tiers.lookup.volatile
        with redis.client() as client:
            client.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
            row = np.ones((1, 4), np.float32)
            writer = threading.Thread(target=level_2.store.insert, args=("users", np.array([1]), row))
            writer.start()
            wait_until(lambda: client.info("clients")["blocked_clients"] > 0, 60.0)
            assert ask(tiers, [5]) == [5]
            assert tiers.state.counts.volatile_hits == 1
            assert writer.is_alive(), "it has not been waited for"
            client.execute_command("CLIENT", "UNPAUSE")
        writer.join()


@pytest.fixture
def shared():
    """A configuration with a Redis to which other servers write too."""
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
        yield config_of(volatile_db=volatile, update_source={"type": "log_directory", "address": "log"})


def test_a_restart_does_not_believe_what_redis_may_not_have_been_given_yet(open_tiers, shared) -> None:
    """Level 3 had updates in the last run that other servers have yet to write there."""
    first = open_tiers(shared)
    keys = np.array([0, 2999])
    first.lookup.volatile.store.insert("users", keys, np.full((2, 4), 5, np.float32))
    first.lookup.persistent.store.insert("users", keys, np.full((2, 4), 7, np.float32))
    first.close()
    tiers = open_tiers(shared)
    assert 0 in held(tiers)
    assert 2999 not in held(tiers)
    tiers.start()
    assert ask(tiers, [0, 2999]) == [7, 7]
    tiers.background.drain()
    assert tiers.lookup.volatile.store.size("users") == 2, "level 3 may lack updates as well"
    lag = tiers.lookup.level_2_lag
    wait_until(lambda: lag._taking_s > 0, 60.0)
    assert lag.since_s == -math.inf, "it has not taken writes for long"


def test_redis_that_others_write_to_is_filled_once_level_3_has_all_updates(open_tiers, shared) -> None:
    tiers = open_tiers(shared)
    level_2 = tiers.lookup.volatile.store
    tiers.start()
    assert level_2.size("users") == level_2.size("items") == 0
    level_2.insert("users", np.array([5]), np.full((1, 4), -5, np.float32))
    steps = iter([True, False])
    tiers.fill_level_2(lambda: next(steps))
    assert level_2.size("users") == 2048
    tiers.fill_level_2(lambda: True)
    assert (level_2.size("users"), level_2.size("items")) == (3000, 600)
    rows, found = np.empty((3000, 4), np.float32), np.empty(3000, np.bool_)
    level_2.query("users", np.arange(3000), rows, found)
    assert rows[:, 0].tolist() == [*range(5), -5, *range(6, 3000)]
    level_2.delete("users", np.arange(1, 3000))
    level_2.delete("items", np.arange(600))
    tiers.fill_level_2(lambda: True)
    assert (level_2.size("users"), level_2.size("items")) == (1, 0), "that was for the start"
    tiers.close()
    again = open_tiers(shared)
    again.fill_level_2(lambda: True)
    level_2 = again.lookup.volatile.store
    assert (level_2.size("users"), level_2.size("items")) == (1, 600), "others fill what has some rows"
