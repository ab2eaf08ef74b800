"""How a persistent store is read and written; names are those of HPS' `persistent_db` block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RocksDbOptions:
    """`num_threads` share the keys of a large query. `max_batch_size` is the most keys of one read or inserted batch.
    `block_cache_bytes` is RocksDB's own cache; at 0 the system's page cache alone keeps what was read, which is faster.

    Raises ValueError naming a field that is out of range.
    """

    num_threads: int = 2
    max_batch_size: int = 65536
    block_cache_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_threads <= 256:
            raise ValueError(f"num_threads is {self.num_threads}: must lie in [1, 256]")
        if not 1 <= self.max_batch_size <= 1 << 24:
            raise ValueError(f"max_batch_size is {self.max_batch_size}: must lie in [1, {1 << 24}]")
        if self.block_cache_bytes < 0:
            raise ValueError(f"block_cache_bytes is {self.block_cache_bytes}: must be at least 0")


DEFAULT_OPTIONS = RocksDbOptions()
