"""The contract every tier keeps: rows of float32 by int64 key, in batches, into the caller's buffer.

Implementations: `memory_store` (huge-page tables), `rocksdb_store` (persistent). One conformance suite
(`tests/embeddings/store_conformance.py`) is passed by each. Queries may run in several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

KeyArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]
FoundMask = npt.NDArray[np.bool_]


class StoreError(RuntimeError):
    """A tier that cannot answer: missing table, broken file, full disk. Says what was wrong and what to do.

    `client_message` is what those may read who only send queries: it names no path of this machine's disk.
    """

    def __init__(self, message: str, client_message: str = "the tables of embedding rows cannot be read") -> None:
        super().__init__(message)
        self.client_message = client_message


class EmbeddingStore(Protocol):
    """One tier. Keys of a call may repeat; arrays are C-contiguous.

    Each call raises `StoreError` for an unknown table, after `close`, and when the tier fails.
    """

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """Copy the row of each key into `rows` `[n, dim]` and set `found` `[n]`; returns how many were found.

        Rows of keys not found are left untouched.
        """
        ...

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """Store rows under keys, replacing what was there. The last of repeated keys wins."""
        ...

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """Replace the rows of those keys that are present; returns how many distinct ones were. The last wins."""
        ...

    def delete(self, table: str, keys: KeyArray) -> int:
        """Remove keys; returns how many distinct ones were present."""
        ...

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """All present keys in batches of at most `batch_size`, each once, in no particular order."""
        ...

    def size(self, table: str) -> int:
        """Number of keys present."""
        ...

    def close(self) -> None:
        """Release memory and files. Closing twice is harmless."""
        ...
