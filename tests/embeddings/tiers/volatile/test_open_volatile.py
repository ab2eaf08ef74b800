import threading

import numpy as np
import pytest
from tests.embeddings.example_tiers import ask, config_of
from tests.servers.redis_servers import RedisServer, wait_until

from hebe.embeddings.store import StoreError


def test_level_2_in_this_process_comes_after_level_3_and_is_filled_from_it(open_tiers) -> None:
    config = config_of(volatile_db={"type": "parallel_hash_map", "initial_cache_rate": 0.5}, cache={"init_ec": False})
    tiers = open_tiers(config)
    assert list(tiers.stores_of_this_process()) == ["persistent_db", "volatile_db"]
    assert tiers.stores_of_this_process()["volatile_db"].size("users") == 1500
    assert tiers.memory_bytes > tiers.cache.memory_bytes


def test_a_level_2_without_memory_for_all_takes_new_rows_for_old_ones_where_level_3_has_both(open_tiers) -> None:
    """What an update adds is left out where it could not."""
    volatile = {"type": "parallel_hash_map", "num_partitions": 1, "memory_bytes": 1 << 20}
    tiers = open_tiers(config_of(volatile_db=volatile))
    store = tiers.stores_of_this_process()["volatile_db"]
    for first in range(0, 100_000, 10_000):
        keys = np.arange(first, first + 10_000)
        store.insert("users", keys, np.repeat(keys.astype(np.float32)[:, None], 4, axis=1))
    assert 0 < store.size("users") < 50_000
    assert tiers.state.hash_map_evictions >= 50_000
    alone = open_tiers(config_of(persistent_db={}, volatile_db=volatile, cache={"init_ec": False}), version=2)
    store = alone.stores_of_this_process()["volatile_db"]
    store.insert("users", np.arange(99_000), np.full((99_000, 4), -1, np.float32))
    assert store.size("users") + store.refused_keys["users"] == 99_000
    assert ask(alone, [0, 2999, 98_999]) == [-1, -1, 0], "what it has is brought up to date"


def test_a_model_without_room_for_its_rows_is_not_loaded(open_tiers) -> None:
    volatile = {"type": "parallel_hash_map", "num_partitions": 1, "memory_bytes": 60_000}
    with pytest.raises(StoreError, match="memory bound"):
        open_tiers(config_of(persistent_db={}, volatile_db=volatile))


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
