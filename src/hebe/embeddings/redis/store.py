"""Level 2 in Redis: a volatile store that several servers share, on one instance or a Redis Cluster.

How it lies there, for operators too: `layout`. Redis 6.2 or later. Every row of a batch goes to or comes from
the servers in one exchange, all nodes at work at once; nothing is kept here between calls but open connections, so a
Redis that was lost, paused or restarted empty serves again as soon as it answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.connection import CLIENT_MESSAGE, RedisAccess, parse_addresses
from hebe.embeddings.redis.exchanges import Exchange, RedisTable, Share, exchanges
from hebe.embeddings.redis.layout import (
    NOTHING,
    Command,
    PartitionCommands,
    PartitionState,
    Progress,
    Reply,
)
from hebe.embeddings.redis.opening import open_nodes
from hebe.embeddings.store import (
    UNKNOWN_POSITION,
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
from hebe.kernels.lookup import sealed_rows
from hebe.kernels.lookup.table_batch import check_table_batch

_BACKGROUND_CONNECTIONS = 4
_NO_MARKS = np.empty(0, np.int64)


class RedisStore:
    """A `VolatileStore` in the Redis at `addresses`: `HOST:PORT` or `unix:PATH`, or some nodes of a Redis Cluster.

    `dims` gives the embedding dim by table name. Stores of one `namespace` (a model's name, say) share their rows, and
    must agree on dims, number of partitions and overflow policy. Where Redis is `alone`, nothing else has the rows:
    those of a partition are answered once they are sealed. A batch is carried out in exchanges of at most
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
        alone: bool = False,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}: must be at least 1")
        for table, dim in dims.items():
            if dim < 1:
                raise ValueError(f"dim of table {table} is {dim}: must be at least 1")
        self.dims = dict(dims)
        self.options = options
        self.alone = alone
        self.max_batch_size = max_batch_size
        self.where = ", ".join(str(address) for address in parse_addresses(addresses))
        self._access = access or RedisAccess()
        self._nodes = open_nodes(addresses, self._access)
        self.incomplete = threading.Event()
        """Set when a query finds a partition whose rows are not all there; for who puts them there to clear."""
        self.error: str | None = None
        """Why the rows are not there: part of what those learn who ask for them."""
        self.oldest_trusted = NOTHING
        """Rows with an earlier position may be older than rows that were there before (`UNKNOWN_POSITION`)."""
        self.log_partitions: Callable[[str], int] = lambda _table: 0
        """How many partitions the log has of a table, as far as the caller knows: positions of others do not
        compare.
        """
        self.damaged_rows = 0
        """How many were found that are not as they were written, or were written by others; they are removed."""
        self.on_damage: Callable[[str], None] = lambda _damage: None
        """Called with where they were."""
        self.use(namespace)
        share = int(options.overflow_margin * options.overflow_resolution_target)
        self.target_rows = min(options.overflow_margin, max(1, share), int(np.iinfo(np.int64).max))
        """What pruning leaves of a partition."""
        self._closed = False
        xxh64.warm_up()
        sealed_rows.warm_up()

    def use(self, namespace: str) -> None:
        """From now on the rows are those of `namespace`."""
        self.namespace = namespace
        self._tables = {
            table: RedisTable(
                table,
                dim,
                sealed_rows.table_seed(table),
                tuple(
                    PartitionCommands(namespace, table, partition, dim, self.options)
                    for partition in range(self.options.num_partitions)
                ),
            )
            for table, dim in self.dims.items()
        }
        self._seen: dict[tuple[str, int], KeyArray] = {}
        """By table and partition, the furthest positions that it was seen to have."""

    def sibling(self) -> RedisStore:
        """A store of the same rows for work that no query waits for: with connections of its own, four to each server
        at most.
        """
        return RedisStore(
            self.dims,
            self.where,
            self.options,
            namespace=self.namespace,
            access=replace(self._access, num_node_connections=_BACKGROUND_CONNECTIONS),
            max_batch_size=self.max_batch_size,
            alone=self.alone,
        )

    def carry_out(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands on Redis keys other than rows'; the replies, in order. Raises as other calls do."""
        return self._nodes.execute(commands)

    def ask(self, asked: Sequence[Iterable[Command]]) -> list[list[Reply]]:
        """The replies to lists of commands, as lists of the same lengths, in one exchange."""
        lists = [list(commands) for commands in asked]
        replies = iter(self._nodes.execute([command for commands in lists for command in commands]))
        return [[next(replies) for _ in commands] for commands in lists]

    def states(self) -> dict[str, list[PartitionState | None]]:
        """By table, the state of each partition, None where there is none. Raises `TableFault` for another layout."""
        found = self.ask([[part.read_state() for part in table.partitions] for table in self._tables.values()])
        return {
            table.name: [
                None if reply is None else self.state_of(table.name, part, reply)
                for part, reply in zip(table.partitions, replies, strict=True)
            ]
            for table, replies in zip(self._tables.values(), found, strict=True)
        }

    def begin(self, progress: Progress, marks: Mapping[str, KeyArray] | None = None) -> None:
        """Give all partitions that have no state this one: of tables that `marks` names, with these."""
        states = {table: PartitionState(progress, (marks or {}).get(table, _NO_MARKS)) for table in self._tables}
        self.ask([[part.begin(states[table.name]) for part in table.partitions] for table in self._tables.values()])

    def clear(self, table: str | None = None, partitions: Sequence[int] | None = None) -> None:
        """Remove all rows and states; of one table, or of some of its partitions, where these are given."""
        tables = self._tables.values() if table is None else [self.table(table)]
        chosen = range(self.options.num_partitions) if partitions is None else partitions
        self.ask([[each.partitions[number].clear() for number in chosen] for each in tables])

    def advance(self, progress: Progress, least_rows: Mapping[str, KeyArray] | None = None) -> bool:
        """Bring all partitions from the step before to `progress`, each if it has as many rows as `least_rows` of the
        table says, int64 `[partitions]`: more than any has, where the caller has not filled it. Returns whether all are
        there.
        """
        asked = [
            [
                part.advance(progress, 0 if least_rows is None else int(least_rows[table.name][number]))
                for number, part in enumerate(table.partitions)
            ]
            for table in self._tables.values()
        ]
        return all(reply == [1] for replies in self.ask(asked) for reply in replies)

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        check_query(table, keys, rows, found, self.table(table).dim)
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
        positions: KeyArray | None = None,
        row_positions: KeyArray | None = None,
    ) -> int:
        """See `TablesStore.fill_tables`. When it fails, some of the rows may be filled."""
        known, places, cuts = self._chosen(tables, keys, starts, rows, bases, wanted, found)
        seeds = np.array([table.seed for table in known], np.uint64)
        own = np.full(len(keys), UNKNOWN_POSITION) if row_positions is None else row_positions
        count = 0
        for exchange in exchanges(known, keys[places], cuts, self.max_batch_size):
            replies = self.ask([share.partition.query(share.names) for share in exchange.shares])
            values: list[bytes] = []
            present: list[bool] = []
            states: list[PartitionState | None] = []
            for share, answers in zip(exchange.shares, replies, strict=True):
                states.append(self._state_with(share, answers))
                self._take_values(share, answers, states[-1] is not None, values, present)
            held, there = np.array(present, np.bool_), places[exchange.places]
            sent = held.copy()
            source = np.frombuffer(b"".join(values), np.uint8)
            if sealed_rows.open_rows(source, there, held, keys, seeds, starts, bases, rows, own):
                damaged = np.flatnonzero(sent & ~held)
                self._remove_damaged(exchange, damaged.tolist(), values)
            found[there] = held
            if positions is not None:
                for share, state in zip(exchange.shares, states, strict=True):
                    at = there[share.own]
                    positions[at] = self._positions(share, state, keys[at], own[at])
            count += int(np.count_nonzero(held))
        return count

    def fill(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
        positions: KeyArray,
        log_partitions: KeyArray,
    ) -> int:
        """Put those rows in that are `chosen` and absent, unless the partition has later updates than `positions` say,
        int64 one a key: the position of its own of `log_partitions` up to which the row has all updates. Other arrays
        as those of `fill_tables`. Returns how many were too old. Keys of a partition without a state are not put in.
        """
        known, places, cuts = self._chosen(tables, keys, starts, rows, bases, chosen)
        too_old = 0
        for exchange in exchanges(known, keys[places], cuts, self.max_batch_size):
            there = places[exchange.places]
            sealed = self._sealed(known, there, keys, positions[there], starts, bases, rows)
            numbers = [b"%d" % number for number in log_partitions[there].tolist()]
            now_s = time.time()
            asked = []
            for share in exchange.shares:
                triples = zip(share.names, numbers[share.own], sealed[share.own], strict=True)
                count = self.log_partitions(share.table.name)
                asked.append(share.partition.fill(count, list(chain.from_iterable(triples)), now_s))
            sizes = {}
            for share, answers in zip(exchange.shares, self.ask(asked), strict=True):
                for answer in answers:
                    numbers_of = self.numbers(share.table.name, share.partition, answer)
                    if numbers_of is not None:
                        sizes[share.partition] = numbers_of[1]
                        too_old += numbers_of[2]
            self.prune(sizes)
        return too_old

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. When it fails, some of the rows may be there."""
        check_rows(table, keys, rows, self.table(table).dim)
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
        for exchange in exchanges(known, keys[places], cuts, self.max_batch_size):
            shares, there = exchange.shares, places[exchange.places]
            self._check_states(shares)
            values = self._sealed(known, there, keys, np.full(len(there), NOTHING), starts, bases, rows)
            now_s = time.time()
            replies = self.ask([share.partition.insert(share.names, values[share.own], now_s) for share in shares])
            self.prune({share.partition: _count(answers[-1:]) for share, answers in zip(shares, replies, strict=True)})

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`. Each row is replaced only if it is there at that moment."""
        known = self.table(table)
        check_rows(table, keys, rows, known.dim)
        last = last_of_each(keys)
        keys, rows = keys[last], rows[last]
        starts, bases = _alone(keys, rows)
        updated = 0
        for exchange in self.exchanges_of(known, keys):
            self._check_states(exchange.shares)
            there = exchange.places
            sealed = self._sealed([known], there, keys, np.full(len(there), NOTHING), starts, bases, rows.reshape(-1))
            replies = self.ask([share.partition.update(share.names, sealed[share.own]) for share in exchange.shares])
            updated += sum(map(_count, replies))
        return updated

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        deleted = 0
        for exchange in self.exchanges_of(self.table(table), keys):
            replies = self.ask([share.partition.delete(share.names) for share in exchange.shares])
            deleted += sum(map(_count, replies))
            self.ask([share.partition.forget(share.names) for share in exchange.shares])
        return deleted

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """See `VolatileStore.touch`. Keys that repeat count so often; asks nothing of Redis with `evict_random`."""
        known = [self.table(table) for table, _ in parts]
        for table, keys in parts:
            check_keys(table, keys)
        if self.options.overflow_policy is OverflowPolicy.EVICT_RANDOM or not parts:
            return
        distinct, counts = zip(*(np.unique(keys, return_counts=True) for _, keys in parts), strict=True)
        cuts = np.cumsum([0, *map(len, distinct)])
        times = np.concatenate(counts)
        now_s = time.time()
        for exchange in exchanges(known, np.concatenate(distinct), cuts, self.max_batch_size):
            own = times[exchange.places].tolist()
            self.ask([share.partition.touch(share.names, own[share.own], now_s) for share in exchange.shares])

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`.

        Keys that come or go meanwhile may or may not be among them. Holds one partition's keys at a time.
        """
        check_batch_size(batch_size)
        for partition in self.table(table).partitions:
            keys = self._keys_of(partition)
            for first in range(0, len(keys), batch_size):
                yield keys[first : first + batch_size]

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return sum(_count(answers) for answers in self.ask([[part.size()] for part in self.table(table).partitions]))

    def close(self) -> None:
        """See `EmbeddingStore.close`. What is in Redis stays there."""
        self._closed = True
        self._nodes.close()

    def table(self, table: str) -> RedisTable:
        """The table of that name. Raises `StoreError` where there is none, and after `close`."""
        if self._closed:
            raise StoreError(f"the store on Redis {self.where} is closed", CLIENT_MESSAGE)
        if table not in self._tables:
            raise StoreError(f"no table {table}; there are {', '.join(self._tables)}", CLIENT_MESSAGE)
        return self._tables[table]

    def exchanges_of(self, table: RedisTable, keys: KeyArray) -> Iterator[Exchange]:
        """All `keys` of one table."""
        check_keys(table.name, keys)
        return exchanges([table], keys, np.array([0, len(keys)]), self.max_batch_size)

    def state_of(self, table: str, partition: PartitionCommands, field: Reply) -> PartitionState:
        """What the field `state` of a partition says. Raises `TableFault` where it is of another layout."""
        state = PartitionState.of(field, partition.layout) if isinstance(field, bytes) else None
        if state is None:
            raw = field.partition(b"\0")[0].decode(errors="replace") if isinstance(field, bytes) else field
            raise TableFault(
                f"Redis {self.where}: table {table} is there as {raw}, not as {partition.layout.decode()}: "
                f"delete its keys ({partition.pattern}) or use another namespace",
                CLIENT_MESSAGE,
            )
        return state

    def numbers(self, table: str, partition: PartitionCommands, answer: Reply) -> list[int] | None:
        """What a command on a state answers; None where the state is gone, or behind what is known of it. Raises
        `TableFault` where it is of another layout.
        """
        if isinstance(answer, list):
            return [number for number in answer if isinstance(number, int)]
        if answer not in (b"gone", b"lost"):
            self.state_of(table, partition, answer)
        return None

    def prune(self, sizes: dict[PartitionCommands, int]) -> None:
        """Bring those above the margin down to the target, in steps that leave Redis time for others."""
        above = {partition: size for partition, size in sizes.items() if size > self.options.overflow_margin}
        while above:
            replies = self.ask([[partition.evict(self.target_rows)] for partition in above])
            left = {partition: _count(answers) for partition, answers in zip(above, replies, strict=True)}
            # Where the size has not fallen, others insert as fast; what is above the margin then is theirs to prune.
            above = {part: size for part, size in left.items() if self.target_rows < size < above[part]}

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
        known = [self.table(table) for table in tables]
        dims = np.array([table.dim for table in known], np.int64)
        check_flat(tables, keys, starts, rows, bases, chosen, *masks, fills=bool(masks))
        try:
            check_table_batch(dims, np.arange(len(known)), keys, starts, rows, bases, chosen, *masks)
        except ValueError as error:
            raise StoreError(f"{len(tables)} tables of Redis {self.where}: {error}", CLIENT_MESSAGE) from None
        places = starts[0] + np.flatnonzero(chosen[starts[0] : starts[-1]])
        return known, places, np.searchsorted(places, starts)

    def _sealed(
        self,
        tables: Sequence[RedisTable],
        places: KeyArray,
        keys: KeyArray,
        positions: KeyArray,
        starts: KeyArray,
        bases: KeyArray,
        rows: RowArray,
    ) -> list[bytes]:
        seeds = np.array([table.seed for table in tables], np.uint64)
        return sealed_rows.seal_rows(seeds, places, keys, positions, starts, bases, rows)

    def _check_states(self, shares: Sequence[Share]) -> None:
        """Have each partition have a state. Raises `TableFault` where it is of another layout."""
        sealed = PartitionState(Progress.SEALED, _NO_MARKS)
        fields = self.ask([[share.partition.begin(sealed), share.partition.read_state()] for share in shares])
        for share, (_, field) in zip(shares, fields, strict=True):
            self.state_of(share.table.name, share.partition, field)

    def _state_with(self, share: Share, answers: Sequence[Reply]) -> PartitionState | None:
        """The state of a partition whose rows of `answers`, each with the state beside it, may be used: what all of
        these have at least. None where they count as missing. Raises `StoreUnavailable` where nothing else has them.
        """
        fields = {answer[0] if isinstance(answer, list) else answer for answer in answers}
        found = [None if field is None else self.state_of(share.table.name, share.partition, field) for field in fields]
        states = [state for state in found if state is not None]
        whole = len(states) == len(found)
        if self.alone and not (whole and all(state.progress is Progress.SEALED for state in states)):
            self.incomplete.set()
            what = f"Redis {self.where} has not all rows of table {share.table.name}"
            raise StoreUnavailable(what if self.error is None else f"{what}: {self.error}", CLIENT_MESSAGE)
        if not whole:
            return None
        # It may have been written to, or even been begun again, between two of the answers.
        if len({state.marks.size for state in states}) > 1:
            return replace(states[0], marks=_NO_MARKS)
        return replace(states[0], marks=np.min([state.marks for state in states], axis=0))

    def _take_values(
        self, share: Share, answers: Sequence[Reply], usable: bool, values: list[bytes], present: list[bool]
    ) -> None:
        """Append what was answered for each key, zeros where there is no row, and whether there is one."""
        size_bytes = sealed_rows.HEADER_BYTES + 4 * share.table.dim
        raw: list[bytes | None] = list(chain.from_iterable(answer[1:] for answer in answers))  # type: ignore[index, misc]  # each is a list
        if not usable:
            raw = [None] * len(raw)
        if {len(value) for value in raw if value is not None} - {size_bytes}:
            wrong = [place for place, value in enumerate(raw) if value is not None and len(value) != size_bytes]
            self._remove(share, [share.names[place] for place in wrong], [raw[place] or b"" for place in wrong])
            for place in wrong:
                raw[place] = None
        values += [bytes(size_bytes) if value is None else value for value in raw]
        present += [value is not None for value in raw]

    def _remove_damaged(self, exchange: Exchange, damaged: Sequence[int], values: Sequence[bytes]) -> None:
        for share in exchange.shares:
            own = [place for place in damaged if share.own.start <= place < share.own.stop]
            if own:
                names = [share.names[place - share.own.start] for place in own]
                self._remove(share, names, [values[place] for place in own])

    def _remove(self, share: Share, names: list[bytes], values: list[bytes]) -> None:
        """Rows that are not as they were written: remove those that are still the same, and report them. Where nothing
        else has them, all of the partition goes, so that it is filled again.
        """
        self.damaged_rows += len(names)
        damage = f"Redis {self.where}: rows of table {share.table.name}, partition {share.number}, are not as written"
        self.on_damage(damage)
        if self.alone:
            self.incomplete.set()
            self.ask([[share.partition.clear()]])
            raise StoreUnavailable(damage, CLIENT_MESSAGE)
        self.ask([[share.partition.remove(names, values)]])

    def _positions(self, share: Share, state: PartitionState | None, keys: KeyArray, own: KeyArray) -> KeyArray:
        """Up to which position rows of those `keys` are known to have all updates, `own` being that of the row
        itself.
        """
        complete = _NO_MARKS if state is None else state.complete
        expected = self.log_partitions(share.table.name)
        if complete.size and expected not in (0, complete.size):
            return np.full(len(keys), UNKNOWN_POSITION)
        if complete.size:
            numbers = xxh64.key_partitions(keys, complete.size)
            reached = np.maximum(own, complete[numbers])
            seen = self._seen.get((share.table.name, share.number), complete)
            if seen.size != complete.size:
                seen = complete
            # A partition that went back, as with a replica that took over: what it has now may be older than it was.
            reached[own < np.where(complete < seen, seen, NOTHING)[numbers]] = UNKNOWN_POSITION
            self._seen[share.table.name, share.number] = np.maximum(seen, complete)
        else:
            reached = own.copy()
        reached[own < self.oldest_trusted] = UNKNOWN_POSITION
        return reached

    def _keys_of(self, partition: PartitionCommands) -> KeyArray:
        """All keys of a partition, each once: Redis may return one twice while its hash shrinks or grows."""
        cursor, found = b"0", list[bytes]()
        while True:
            [[scanned]] = self.ask([[partition.scan(cursor)]])
            match scanned:
                case [bytes(cursor), bytes(keys)]:
                    found.append(keys)
                case _:
                    raise StoreError(f"Redis {self.where}: {scanned!r:.100} in place of keys", CLIENT_MESSAGE)
            if cursor == b"0":
                return np.unique(np.frombuffer(b"".join(found), "<i8").astype(np.int64, copy=False))


def _alone(keys: KeyArray, rows: RowArray) -> tuple[KeyArray, KeyArray]:
    """`starts` and `bases` of a batch of one table."""
    return np.array([0, len(keys)]), np.array([0, rows.size])


def _count(replies: Sequence[Reply]) -> int:
    return sum(reply for reply in replies if isinstance(reply, int))
