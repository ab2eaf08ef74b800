import math
import re

import numpy as np
import pytest
from tests.embeddings.example_tiers import config_of
from tests.servers.redis_servers import RedisServer, make_certificates

from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreError, TableFault
from hebe.embeddings.tiers import open_volatile as module


def test_redis_that_others_write_to_is_filled_once_level_3_has_all_updates(open_tiers, shared_redis_config) -> None:
    tiers = open_tiers(shared_redis_config)
    level_2 = tiers.lookup.volatile.store
    tiers.start()
    assert level_2.size("users") == level_2.size("items") == 0
    level_2.insert("users", np.array([5]), np.full((1, 4), -5, np.float32))
    tiers.lookup.volatile.fills.level_3_has_s = math.inf
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
    again = open_tiers(shared_redis_config)
    again.lookup.volatile.fills.level_3_has_s = math.inf
    again.fill_level_2(lambda: True)
    level_2 = again.lookup.volatile.store
    assert (level_2.size("users"), level_2.size("items")) == (1, 600), "others fill what has some rows"


def unfilled(caplog):
    """What was told of level 2, each message once for each time."""
    return [text for text in caplog.messages if text.startswith("level 2 is not filled")]


@pytest.mark.parametrize("updates", [{}, {"update_source": {"type": "log_directory", "address": "log"}}])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stalled", "has not answered within [0-9.]+ s"),
        ("password", "WRONGPASS|invalid username-password"),
        ("tls", r"has not answered the TLS handshake within [0-9.]+ s: it is stalled, or speaks no TLS \(enable_tls\)"),
    ],
)
def test_a_fault_of_the_tier_is_met_and_told_once(open_tiers, caplog, tmp_path, monkeypatch, fault, said, updates):
    asked, size = [], RedisStore.size
    monkeypatch.setattr(RedisStore, "size", lambda store, table: asked.append(table) or size(store, table))
    monkeypatch.chdir(tmp_path)
    with RedisServer(users={"hebe": "right"} if fault == "password" else None) as redis:
        volatile = {"type": "redis", "address": redis.address, "timeout_ms": 200}
        if fault == "stalled":
            redis.pause()
        elif fault == "password":
            volatile |= {"user_name": "hebe", "password": "wrong"}
        else:
            volatile |= {"enable_tls": True, "tls_ca_certificate": str(make_certificates(tmp_path).authority)}
        open_tiers(config_of(volatile_db=volatile, cache={"init_ec": False}, **updates))
    assert asked == ["users"]
    [told] = unfilled(caplog)
    assert told.startswith("level 2 is not filled with tables users, items: Redis ")
    assert re.search(said, told)


def test_a_fault_of_a_table_leaves_the_others_filled(open_tiers, redis, caplog, monkeypatch):
    insert = RedisStore.insert

    def refuse_users(store, table, *arguments):
        if table == "users":
            raise TableFault("table users is there as others")
        insert(store, table, *arguments)

    monkeypatch.setattr(RedisStore, "insert", refuse_users)
    volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
    level_2 = open_tiers(config_of(volatile_db=volatile, cache={"init_ec": False})).lookup.volatile.store
    assert level_2.size("items") == 600
    assert unfilled(caplog) == ["level 2 is not filled with table users: table users is there as others"]


def test_of_many_tables_ten_are_named(caplog):
    module._log_unfilled([f"t{number}" for number in range(25)], StoreError("gone"))
    assert caplog.messages == [
        "level 2 is not filled with tables t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 15 more: gone"
    ]
