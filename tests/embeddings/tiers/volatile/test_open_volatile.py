import re
import threading

import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import open_volatile as module
from tests.embeddings.example_tiers import ask, config_of
from tests.servers.redis_servers import RedisServer, make_certificates, wait_until


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


def test_redis_that_updates_are_written_to_is_filled_while_queries_go_on(open_tiers, shared_redis_config) -> None:
    tiers = open_tiers(shared_redis_config)
    level_2 = tiers.lookup.volatile.store
    assert level_2.size("users") == level_2.size("items") == 0
    assert tiers.keeper.look()
    assert (level_2.size("users"), level_2.size("items")) == (3000, 600)
    rows, found = np.empty((3000, 4), np.float32), np.empty(3000, np.bool_)
    level_2.query("users", np.arange(3000), rows, found)
    assert rows[:, 0].tolist() == [*range(3000)]
    level_2.delete("users", np.arange(3000))
    tiers.keeper.look()
    assert level_2.size("users") == 0, "others fill what was begun"
    level_2.clear()
    tiers.keeper.look()
    assert (level_2.size("users"), level_2.size("items")) == (3000, 600)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stalled", "has not answered within [0-9.]+ s"),
        ("password", "WRONGPASS|invalid username-password"),
        ("tls", r"has not answered the TLS handshake within [0-9.]+ s: it is stalled, or speaks no TLS \(enable_tls\)"),
        ("layout", "table users is there as hebe"),
    ],
)
def test_a_redis_that_cannot_be_used_is_reported_and_level_3_answers(
    open_tiers, caplog, tmp_path, fault, said, follows
):
    updates = {"type": "log_directory", "address": str(tmp_path / "log")} if follows else {"type": "null"}
    with RedisServer(users={"hebe": "right"} if fault == "password" else None) as redis:
        volatile = {"type": "redis", "address": redis.address, "timeout_ms": 200}
        cache = {"init_ec": False}
        if fault == "stalled":
            redis.pause()
        elif fault == "password":
            volatile |= {"user_name": "hebe", "password": "wrong"}
        elif fault == "layout":
            open_tiers(config_of(volatile_db=volatile, cache=cache, update_source=updates)).close()
            volatile |= {"overflow_policy": "evict_oldest"}
        else:
            volatile |= {"enable_tls": True, "tls_ca_certificate": str(make_certificates(tmp_path).authority)}
        caplog.clear()
        tiers = open_tiers(config_of(volatile_db=volatile, cache=cache, update_source=updates))
        [message] = caplog.messages
        assert message.startswith("level 2 cannot be looked after yet: Redis ")
        assert re.search(said, message)
        assert ask(tiers, [5, 2999]) == [5, 2999]


def test_of_many_tables_ten_are_named(caplog):
    module._log_unfilled([f"t{number}" for number in range(25)], StoreError("gone"))
    assert caplog.messages == [
        "level 2 is not filled with tables t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 15 more: gone"
    ]
