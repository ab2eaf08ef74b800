"""Servers' hierarchies that follow a log of updates, and what tests of them do and see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.online_updates import OnlineUpdates
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "model",
    "dlrm",
    (EmbeddingTableSpec("users", 200, 4), EmbeddingTableSpec("items", 50, 2)),
    (FeatureSpec("user", "users", 1, Pooling.SUM), FeatureSpec("item", "items", 1, Pooling.SUM)),
)
TIMEOUT_S = 60.0


def rows_of(value: float, table: str, count: int) -> np.ndarray:
    return np.full((count, SPEC.table(table).dim), value, np.float32)


class Node:
    """A hierarchy whose rows are 1, or `trained`, that follows the log in `place / "log"`."""

    def __init__(
        self,
        place: Path,
        tiers: dict,
        name: str = "node",
        since_s: float | None = None,
        trained: float = 1,
        filled: Callable[[], None] = lambda: None,
        **updates,
    ) -> None:
        """`filled` is called before it begins to follow the log."""
        tables = {table.name: rows_of(trained, table.name, table.rows) for table in SPEC.tables}
        source = {"type": "log_directory", "address": str(place / "log"), "poll_timeout_ms": 10, **updates}
        config = HierarchyConfig.from_mapping({**tiers, "update_source": source})
        self.place = place / name / "1"
        self.hierarchy = EmbeddingHierarchy.open(SPEC, tables, persistent_dir=self.place, config=config)
        filled()
        memory, tiers_opened = self.hierarchy.memory, self.hierarchy.tiers
        opened = OnlineUpdates.open("model", memory, tiers_opened, config, self.place, since_s)
        assert opened is not None
        self.updates = opened

    def look_up(self, user: int, item: int) -> tuple[float, float, tuple[int, int, int]]:
        """The first number of either row, and how many keys were defaulted, stale and unknown."""
        out = np.full((1, 6), np.nan, np.float32)
        report = self.hierarchy.lookup(np.array([[user, item]]), out, self.hierarchy.new_scratch(1))
        assert (out[0, :4] == out[0, 0]).all()
        keys = report.keys
        return float(out[0, 0]), float(out[0, 4]), (keys.defaulted, keys.stale, keys.unknown)

    def close(self) -> None:
        self.updates.close()
        self.hierarchy.close()


def rocks(place: Path, name: str = "node") -> dict:
    return {"persistent_db": {"type": "rocks_db", "path": str(place / name), "timeout_ms": 60_000}}


def send(place: Path, table: str, keys: int = 50) -> None:
    with LogDirectory(place / "log").producer() as producer:
        producer.send("model", table, np.arange(keys), rows_of(5, table, keys))


def in_redis(node: Node, key: int) -> float | None:
    """The first number of a user's row there."""
    rows, found = np.empty((1, 4), np.float32), np.empty(1, np.bool_)
    node.hierarchy.tiers.lookup.volatile.store.query("users", np.array([key]), rows, found)
    return float(rows[0, 0]) if found[0] else None


def is_filled(node: Node) -> bool:
    store = node.hierarchy.tiers.lookup.volatile.store
    return store.size("users") == 200 and store.size("items") == 50
