"""Which partition of which table has which keys of a batch, and how much of a batch crosses to Redis at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hebe.embeddings.redis.layout import PartitionCommands, elements
from hebe.embeddings.store import KeyArray
from hebe.kernels.hash_tables import xxh64

EXCHANGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RedisTable:
    """A table, and what is asked of Redis for each of its partitions. `seed` is that of its checksums."""

    name: str
    dim: int
    seed: int
    partitions: tuple[PartitionCommands, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The keys of one exchange that belong to one partition: their bytes, and which they are in the exchange."""

    table: RedisTable
    number: int
    """Of the partition."""
    names: list[bytes]
    own: slice

    @property
    def partition(self) -> PartitionCommands:
        """What is asked of Redis for it."""
        return self.table.partitions[self.number]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Keys that cross at once, by partition: `places[i]` in the batch is that of the i-th, int64 `[n]`."""

    places: KeyArray
    shares: list[Share]


def exchanges(tables: Sequence[RedisTable], keys: KeyArray, starts: KeyArray, most_keys: int) -> Iterator[Exchange]:
    """All keys, `keys[starts[i] : starts[i + 1]]` of `tables[i]`, at most `most_keys` and 16 MiB of rows at a time.

    Keys of one partition stay in order. All tables have as many partitions.
    """
    numbers = np.repeat(np.arange(len(tables)), np.diff(starts))
    ends_bytes = np.cumsum(np.array([4 * table.dim for table in tables], np.int64)[numbers])
    first = 0
    while first < len(keys):
        limit_bytes = EXCHANGE_BYTES + (ends_bytes[first - 1] if first else 0)
        within = int(np.searchsorted(ends_bytes, limit_bytes, "right"))
        last = min(max(within, first + 1), first + most_keys)
        yield _exchange(tables, keys[first:last], numbers[first:last], first)
        first = last


def _exchange(tables: Sequence[RedisTable], keys: KeyArray, numbers: KeyArray, first: int) -> Exchange:
    count = len(tables[0].partitions)
    groups = numbers * count + xxh64.key_partitions(keys, count)
    order = np.argsort(groups.astype(np.min_scalar_type(len(tables) * count)), kind="stable")
    groups, names = groups[order], elements(keys[order])
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(keys)]
    shares = []
    for group, (start, stop) in zip(groups[edges[:-1]].tolist(), pairwise(edges), strict=True):
        shares.append(Share(tables[group // count], group % count, names[start:stop], slice(start, stop)))
    return Exchange(first + order, shares)
