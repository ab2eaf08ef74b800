"""Which partition of which table has which keys of a batch, and how much of a batch crosses to Redis at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hebe.embeddings.redis.layout import PartitionCommands, elements
from hebe.embeddings.store import KeyArray, RowArray
from hebe.kernels.hash_tables import xxh64

_EXCHANGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RedisTable:
    """A table, and what is asked of Redis for each of its partitions."""

    name: str
    dim: int
    partitions: tuple[PartitionCommands, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The keys of one exchange that belong to one partition: their bytes, and which they are in the exchange."""

    table: RedisTable
    partition: PartitionCommands
    names: list[bytes]
    own: slice


@dataclass(frozen=True, slots=True)
class Exchange:
    """Keys that cross at once, by partition: `places[i]` in the batch is that of the i-th, int64 `[n]`.

    Those of table number `t` are at `places[cuts[t] : cuts[t + 1]]`.
    """

    places: KeyArray
    cuts: list[int]
    shares: list[Share]

    def row_bytes(self, starts: KeyArray, rows: RowArray, bases: KeyArray, places: KeyArray) -> list[bytes]:
        """Of each key its row, among flat `rows` as those of `TablesStore.fill_tables`, in which it is at `places`."""
        taken: list[bytes] = []
        for number, (first, last) in enumerate(pairwise(self.cuts)):
            if first < last:
                own = rows[bases[number] : bases[number + 1]].reshape(starts[number + 1] - starts[number], -1)
                taken += elements(own[places[first:last] - starts[number]])
        return taken


def exchanges(tables: Sequence[RedisTable], keys: KeyArray, starts: KeyArray, most_keys: int) -> Iterator[Exchange]:
    """All keys, `keys[starts[i] : starts[i + 1]]` of `tables[i]`, at most `most_keys` and 16 MiB of rows at a time.

    Keys of one partition stay in order. All tables have as many partitions.
    """
    numbers = np.repeat(np.arange(len(tables)), np.diff(starts))
    ends_bytes = np.cumsum(np.array([4 * table.dim for table in tables], np.int64)[numbers])
    first = 0
    while first < len(keys):
        limit_bytes = _EXCHANGE_BYTES + (ends_bytes[first - 1] if first else 0)
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
        table = tables[group // count]
        shares.append(Share(table, table.partitions[group % count], names[start:stop], slice(start, stop)))
    cuts = np.searchsorted(groups, np.arange(len(tables) + 1) * count).tolist()
    return Exchange(first + order, cuts, shares)
