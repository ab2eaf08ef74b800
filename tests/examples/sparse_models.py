"""HugeCTR's sparse models as its trainer writes them, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_sparse_model(
    path: Path, keys: np.ndarray, rows: np.ndarray, *, meta: np.ndarray | None = None, narrow: bool = False
) -> Path:
    """A directory with `key`, `emb_vector` and, if given, `meta`."""
    path.mkdir(parents=True, exist_ok=True)
    keys.astype("<u4" if narrow else "<i8").tofile(path / "key")
    rows.astype("<f4").tofile(path / "emb_vector")
    if meta is not None:
        meta.astype("<i8").tofile(path / "meta")
    return path


def any_keys(rng: np.random.Generator, count: int) -> np.ndarray:
    """Distinct keys from all over int64, its ends among them, in no order."""
    ends = np.array([-(2**63), 2**63 - 1, -1, 0], np.int64)[:count]
    keys = np.unique(np.concatenate([ends, rng.integers(-(2**63), 2**63 - 1, 2 * count, dtype=np.int64)]))
    others = rng.permutation(np.setdiff1d(keys, ends))[: count - ends.size]
    return rng.permutation(np.concatenate([ends, others]))
