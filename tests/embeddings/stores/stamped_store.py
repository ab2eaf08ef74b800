"""A store whose rows all carry the position up to which it has updates."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.spec import EmbeddingTableSpec

SPECS = [EmbeddingTableSpec("users", 300, 4), EmbeddingTableSpec("items", 5, 1)]
ROWS = {table.name: np.zeros((table.rows, table.dim), np.float32) for table in SPECS}
EVERY = np.arange(300)


def apply(store: RocksDbStore, offset: int) -> None:
    assert store.apply("users", EVERY, np.full((300, 4), offset, np.float32), ("log", offset))


def stamp_of(store: RocksDbStore) -> float:
    """The offset that all rows of users carry."""
    rows, found = np.zeros((300, 4), np.float32), np.zeros(300, np.bool_)
    assert store.query("users", EVERY, rows, found) == 300
    assert (rows == rows[0, 0]).all()
    return float(rows[0, 0])


def check(path: Path, offset: int) -> None:
    with contextlib.closing(RocksDbStore.load(path, SPECS, {}, "first")) as made:
        assert made.positions() == {"log": offset}
        assert stamp_of(made) == offset
        assert made.verify() == {"users": 300, "items": 5}


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
