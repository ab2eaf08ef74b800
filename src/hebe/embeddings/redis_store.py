"""Level 2 in Redis: a volatile store that several servers share, on one instance or a Redis Cluster.

How it lies there, for operators too: `redis_layout`. Redis 6.2 or later. Every row of a batch goes to or comes from
the servers in one exchange, all nodes at work at once; nothing is kept here between calls but open connections, so a
Redis that was lost, paused or restarted empty serves again as soon as it answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hebe.embeddings.redis_command import Command, Reply
from hebe.embeddings.redis_connection import CLIENT_MESSAGE, RedisAccess, open_nodes, parse_addresses
from hebe.embeddings.redis_layout import PartitionCommands
from hebe.embeddings.store import FoundMask, KeyArray, RowArray, StoreError
from hebe.embeddings.volatile_options import OverflowPolicy, VolatileOptions
from hebe.kernels import xxh64

_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    dim: int
    partitions: tuple[PartitionCommands, ...]


@dataclass(frozen=True, slots=True)
class _Share:
    """The keys of one batch that belong to one partition: where they stand in the batch, in ascending order."""

    partition: PartitionCommands
    positions: KeyArray


class RedisStore:
    """A `VolatileStore` in the Redis at `addresses`: `HOST:PORT` or `unix:PATH`, or some nodes of a Redis Cluster.

    `dims` gives the embedding dim by table name. Stores of one `namespace` (a model's name, say) share their rows, and
    must agree on dims, number of partitions and overflow policy. A batch is carried out in exchanges of at most
    `max_batch_size` keys (and 16 MiB of rows), each of which takes no longer than `access.timeout_s`.

    The constructor connects to nothing. It raises ValueError naming a field that is out of range, and `StoreError`
    naming the extra to install where the client library is missing. Calls raise
    `StoreUnavailable` while Redis cannot be reached, is silent, loading or failing over, and `StoreError` when it
    refuses user or password, has no memory left, or holds rows of another layout.
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        addresses: str | Sequence[str],
        options: VolatileOptions,
        *,
        namespace: str,
        access: RedisAccess | None = None,
        max_batch_size: int = 65536,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}: must be at least 1")
        for table, dim in dims.items():
            if dim < 1:
                raise ValueError(f"dim of table {table} is {dim}: must be at least 1")
        self.dims = dict(dims)
        self.options = options
        self._max_batch_size = max_batch_size
        self._where = ", ".join(str(address) for address in parse_addresses(addresses))
        self._nodes = open_nodes(addresses, access or RedisAccess())
        self._tables = {
            table: _Table(
                table,
                dim,
                tuple(
                    PartitionCommands(namespace, table, partition, dim, options)
                    for partition in range(options.num_partitions)
                ),
            )
            for table, dim in dims.items()
        }
        self._target = min(
            options.overflow_margin, max(1, int(options.overflow_margin * options.overflow_resolution_target))
        )
        self._closed = False
        xxh64.warm_up()

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        known = self._table(table)
        _check_rows(known, keys, rows)
        if rows.dtype != np.float32 or not rows.flags.c_contiguous or not rows.flags.writeable:
            raise StoreError(f"rows of table {table} go to a writable, C-contiguous float32 buffer")
        for batch in self._batches(known, len(keys)):
            shares = _shares(known, keys[batch])
            replies = self._ask(
                [
                    [share.partition.read_layout(), *share.partition.query(keys[batch][share.positions])]
                    for share in shares
                ]
            )
            for share, (layout, *answers) in zip(shares, replies, strict=True):
                self._check_layout(known, share.partition, layout)
                self._take_rows(known, answers, share.positions, rows[batch], found[batch])
        return int(np.count_nonzero(found))

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. When it fails, some of the rows may be there."""
        known = self._table(table)
        _check_rows(known, keys, rows)
        for batch in self._batches(known, len(keys)):
            shares = _shares(known, keys[batch])
            for share, (_, layout) in zip(
                shares, self._ask([share.partition.claim() for share in shares]), strict=True
            ):
                self._check_layout(known, share.partition, layout)
            now_s = time.time()
            replies = self._ask(
                [
                    list(share.partition.insert(keys[batch][share.positions], rows[batch][share.positions], now_s))
                    for share in shares
                ]
            )
            self._prune({share.partition: _count(answers[-1:]) for share, answers in zip(shares, replies, strict=True)})

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`. Each row is replaced only if it is there at that moment."""
        known = self._table(table)
        _check_rows(known, keys, rows)
        distinct, from_end = np.unique(keys[::-1], return_index=True)
        last = len(keys) - 1 - from_end
        updated = 0
        for batch in self._batches(known, len(distinct)):
            shares = _shares(known, distinct[batch])
            replies = self._ask(
                [
                    list(share.partition.update(distinct[batch][share.positions], rows[last[batch][share.positions]]))
                    for share in shares
                ]
            )
            for share, answers in zip(shares, replies, strict=True):
                for answer in answers:
                    if not isinstance(answer, int):
                        self._check_layout(known, share.partition, answer)
                updated += _count(answers)
        return updated

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        known = self._table(table)
        deleted = 0
        for batch in self._batches(known, len(keys)):
            shares = [(share.partition, keys[batch][share.positions]) for share in _shares(known, keys[batch])]
            deleted += sum(_count(answers) for answers in self._ask([list(part.delete(own)) for part, own in shares]))
            self._ask([list(part.forget(own)) for part, own in shares])
        return deleted

    def touch(self, table: str, keys: KeyArray) -> None:
        """See `VolatileStore.touch`. Keys that repeat count so often; asks nothing of Redis with `evict_random`."""
        known = self._table(table)
        if self.options.overflow_policy is OverflowPolicy.EVICT_RANDOM:
            return
        distinct, counts = np.unique(keys, return_counts=True)
        now_s = time.time()
        for batch in self._batches(known, len(distinct)):
            self._ask(
                [
                    list(share.partition.touch(distinct[batch][share.positions], counts[batch][share.positions], now_s))
                    for share in _shares(known, distinct[batch])
                ]
            )

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`.

        Keys that come or go meanwhile may or may not be among them. Holds one partition's keys at a time.
        """
        if batch_size < 1:
            raise StoreError(f"batch_size is {batch_size}: must be at least 1")
        for partition in self._table(table).partitions:
            keys = self._keys_of(partition)
            for first in range(0, len(keys), batch_size):
                yield keys[first : first + batch_size]

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return sum(_count(answers) for answers in self._ask([[part.size()] for part in self._table(table).partitions]))

    def close(self) -> None:
        """See `EmbeddingStore.close`. What is in Redis stays there."""
        self._closed = True
        self._nodes.close()

    def _table(self, table: str) -> _Table:
        if self._closed:
            raise StoreError(f"the store on Redis {self._where} is closed", CLIENT_MESSAGE)
        if table not in self._tables:
            raise StoreError(f"no table {table}; there are {', '.join(self._tables)}", CLIENT_MESSAGE)
        return self._tables[table]

    def _batches(self, table: _Table, count: int) -> Iterator[slice]:
        size = max(1, min(self._max_batch_size, _BATCH_BYTES // (4 * table.dim)))
        return (slice(first, first + size) for first in range(0, count, size))

    def _ask(self, asked: Sequence[list[Command]]) -> list[list[Reply]]:
        """The replies to lists of commands, as lists of the same lengths, in one exchange."""
        replies = iter(self._nodes.execute([command for commands in asked for command in commands]))
        return [[next(replies) for _ in commands] for commands in asked]

    def _take_rows(
        self, table: _Table, answers: Sequence[Reply], positions: KeyArray, rows: RowArray, found: FoundMask
    ) -> None:
        """The rows that were answered go to `rows[positions]`, in this order."""
        values: list[bytes | None] = list(chain.from_iterable(answers))  # type: ignore[arg-type]  # each is a list
        held = [value for value in values if value is not None]
        for length in set(map(len, held)) - {4 * table.dim}:
            raise StoreError(
                f"Redis {self._where}: table {table.name} has a row of {length} bytes, "
                f"where its dim needs {4 * table.dim}",
                CLIENT_MESSAGE,
            )
        present = np.array([value is not None for value in values])
        found[positions] = present
        rows[positions[present]] = np.frombuffer(b"".join(held), "<f4").reshape(len(held), table.dim)

    def _check_layout(self, table: _Table, partition: PartitionCommands, layout: Reply) -> None:
        if layout is not None and layout != partition.layout:
            there = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
            raise StoreError(
                f"Redis {self._where}: table {table.name} is there as {there}, not as {partition.layout.decode()}: "
                f"delete its keys ({partition.pattern}) or use another namespace",
                CLIENT_MESSAGE,
            )

    def _prune(self, sizes: dict[PartitionCommands, int]) -> None:
        """Bring those above the margin down to the target, in steps that leave Redis time for others."""
        above = {partition: size for partition, size in sizes.items() if size > self.options.overflow_margin}
        while above:
            replies = self._ask([[partition.evict(self._target)] for partition in above])
            left = {partition: _count(answers) for partition, answers in zip(above, replies, strict=True)}
            # Where the size has not fallen, others insert as fast; what is above the margin then is theirs to prune.
            above = {part: size for part, size in left.items() if self._target < size < above[part]}

    def _keys_of(self, partition: PartitionCommands) -> KeyArray:
        """All keys of a partition, each once: Redis may tell one twice while its hash shrinks or grows."""
        cursor, found = b"0", list[bytes]()
        while True:
            [[scanned]] = self._ask([[partition.scan(cursor)]])
            match scanned:
                case [bytes(cursor), bytes(keys)]:
                    found.append(keys)
                case _:
                    raise StoreError(f"Redis {self._where}: {scanned!r:.100} in place of keys", CLIENT_MESSAGE)
            if cursor == b"0":
                return np.unique(np.frombuffer(b"".join(found), "<i8").astype(np.int64, copy=False))


def _shares(table: _Table, keys: KeyArray) -> list[_Share]:
    """The keys of a batch by partition, without the partitions that have none."""
    places = xxh64.key_partitions(keys, len(table.partitions)).astype(np.uint16)
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=len(table.partitions)))
    positions = np.split(order, ends[:-1])
    return [_Share(partition, own) for partition, own in zip(table.partitions, positions, strict=True) if len(own)]


def _check_rows(table: _Table, keys: KeyArray, rows: RowArray) -> None:
    if rows.shape != (len(keys), table.dim):
        raise StoreError(f"rows {list(rows.shape)} for {len(keys)} keys of table {table.name}: dim is {table.dim}")


def _count(replies: Sequence[Reply]) -> int:
    return sum(reply for reply in replies if isinstance(reply, int))
