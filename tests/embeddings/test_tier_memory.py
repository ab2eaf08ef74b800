from pathlib import Path

from hebe.embeddings.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    VolatileType,
)
from hebe.embeddings.tier_memory import bounded_config
from hebe.kernels.row_format import RowFormat


def test_a_bound_of_the_memory_is_a_cache_over_level_3() -> None:
    own = {"m": CacheConfig(hit_rate_threshold=0.25)}
    config = HierarchyConfig(cache=CacheConfig(hit_rate_threshold=0.5), models=own)
    bounded = bounded_config(config, 1 << 20, RowFormat.FP16, Path("rows"))
    for model, threshold in (("m", 0.25), ("other", 0.5)):
        cache = CacheConfig(cache_bytes=1 << 20, row_format=RowFormat.FP16, hit_rate_threshold=threshold)
        assert bounded.cache_of(model) == cache
    assert bounded.persistent_db == PersistentConfig(PersistentType.ROCKS_DB, "rows")
    assert bounded.volatile_db.type is VolatileType.DISABLED
