"""The hash map of `kernels/hash_map` in plain Python: what its kernels must agree with, evictions included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hebe.kernels.hash_tables.hash_map import OVERSHOOT_ROWS
from hebe.kernels.hash_tables.hash_map_partition import EVICT_LEAST_USED, EVICT_OLDEST
from hebe.kernels.hash_tables.xxh64 import hash_key_reference

Row = npt.NDArray[np.float32]

_GOLDEN = 0x9E3779B97F4A7C15


class _Entry:
    """A row with the time of its last access and the count of accesses."""

    def __init__(self, row: Row, time: int) -> None:
        self.row, self.time, self.count = row, time, 1


class _Partition:
    def __init__(self, seed: int) -> None:
        self.entries: dict[int, _Entry] = {}
        self.clock = self.evicted = 0
        self.seed = seed


class HashMapReference:
    """Rows by int64 key in partitions, each pruned to `target` rows when it is above `margin`.

    `policy` is a code of `hash_map_partition`, `seeds` the chance of each partition as an unsigned 64-bit number.
    """

    def __init__(self, seeds: Sequence[int], margin: int, target: int, policy: int) -> None:
        self.margin, self.target, self.policy = margin, target, policy
        self._partitions = [_Partition(seed) for seed in seeds]

    def get(self, key: int) -> Row | None:
        """The row of `key`, if there is one."""
        entry = self._of(key).entries.get(key)
        return None if entry is None else entry.row

    def keys(self) -> list[int]:
        """All keys, in ascending order."""
        return sorted(key for partition in self._partitions for key in partition.entries)

    def insert(self, keys: Sequence[int], rows: npt.NDArray[np.float32]) -> None:
        """Store rows; partitions are pruned within the call where they are far above the margin, and after it."""
        most = self.margin + min(self.margin, OVERSHOOT_ROWS)
        for key, row in zip(keys, rows, strict=True):
            partition = self._of(key)
            partition.clock += 1
            entry = partition.entries.setdefault(key, _Entry(row, partition.clock))
            entry.row, entry.time = row, partition.clock
            if len(partition.entries) > most:
                self._prune(partition)
        for partition in self._partitions:
            if len(partition.entries) > self.margin:
                self._prune(partition)

    def update(self, keys: Sequence[int], rows: npt.NDArray[np.float32]) -> int:
        """Replace rows of keys that are present; returns how many distinct ones were."""
        present = set()
        for key, row in zip(keys, rows, strict=True):
            entry = self._of(key).entries.get(key)
            if entry is not None:
                entry.row = row
                present.add(key)
        return len(present)

    def delete(self, keys: Sequence[int]) -> int:
        """Remove keys; returns how many distinct ones were present."""
        return sum(self._of(key).entries.pop(key, None) is not None for key in keys)

    def touch(self, keys: Sequence[int]) -> None:
        """Note an access of each key that is present."""
        for key in keys:
            partition = self._of(key)
            partition.clock += 1
            entry = partition.entries.get(key)
            if entry is not None:
                entry.time, entry.count = partition.clock, entry.count + 1

    def _of(self, key: int) -> _Partition:
        return self._partitions[hash_key_reference(key) % len(self._partitions)]

    def _prune(self, partition: _Partition) -> None:
        def rank(key: int) -> tuple[int, int]:
            entry = partition.entries[key]
            if self.policy == EVICT_OLDEST:
                return entry.time, 0
            if self.policy == EVICT_LEAST_USED:
                return entry.count, entry.time
            chance = (partition.seed + partition.evicted * _GOLDEN) % 2**64
            return hash_key_reference(key % 2**64 ^ chance), 0

        victims = sorted(partition.entries, key=rank)[: len(partition.entries) - self.target]
        for key in victims:
            del partition.entries[key]
        partition.evicted += len(victims)
