from pathlib import Path

import pytest

from hebe.embeddings.config.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    VolatileType,
)
from hebe.embeddings.tiers.background import MOST_HELD_BYTES
from hebe.embeddings.tiers.memory import (
    bounded_config,
    planned_background_bytes,
    planned_lookup_bytes,
    planned_tier_bytes,
)
from hebe.kernels.lookup.row_format import RowFormat
from hebe.spec import EmbeddingTableSpec
from tests.embeddings.example_tiers import TABLES, config_of


def test_a_bound_of_the_memory_is_a_cache_over_level_3() -> None:
    own = {"m": CacheConfig(hit_rate_threshold=0.25)}
    config = HierarchyConfig(cache=CacheConfig(hit_rate_threshold=0.5), models=own)
    bounded = bounded_config(config, 1 << 20, RowFormat.FP16, Path("rows"))
    for model, threshold in (("m", 0.25), ("other", 0.5)):
        cache = CacheConfig(cache_bytes=1 << 20, row_format=RowFormat.FP16, hit_rate_threshold=threshold)
        assert bounded.cache_of(model) == cache
    assert bounded.persistent_db == PersistentConfig(PersistentType.ROCKS_DB, "rows")
    assert bounded.volatile_db.type is VolatileType.DISABLED


@pytest.mark.parametrize("volatile", [{}, {"type": "parallel_hash_map"}])
@pytest.mark.parametrize("cache", [{}, {"cache_bytes": 4 << 20}, {"row_format": "int8"}])
def test_the_memory_is_known_before_it_is_taken(open_tiers, volatile, cache) -> None:
    config = config_of(volatile_db=volatile, cache=cache)
    planned = planned_tier_bytes("model", TABLES, config)
    tiers = open_tiers(config)
    if not volatile:
        assert tiers.memory_bytes == planned
    assert planned * 0.8 < tiers.memory_bytes <= planned


def test_a_bound_of_the_cache_counts_where_it_may_grow_to_it() -> None:
    log = {"type": "log_directory", "address": "log"}
    assert planned_tier_bytes("m", TABLES, config_of(cache={"cache_bytes": 1 << 30}, update_source=log)) == 1 << 30
    assert planned_tier_bytes("m", TABLES, config_of(cache={"cache_bytes": 1 << 30})) < 4 << 20


@pytest.mark.parametrize(("cached", "times"), [(1.0, 1.0), (0.5, 1.5)])
def test_rows_of_a_batch_are_counted_twice_as_far_as_a_tier_hands_them_over(cached, times) -> None:
    """Distinct ones: of many keys of a small table each row, of few keys of a large one each key."""
    tables = [EmbeddingTableSpec("small", 64, 8), EmbeddingTableSpec("large", 1 << 30, 8)]
    config = HierarchyConfig.from_mapping(
        {"cache": {"cache_fraction": cached}, "persistent_db": {"type": "rocks_db", "path": "rows"}}
    )
    planned = planned_lookup_bytes("m", tables, {"small": 100, "large": 1}, 1024, config)
    keys, scratch = 64 + 1024, 8 * (1 << 18)
    assert planned == pytest.approx(scratch + keys * (8 + times * 4 * 8), rel=0.01)


@pytest.mark.parametrize(
    ("items", "level_2", "held"),
    [
        (1, {}, (256 + 2) * 8),
        (1, {"type": "parallel_hash_map"}, (256 + 2) * (8 + 4 * 128 + 1)),
        (1, {"type": "parallel_hash_map", "cache_missed_embeddings": False}, (256 + 2) * 8),
        (1024, {"type": "parallel_hash_map"}, MOST_HELD_BYTES),
        (1 << 20, {"type": "parallel_hash_map"}, (1 << 20) * (8 + 4 * 128 + 1)),
    ],
)
def test_work_in_the_background_holds_so_much_at_most(items, level_2, held) -> None:
    """A piece a lookup as long as these are small, or a single one however large."""
    config = HierarchyConfig.from_mapping(
        {"volatile_db": level_2, "persistent_db": {"type": "rocks_db", "path": "rows"}}
    )
    tables = [EmbeddingTableSpec("t", 1 << 40, 128)]
    assert planned_background_bytes("m", tables, {"t": 1}, items, config) == pytest.approx(held, rel=1e-3)
