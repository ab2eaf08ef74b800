"""Level 2 in Redis: a volatile store that several servers share, on one instance or a Redis Cluster.

How it lies there, for operators too: `layout`. Redis 6.2 or later. Every row of a batch goes to or comes from
the servers in one exchange, all nodes at work at once; nothing is kept here between calls but open connections, so a
Redis that was lost, paused or restarted empty serves again as soon as it answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.connection import CLIENT_MESSAGE, RedisAccess, parse_addresses
from hebe.embeddings.redis.exchanges import Exchange, RedisTable, Share, exchanges
from hebe.embeddings.redis.layout import Command, LayoutRule, PartitionCommands, Reply, elements
from hebe.embeddings.redis.opening import open_nodes
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreError,
    StoreUnavailable,
    TableFault,
    check_batch_size,
    check_flat,
    check_keys,
    check_query,
    check_rows,
    last_of_each,
)
from hebe.kernels.hash_tables import xxh64
from hebe.kernels.lookup import table_batch
from hebe.kernels.lookup.table_batch import check_table_batch

_BESIDE_CONNECTIONS = 4
"""For what works in the background, applies updates and looks after the rows."""


class RedisStore:
    """A `VolatileStore` in the Redis at `addresses`: `HOST:PORT` or `unix:PATH`, or some nodes of a Redis Cluster.

    `dims` gives the embedding dim by table name. Stores of one `namespace` (a model's name, say) share their rows, and
    must agree on dims, number of partitions and overflow policy. `rule` says what a partition without layout means. A
    batch is carried out in exchanges of at most `max_batch_size` keys (and 16 MiB of rows), each of which takes no
    longer than `access.timeout_s`.

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
        rule: LayoutRule = LayoutRule.CLAIMED,
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
        self._access = access or RedisAccess()
        self._nodes = open_nodes(addresses, self._access)
        self.rule = rule
        self.loss = threading.Event()
        """Set when a partition proves to have lost its rows, with `LayoutRule.REQUIRED`; for who looks to clear."""
        self.refill_fault: str | None = None
        """Why rows that were lost are not there anew: told to who asks for them."""
        self.use(namespace)
        self._target = min(
            options.overflow_margin, max(1, int(options.overflow_margin * options.overflow_resolution_target))
        )
        self._closed = False
        xxh64.warm_up()
        table_batch.warm_up()

    def use(self, namespace: str) -> None:
        """From now on the rows are those of `namespace`."""
        self._tables = {
            table: RedisTable(
                table,
                dim,
                tuple(
                    PartitionCommands(namespace, table, partition, dim, self.options)
                    for partition in range(self.options.num_partitions)
                ),
            )
            for table, dim in self.dims.items()
        }

    def beside(self, namespace: str, rule: LayoutRule) -> RedisStore:
        """A store of this or another namespace of the same Redis, for work that no query waits for: with connections of
        its own, four to each server at most.
        """
        return RedisStore(
            self.dims,
            self._where,
            self.options,
            namespace=namespace,
            access=replace(self._access, num_node_connections=_BESIDE_CONNECTIONS),
            max_batch_size=self._max_batch_size,
            rule=rule,
        )

    def carry_out(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands on Redis keys other than rows'; the replies, in order. Raises as other calls do."""
        return self._nodes.execute(commands)

    def begin(self) -> None:
        """The rows of all tables are about to be put in, from none: if any is lost from now on, that can be told."""
        self._ask([[partition.begin()] for partition in self._all_partitions])

    def seal(self) -> None:
        """The rows of all tables are whole. Raises `StoreUnavailable` where some were lost since `begin`."""
        if not all(sealed for *_, sealed in self._ask([partition.seal() for partition in self._all_partitions])):
            what = f"Redis {self._where} has lost rows while they were put there: has it memory for all of them?"
            raise StoreUnavailable(what, CLIENT_MESSAGE)

    def is_whole(self) -> bool:
        """Whether no partition of any table has lost its rows since `seal`."""
        tables = [(table.name, partition) for table in self._tables.values() for partition in table.partitions]
        replies = self._ask([[partition.read_seal()] for _, partition in tables])
        for (table, partition), [layout] in zip(tables, replies, strict=True):
            self._check_same(table, partition, layout)
        return all(layout is not None for [layout] in replies)

    def clear(self, chosen: Sequence[int] | None = None) -> None:
        """Remove all rows of all tables, or of the partitions that are `chosen`, numbered as in `runs`."""
        partitions = self._all_partitions
        numbers = range(len(partitions)) if chosen is None else chosen
        self._ask([[partitions[number].clear()] for number in numbers])

    def runs(self) -> list[bytes]:
        """Which run of a Redis process has each partition of each table now.

        It is another one after a restart, from a snapshot perhaps, and after a replica has taken over, which may lack
        what was written last.
        """
        runs = self._told_by_processes(PartitionCommands.read_process, b"run_id")
        if b"" in runs:
            raise StoreError(f"Redis {self._where} does not tell its run_id", CLIENT_MESSAGE)
        return runs

    def memory_bounds(self) -> list[bytes]:
        """The `maxmemory` (bytes, in decimal) of the process that has each partition, as in `runs`; b"" where it does
        not tell.
        """
        return self._told_by_processes(PartitionCommands.read_memory, b"maxmemory")

    def note_runs(self, runs: Sequence[bytes]) -> None:
        """What these have is as new as it gets: `runs`, as they were before it was put there."""
        self._ask([[part.note_run(run)] for part, run in zip(self._all_partitions, runs, strict=True)])

    def doubt(self) -> None:
        """What the partitions have may be older than it was: to all servers they have `strayed`."""
        self.note_runs([b""] * len(self._all_partitions))

    def claim(self, chosen: Sequence[int]) -> None:
        """Have the partitions that are `chosen`, numbered as in `runs`, take a write, which changes no row. Raises
        where they do not take any.
        """
        partitions = self._all_partitions
        self._ask([partitions[number].claim() for number in chosen])

    def strayed(self, runs: Sequence[bytes]) -> list[int]:
        """The partitions that were noted for other runs than `runs`, or for none: their rows may be older."""
        noted = self._ask([[partition.read_run()] for partition in self._all_partitions])
        return [number for number, ([known], run) in enumerate(zip(noted, runs, strict=True)) if known != run]

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        check_query(table, keys, rows, found, self._table(table).dim)
        starts, bases = _alone(keys, rows)
        return self.fill_tables((table,), keys, starts, rows.reshape(-1), bases, np.ones(len(keys), np.bool_), found)

    def fill_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        wanted: FoundMask,
        found: FoundMask,
    ) -> int:
        """See `TablesStore.fill_tables`. When it fails, some of the rows may be filled."""
        known, places, cuts = self._chosen(tables, keys, starts, rows, bases, wanted, found)
        count = 0
        for exchange in exchanges(known, keys[places], cuts, self._max_batch_size):
            # The layout last: with a seal after them, the rows were there.
            replies = self._ask(
                [
                    [*share.partition.query(share.names), self._asking_layout(share.partition)]
                    for share in exchange.shares
                ]
            )
            values: list[bytes] = []
            present: list[bool] = []
            for share, (*answers, layout) in zip(exchange.shares, replies, strict=True):
                self._check_layout(share, layout)
                self._take_values(share.table, answers, values, present)
            held, there = np.array(present, np.bool_), places[exchange.places]
            source = np.frombuffer(b"".join(values), "<f4").astype(np.float32, copy=False)
            table_batch.take_rows(source, there, held, starts, bases, rows)
            found[there] = held
            count += int(np.count_nonzero(held))
        return count

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. When it fails, some of the rows may be there."""
        check_rows(table, keys, rows, self._table(table).dim)
        starts, bases = _alone(keys, rows)
        self.insert_tables((table,), keys, starts, rows.reshape(-1), bases, np.ones(len(keys), np.bool_))

    def insert_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
    ) -> None:
        """See `VolatileStore.insert_tables`. When it fails, some of the rows may be there."""
        known, places, cuts = self._chosen(tables, keys, starts, rows, bases, chosen)
        for exchange in exchanges(known, keys[places], cuts, self._max_batch_size):
            shares = exchange.shares
            claim = self.rule is LayoutRule.CLAIMED
            layouts = self._ask(
                [
                    part.claim() if claim else [self._asking_layout(part)]
                    for part in (share.partition for share in shares)
                ]
            )
            for share, (*_, layout) in zip(shares, layouts, strict=True):
                self._check_layout(share, layout)
            values = exchange.row_bytes(starts, rows, bases, places[exchange.places])
            now_s = time.time()
            replies = self._ask(
                [list(share.partition.insert(share.names, values[share.own], now_s)) for share in shares]
            )
            self._prune({share.partition: _count(answers[-1:]) for share, answers in zip(shares, replies, strict=True)})

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`. Each row is replaced only if it is there at that moment."""
        known = self._table(table)
        check_rows(table, keys, rows, known.dim)
        last = last_of_each(keys)
        updated = 0
        for exchange in self._exchanges_of(known, keys[last]):
            values = elements(rows[last[exchange.places]])
            replies = self._ask(
                [list(share.partition.update(share.names, values[share.own])) for share in exchange.shares]
            )
            for share, answers in zip(exchange.shares, replies, strict=True):
                for answer in answers:
                    if not isinstance(answer, int):
                        self._check_layout(share, answer)
                updated += _count(answers)
        return updated

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        deleted = 0
        for exchange in self._exchanges_of(self._table(table), keys):
            replies = self._ask([list(share.partition.delete(share.names)) for share in exchange.shares])
            deleted += sum(map(_count, replies))
            self._ask([list(share.partition.forget(share.names)) for share in exchange.shares])
        return deleted

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """See `VolatileStore.touch`. Keys that repeat count so often; asks nothing of Redis with `evict_random`."""
        known = [self._table(table) for table, _ in parts]
        for table, keys in parts:
            check_keys(table, keys)
        if self.options.overflow_policy is OverflowPolicy.EVICT_RANDOM or not parts:
            return
        distinct, counts = zip(*(np.unique(keys, return_counts=True) for _, keys in parts), strict=True)
        cuts = np.cumsum([0, *map(len, distinct)])
        times = np.concatenate(counts)
        now_s = time.time()
        for exchange in exchanges(known, np.concatenate(distinct), cuts, self._max_batch_size):
            own = times[exchange.places].tolist()
            self._ask([list(share.partition.touch(share.names, own[share.own], now_s)) for share in exchange.shares])

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`.

        Keys that come or go meanwhile may or may not be among them. Holds one partition's keys at a time.
        """
        check_batch_size(batch_size)
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

    def _table(self, table: str) -> RedisTable:
        if self._closed:
            raise StoreError(f"the store on Redis {self._where} is closed", CLIENT_MESSAGE)
        if table not in self._tables:
            raise StoreError(f"no table {table}; there are {', '.join(self._tables)}", CLIENT_MESSAGE)
        return self._tables[table]

    def _chosen(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
        *masks: FoundMask,
    ) -> tuple[list[RedisTable], KeyArray, KeyArray]:
        """The tables, the places of those of their keys that are `chosen`, and where each table's begin among these."""
        known = [self._table(table) for table in tables]
        dims = np.array([table.dim for table in known], np.int64)
        check_flat(tables, keys, starts, rows, bases, chosen, *masks, fills=bool(masks))
        try:
            check_table_batch(dims, np.arange(len(known)), keys, starts, rows, bases, chosen, *masks)
        except ValueError as fault:
            raise StoreError(f"{len(tables)} tables of Redis {self._where}: {fault}", CLIENT_MESSAGE) from None
        places = starts[0] + np.flatnonzero(chosen[starts[0] : starts[-1]])
        return known, places, np.searchsorted(places, starts)

    def _exchanges_of(self, table: RedisTable, keys: KeyArray) -> Iterator[Exchange]:
        check_keys(table.name, keys)
        return exchanges([table], keys, np.array([0, len(keys)]), self._max_batch_size)

    def _ask(self, asked: Sequence[list[Command]]) -> list[list[Reply]]:
        """The replies to lists of commands, as lists of the same lengths, in one exchange."""
        replies = iter(self._nodes.execute([command for commands in asked for command in commands]))
        return [[next(replies) for _ in commands] for commands in asked]

    def _take_values(
        self, table: RedisTable, answers: Sequence[Reply], values: list[bytes], present: list[bool]
    ) -> None:
        """Append what was answered for each key, zeros where there is no row, and whether there is one."""
        size_bytes = 4 * table.dim
        told: list[bytes | None] = list(chain.from_iterable(answers))  # type: ignore[arg-type]  # each is a list
        for length in {len(value) for value in told if value is not None} - {size_bytes}:
            what = f"table {table.name} has a row of {length} bytes, where its dim needs {size_bytes}"
            raise TableFault(f"Redis {self._where}: {what}", CLIENT_MESSAGE)
        values += [bytes(size_bytes) if value is None else value for value in told]
        present += [value is not None for value in told]

    def _told_by_processes(self, asking: Callable[[PartitionCommands], Command], field: bytes) -> list[bytes]:
        """By partition of each table, a field of what the process says that has it; b"" where it says nothing of it.

        Each process is asked once.
        """
        partitions = self._all_partitions
        owners = self._nodes.owners([partition.rows for partition in partitions])
        asked = dict(zip(owners, partitions, strict=True))
        replies = self._ask([[asking(partition)] for partition in asked.values()])
        found = {owner: _field_of(reply, field) for owner, [reply] in zip(asked, replies, strict=True)}
        return [found[owner] for owner in owners]

    @property
    def _all_partitions(self) -> list[PartitionCommands]:
        return [partition for table in self._tables.values() for partition in table.partitions]

    def _asking_layout(self, partition: PartitionCommands) -> Command:
        return partition.read_seal() if self.rule is LayoutRule.REQUIRED else partition.read_layout()

    def _check_layout(self, share: Share, layout: Reply) -> None:
        if layout is None and self.rule is LayoutRule.REQUIRED:
            self.loss.set()
            what = f"Redis {self._where} has lost rows of table {share.table.name}"
            if (fault := self.refill_fault) is not None:
                what += f", and they cannot be put there anew: {fault}"
            raise StoreUnavailable(what, CLIENT_MESSAGE)
        self._check_same(share.table.name, share.partition, layout)

    def _check_same(self, table: str, partition: PartitionCommands, layout: Reply) -> None:
        if layout is not None and layout != partition.layout:
            there = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
            raise TableFault(
                f"Redis {self._where}: table {table} is there as {there}, not as {partition.layout.decode()}: "
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


def _alone(keys: KeyArray, rows: RowArray) -> tuple[KeyArray, KeyArray]:
    """`starts` and `bases` of a batch of one table."""
    return np.array([0, len(keys)]), np.array([0, rows.size])


def _field_of(told: Reply, field: bytes) -> bytes:
    """What an answer to INFO has as `field`; b"" if nothing."""
    lines = told.split() if isinstance(told, bytes) else []
    return next((line.removeprefix(field + b":") for line in lines if line.startswith(field + b":")), b"")


def _count(replies: Sequence[Reply]) -> int:
    return sum(reply for reply in replies if isinstance(reply, int))
