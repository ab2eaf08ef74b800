"""Writes online updates into the rows in Redis, which know how old they are: a `PositionedStore`.

Any number of servers may write; what one writes late, or again, changes nothing (`layout`). Each remembers the marks
that it has seen each partition have. Where one is behind them, Redis has lost what was written, as a replica may that
took over: then nothing more is written (`lost`), until a new writer has begun where the partitions are.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from urllib.parse import quote

import numpy as np

from hebe.embeddings.redis.connection import CLIENT_MESSAGE
from hebe.embeddings.redis.exchanges import EXCHANGE_BYTES
from hebe.embeddings.redis.layout import NOTHING, PIECE_BYTES, Command, PartitionCommands, mark_of
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import KeyArray, RowArray, StoreUnavailable, check_keys, check_rows
from hebe.kernels.hash_tables import xxh64
from hebe.kernels.lookup import sealed_rows

_NO_MARK = 2 * NOTHING

Share = tuple[int, slice]
"""Of a batch: which partition it belongs to, and where it is."""


class RedisWriter:
    """Of the rows of `store`, those of `model` with updates of log `identity`. `log_partitions` says how many
    partitions the log has of a table. For the thread of one ingestion, and one more that calls `raise_marks`.

    Each partition gets its share of a batch at once. So its mark is right before and after, and says which updates it
    has, whatever is evicted or filled in between, and although a batch has only the last update of each key.
    """

    def __init__(self, store: RedisStore, model: str, identity: str, log_partitions: Callable[[str], int]) -> None:
        self._store, self._log_partitions = store, log_partitions
        self._prefix = f"{identity}/{model}"
        self._known: dict[str, KeyArray] = {}
        """By table the least marks that partitions have, int64 `[partitions, log partitions]`."""
        self._complete: dict[str, KeyArray] = {}
        """By table and log partition up to where all was written that comes from the log."""
        self._latest: dict[tuple[str, int], int] = {}
        """By table and log partition the latest offset that was written."""
        self._pieces: dict[PartitionCommands, bytes] = {}
        """Of partitions with part of a message, whose mark stays the same with the next part: the last that they were
        given. Where they have another one, they have lost it, or somebody else writes.
        """
        self._one_at_a_time = threading.Lock()
        self._log_marks: dict[str, tuple[int, str]] = {}
        """By name of a log partition, the message that `_complete` is at."""
        self._log_marks_key = b"hebe2:{%s}:marks" % quote(store.namespace, safe="").encode()
        self.lost = False
        """Whether Redis proved to have lost something."""
        self.replaced = False
        """Whether the log proved not to be the one that wrote the rows: it went back, or is another one."""

    def positions(self) -> dict[str, int]:
        """By log partition, PREFIX/TABLE/NUMBER, the offset up to which all partitions in Redis have its updates."""
        self._latest.clear()
        self._pieces.clear()
        found: dict[str, int] = {}
        for table, states in self._store.states().items():
            count = self._log_partitions(table)
            rows = []
            for state in states:
                if state is None or state.marks.size not in (0, count):
                    raise self._loss()
                rows.append(np.full(count, _NO_MARK) if not state.marks.size else state.marks)
            self._known[table] = known = np.array(rows, np.int64).reshape(len(rows), count)
            complete = (known >> 1).min(axis=0)
            before = self._complete.get(table)
            if before is not None and before.size == count:  # they lag what has been written
                complete = np.maximum(before, complete)
            self._complete[table] = complete
            found |= {
                f"{self._prefix}/{table}/{number}": offset
                for number, offset in enumerate(self._complete[table].tolist())
                if offset > NOTHING
            }
        return found

    def marks(self) -> dict[str, str]:
        """See `PositionedStore.marks`."""
        [answer] = self._store.carry_out([Command(self._log_marks_key, (b"HGETALL", self._log_marks_key))])
        words = [word.decode(errors="replace") for word in answer if isinstance(word, bytes)] if answer else []  # type: ignore[union-attr]
        noted = dict(zip(words[::2], words[1::2], strict=False))
        found = {}
        for name, note in noted.items():
            offset, _, mark = note.partition(" ")
            table, _, number = name.rpartition("/")
            complete = self._complete.get(table.removeprefix(f"{self._prefix}/"))
            if complete is not None and number.isdigit() and int(number) < complete.size:
                found[name] = mark if offset == str(complete[int(number)]) else ""
        return found

    def apply(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray | None,
        position: tuple[str, int] | None = None,
        *,
        mark: str = "",
        anew: bool = False,
        offsets: KeyArray | None = None,
    ) -> bool:
        """See `PositionedStore.apply`: `keys` are of one log partition, `offsets` are those of their messages.

        Raises `StoreUnavailable` where Redis has lost what was written, or the log is not the one that wrote it.
        """
        known_table = self._store.table(table)
        if rows is None:
            check_keys(table, keys)
        else:
            check_rows(table, keys, rows, known_table.dim)
        count = self._log_partitions(table)
        if position is not None:
            number = int(position[0].rpartition("/")[2])
        else:
            number = int(xxh64.key_partitions(keys[:1], count)[0])
        known = self._known_marks(table, count)
        self.replaced |= anew and bool(self._complete[table][number] > NOTHING)
        self.replaced |= position is not None and not position[0].startswith(f"{self._prefix}/")
        if self.lost or self.replaced:
            raise self._loss()
        with self._one_at_a_time:
            if keys.size:
                assert offsets is not None
                self._write(table, keys, rows, offsets, number, known, NOTHING if position is None else position[1])
            if position is not None:
                self._complete[table][number] = position[1]
                self._log_marks[position[0]] = position[1], mark
        return True

    def raise_marks(self) -> None:
        """Have all partitions know how much has been written. Raises as `apply` does."""
        if self.lost:
            raise self._loss()
        with self._one_at_a_time:
            for table in list(self._known):
                self._raise_marks_of(table)
            noted = dict(self._log_marks)
        if noted:
            words = chain.from_iterable((name, f"{offset} {mark}") for name, (offset, mark) in noted.items())
            command = (b"HSET", self._log_marks_key, *(word.encode() for word in words))
            self._store.carry_out([Command(self._log_marks_key, command)])

    def _raise_marks_of(self, table: str) -> None:
        count = self._log_partitions(table)
        known = self._known_marks(table, count)
        if not count:
            return
        raised = np.maximum(known, 2 * self._complete[table][:count])
        partitions = self._store.table(table).partitions
        asked = [
            [partition.raise_marks(count, self._pieces.get(partition, b""), zip(range(count), own, to, strict=True))]
            for partition, own, to in zip(partitions, known.tolist(), raised.tolist(), strict=True)
        ]
        for partition, [reply] in zip(partitions, self._store.ask(asked), strict=True):
            if self._store.numbers(table, partition, reply) is None:
                raise self._loss()
        known[:] = raised
        self._forget_pieces(table, range(len(partitions)))

    def _write(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray | None,
        offsets: KeyArray,
        number: int,
        known: KeyArray,
        end: int,
    ) -> None:
        known_table, count = self._store.table(table), known.shape[1]
        offsets = np.maximum(offsets, self._latest.get((table, number), NOTHING))  # of messages put back into order
        latest = int(offsets.max())
        to = max(mark_of(end), mark_of(latest) - 1)
        partitions = xxh64.key_partitions(keys, len(known_table.partitions))
        order = np.argsort(partitions, kind="stable")
        keys, offsets, partitions = keys[order], offsets[order], partitions[order]
        columns = [keys.astype("<i8", copy=False), offsets.astype("<i8", copy=False)]
        if rows is not None:
            columns.append(sealed_rows.seal_table(known_table.seed, keys, offsets, rows[order]))
        edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(keys)]
        shares = [(int(partitions[start]), slice(start, stop)) for start, stop in pairwise(edges)]
        for own in _together(shares, min(self._store.max_batch_size, EXCHANGE_BYTES // (4 * known_table.dim))):
            piece, asked = secrets.token_bytes(PIECE_BYTES) if to % 2 else b"", []
            for place, share in own:
                partition = known_table.partitions[place]
                keys_of, offsets_of, *sealed = (column[share].tobytes() for column in columns)
                least, before = int(known[place, number]), self._pieces.get(partition, b"")
                update = keys_of, offsets_of, b"".join(sealed)
                span = int(offsets[share].min()), int(offsets[share].max())
                asked.append([partition.apply(count, number, (least, to), span, (before, piece), update, time.time())])
            sizes = {}
            for (place, _), [answer] in zip(own, self._store.ask(asked), strict=True):
                partition = known_table.partitions[place]
                numbers = self._store.numbers(table, partition, answer)
                if numbers is None:
                    raise self._loss()
                sizes[partition] = numbers[1]
                known[place, number] = max(known[place, number], to)
                if piece:
                    self._pieces[partition] = piece
            if not piece:
                self._forget_pieces(table, [place for place, _ in own])
            self._store.prune(sizes)
        self._latest[table, number] = latest

    def _forget_pieces(self, table: str, places: Iterable[int]) -> None:
        """Of those partitions that have no message in part any more."""
        for place in places:
            if not (self._known[table][place] % 2).any():
                self._pieces.pop(self._store.table(table).partitions[place], None)

    def _known_marks(self, table: str, count: int) -> KeyArray:
        """Those of a table; the log may have come to have its partitions since they were read."""
        known = self._known[table]
        if known.shape[1] == 0 < count:
            known = self._known[table] = np.full((known.shape[0], count), _NO_MARK)
            self._complete[table] = np.full(count, NOTHING)
        return known

    def _loss(self) -> StoreUnavailable:
        self.lost = True
        return StoreUnavailable(f"Redis {self._store.where} has lost what was written to it", CLIENT_MESSAGE)


def _together(shares: Sequence[Share], most_keys: int) -> Iterator[list[Share]]:
    """As many of them at a time as have no more keys; at least one."""
    taken: list[Share] = []
    count = 0
    for share in shares:
        size = share[1].stop - share[1].start
        if taken and count + size > most_keys:
            yield taken
            taken, count = [], 0
        taken.append(share)
        count += size
    if taken:
        yield taken
