"""The way back from a checkpoint, or to another place with a store that nobody writes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.rocksdb.store import RocksDbStore


def restore(path: Path, into: Path, *, replace: bool = False, progress: Progress | None = None) -> dict[str, int]:
    """Put a copy of the checkpoint or store in `path` at `into`, when all of its rows were read and found whole.

    Returns the rows of each table. A store that is at `into` is an error unless `replace`; it goes when the copy is
    complete. `progress(rows done, rows in all)` is of the reading. Raises `StoreError`: no store or a damaged one in
    `path`, or `into` in use, full or somebody else's.
    """
    with contextlib.closing(RocksDbStore(path, read_only=True)) as source:
        sizes = source.verify(progress)
        source.checkpoint(into, replace=replace)
        return sizes
