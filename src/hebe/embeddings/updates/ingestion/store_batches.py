"""Makes of messages the batches that a store is given: as large as may be, never across a change of order, and of a
key's rows the last one alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hebe.embeddings.store import KeyArray, RowArray, last_of_each
from hebe.embeddings.updates.contract import LogPlace, UpdateMessage

Positioned = tuple[UpdateMessage, int, int, str]
"""A message, its offset, the offset up to which nothing of the partition is outstanding with it, and the mark there."""


@dataclass(frozen=True, slots=True, eq=False)
class StoreBatch:
    """Rows to put under keys, or keys to delete (`rows` None), each key once; `offsets` has of which message each is.

    `count` rows or keys came in the messages: of those with the same key a batch has the last one. `position` is the
    offset up to which nothing of the partition is outstanding once this batch is in the store, and `mark` that of the
    last message up to there. `sent_s` are the times of the messages that are complete then. One without keys is of its
    position alone.
    """

    keys: KeyArray
    rows: RowArray | None
    count: int
    position: int | None
    sent_s: tuple[float, ...]
    mark: str = ""
    offsets: KeyArray = field(default_factory=lambda: np.empty(0, np.int64))

    def place_in(self, partition: int) -> LogPlace:
        """Where it stands in the log."""
        return LogPlace(partition, self.offsets, self.position)


def store_batches(messages: Iterable[Positioned], most_keys: int) -> Iterator[StoreBatch]:
    """Batches of at most `most_keys` keys, of messages in the order in which they are to be applied.

    A message that is larger is cut; its position comes with its last piece.
    """
    waiting: list[Positioned] = []
    count = 0
    for each in messages:
        message = each[0]
        kind = message.rows is None
        if waiting and (count + len(message.keys) > most_keys or kind != (waiting[-1][0].rows is None)):
            yield _joined(waiting)
            waiting, count = [], 0
        if len(message.keys) <= most_keys:
            waiting.append(each)
            count += len(message.keys)
        else:
            yield from _cut(_joined([each]), most_keys)
    if waiting:
        yield _joined(waiting)


def _cut(batch: StoreBatch, most_keys: int) -> Iterator[StoreBatch]:
    end = len(batch.keys)
    for first in range(0, end, most_keys):
        part = slice(first, first + most_keys)
        keys, rows = batch.keys[part], None if batch.rows is None else batch.rows[part]
        if part.stop < end:
            yield StoreBatch(keys, rows, len(keys), None, (), offsets=batch.offsets[part])
        else:
            count = batch.count - first  # those that came more than once are counted too
            yield StoreBatch(keys, rows, count, batch.position, batch.sent_s, batch.mark, batch.offsets[part])


def _joined(messages: list[Positioned]) -> StoreBatch:
    keys = np.concatenate([message.keys for message, *_ in messages])
    parts = [message.rows for message, *_ in messages if message.rows is not None]
    rows = np.concatenate(parts) if parts else None
    offsets = np.repeat([offset for _, offset, *_ in messages], [len(message.keys) for message, *_ in messages])
    count, last = len(keys), last_of_each(keys)  # hot rows are in most of them
    if len(last) < count:
        keys, rows, offsets = keys[last], None if rows is None else rows[last], offsets[last]
    _, _, position, mark = messages[-1]
    return StoreBatch(keys, rows, count, position, tuple(message.sent_s for message, *_ in messages), mark, offsets)
