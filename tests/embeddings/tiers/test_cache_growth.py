import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import cache_growth
from hebe.embeddings.tiers.tiers import Tiers
from tests.embeddings.example_tiers import ask, config_of, held

ROWS = 40_001


def add_rows(tiers: Tiers, first: int, last: int) -> None:
    """To the lowest tier, as updates do: rows of keys `[first, last)`, which are their keys."""
    keys = np.arange(first, last)
    store = next(iter(tiers.stores_of_this_process().values()))
    store.insert("users", keys, np.repeat(keys.astype(np.float32)[:, None], 4, axis=1))


@pytest.fixture(params=["rocksdb", "hash map"])
def config(request, tmp_path):
    """Makes a configuration in which updates add rows."""

    def make(**cache):
        parts = {"update_source": {"type": "log_directory", "address": str(tmp_path / "log")}, "cache": cache}
        if request.param == "hash map":
            parts |= {"persistent_db": {}, "volatile_db": {"type": "parallel_hash_map"}}
        return config_of(**parts)

    return make


def test_level_1_is_a_share_of_the_rows_that_there_are(open_tiers, config) -> None:
    tiers = open_tiers(config())
    before = held(tiers)
    assert tiers.cache.tables["users"].rows == 300
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows == 300, "nothing has changed"
    add_rows(tiers, 3000, ROWS)
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows == 4001
    assert tiers.cache.tables["items"].rows == 60
    assert held(tiers) == before
    assert tiers.state.cache_capacity_rows > 4001
    assert tiers.state.cache_bytes == tiers.cache.memory_bytes
    assert ask(tiers, [7, 40_000]) == [7, 40_000]


def test_at_the_start_level_3_may_have_more_rows_than_the_model(open_tiers, config) -> None:
    tiers = open_tiers(config())
    add_rows(tiers, 3000, ROWS)
    if "volatile_db" in tiers.stores_of_this_process():
        return  # which ends with its process
    tiers.close()
    assert open_tiers(config()).cache.tables["users"].rows == 4001


def test_cache_bytes_is_a_bound_of_all_tables_together(open_tiers, config) -> None:
    tiers = open_tiers(config(cache_bytes=2 << 20))
    assert tiers.cache.tables["users"].rows == 3000, "all rows"
    add_rows(tiers, 3000, 400_000)
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows > 20_000
    assert tiers.cache.memory_bytes == 2 << 20


def test_where_memory_is_short_level_1_stays(open_tiers, config, monkeypatch, caplog) -> None:
    tiers = open_tiers(config())
    add_rows(tiers, 3000, ROWS)
    needed = 2 << 20
    monkeypatch.setattr(cache_growth, "available_bytes", lambda: 2 * needed - 1)
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows == 300
    assert "cannot grow" in caplog.text
    monkeypatch.setattr(cache_growth, "available_bytes", lambda: 2 * needed)
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows == 4001


def test_a_tier_that_is_away_changes_nothing(open_tiers, config, monkeypatch) -> None:
    tiers = open_tiers(config())

    def away(_: str) -> int:
        raise StoreError("away")

    monkeypatch.setattr(next(iter(tiers.stores_of_this_process().values())), "size", away)
    tiers.growth.look()
    assert tiers.cache.tables["users"].rows == 300
