"""Tiers of a model of two small tables whose rows are their keys."""

from pathlib import Path

import numpy as np

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.tiers.tiers import Tiers
from hebe.spec import EmbeddingTableSpec

TABLES = (EmbeddingTableSpec("users", 3000, 4), EmbeddingTableSpec("items", 600, 1))
SOURCES = {
    table.name: np.repeat(np.arange(table.rows, dtype=np.float32)[:, None], table.dim, axis=1) for table in TABLES
}
ROCKS = {"persistent_db": {"type": "rocks_db", "path": "rows", "timeout_ms": 60_000}}


def config_of(**parts: dict) -> HierarchyConfig:
    cache = parts.pop("cache", {})
    size = {} if "cache_bytes" in cache else {"cache_fraction": 0.1}
    return HierarchyConfig.from_mapping({**ROCKS, **parts, "cache": {**size, **cache}})


def ask(tiers: Tiers, keys: list[int], table: str = "users") -> list[float]:
    rows = np.full((len(keys), tiers.lookup.dims[table]), np.nan, np.float32)
    tiers.lookup.look_up(table, np.array(keys), rows)
    return rows[:, 0].tolist()


def held(tiers: Tiers, table: str = "users") -> set[int]:
    return {int(key) for keys in tiers.cache.dump_keys(table, 100) for key in keys}


def damage_rows(place: Path, share: float) -> None:
    """Change some bytes of level 3's largest file of rows, so far into it."""
    file = max((place / "rows").glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    first = int(share * len(content))
    content[first : first + 8] = bytes(byte ^ 0x5A for byte in content[first : first + 8])
    file.write_bytes(content)
