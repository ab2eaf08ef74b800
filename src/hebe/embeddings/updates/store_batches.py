"""Makes of messages the batches that a store is given: as large as may be, never across a change of order, and of a
key's rows the last one alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hebe.embeddings.store import KeyArray, RowArray, last_of_each
from hebe.embeddings.updates.contract import UpdateMessage


@dataclass(frozen=True, slots=True, eq=False)
class StoreBatch:
    """Rows to put under keys, or keys to delete (`rows` None).

    `count` rows or keys came in the messages: of those with the same key a batch of several messages has the last one.
    `position` is the offset up to which nothing of the partition is outstanding once this batch is in the store, and
    `mark` that of the last message up to there. `sent_s` are the times of the messages that are complete then. One
    without keys is of its position alone.
    """

    keys: KeyArray
    rows: RowArray | None
    count: int
    position: int | None
    sent_s: tuple[float, ...]
    mark: str = ""


def store_batches(messages: Iterable[tuple[UpdateMessage, int, str]], most_keys: int) -> Iterator[StoreBatch]:
    """Batches of at most `most_keys` keys, of (message, position, mark) in the order in which they are to be applied.

    A message that is larger is cut; its position comes with its last piece.
    """
    waiting: list[tuple[UpdateMessage, int, str]] = []
    count = 0
    for message, position, mark in messages:
        kind = message.rows is None
        if waiting and (count + len(message.keys) > most_keys or kind != (waiting[-1][0].rows is None)):
            yield _joined(waiting)
            waiting, count = [], 0
        if len(message.keys) <= most_keys:
            waiting.append((message, position, mark))
            count += len(message.keys)
            continue
        for first in range(0, len(message.keys), most_keys):
            part = slice(first, first + most_keys)
            keys, rows = message.keys[part], None if message.rows is None else message.rows[part]
            if first + most_keys < len(message.keys):
                yield StoreBatch(keys, rows, len(keys), None, ())
            else:
                yield StoreBatch(keys, rows, len(keys), position, (message.sent_s,), mark)
    if waiting:
        yield _joined(waiting)


def _joined(messages: list[tuple[UpdateMessage, int, str]]) -> StoreBatch:
    keys = np.concatenate([message.keys for message, _, _ in messages])
    parts = [message.rows for message, _, _ in messages if message.rows is not None]
    rows = np.concatenate(parts) if parts else None
    count = len(keys)
    if len(messages) > 1:  # hot rows are in most of them
        last = last_of_each(keys)
        keys, rows = keys[last], None if rows is None else rows[last]
    _, position, mark = messages[-1]
    return StoreBatch(keys, rows, count, position, tuple(message.sent_s for message, _, _ in messages), mark)
