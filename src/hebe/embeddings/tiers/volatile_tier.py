"""Level 2 as a lookup uses it: what it is asked, and what it is given afterwards, in no query's way."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hebe.embeddings.clients.tier_client import TierClient
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import UNKNOWN_POSITION, KeyArray, VolatileStore
from hebe.embeddings.tiers.batch_lookup import Answer
from hebe.embeddings.tiers.update_positions import UpdatePositions

_FULL_S = 5.0
"""So long nothing is sent for later queries to a level 2 that had no memory for it: it would fail each time."""


class VolatileTier:
    """The store, and its client where it may stall; one in this process answers at once, and has none. Queries go
    through the client, which has a store of its own, so that nothing that is done here takes a connection from them.
    """

    def __init__(self, store: VolatileStore, client: TierClient | None = None) -> None:
        self.store, self.client = store, client
        self._found_full_s = -math.inf

    @property
    def available(self) -> bool:
        """Whether requests pass."""
        return self.client is None or self.client.available

    @property
    def has_room(self) -> bool:
        """Whether it has not run out of memory a moment ago."""
        return time.monotonic() >= self._found_full_s + _FULL_S

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """What it had, (table, keys), was used; nothing is sent to one whose circuit is open, or that has no room to
        note it. For the background.
        """
        if self.available and self.has_room:
            with self._noting_if_full():
                self.store.touch(parts)

    def fill(self, answer: Answer, settled: Mapping[str, KeyArray], updates: UpdatePositions) -> int:
        """Put in what it lacks and level 3 had, at the positions `settled` of its tables, by partition of the log, that
        it had before and after it was read. Rows of partitions that had none, as an update came between, stay out.
        Returns how many Redis has later updates of, perhaps, than level 3. For the background.
        """
        if not self.available or not answer.found.any():
            return 0
        batch, chosen = answer.batch, answer.found.copy()
        positions, numbers = np.full(len(chosen), -1), np.zeros(len(chosen), np.int64)
        for table, own in answer.spans():
            if settled[table].size:
                numbers[own] = updates.partitions_of(table, batch.keys[own])
                positions[own] = settled[table][np.minimum(numbers[own], settled[table].size - 1)]
        chosen &= positions != UNKNOWN_POSITION
        with self._noting_if_full():
            if isinstance(self.store, RedisStore):
                arrays = batch.keys, batch.starts, batch.rows, batch.bases
                return self.store.fill(batch.tables, *arrays, chosen, positions, numbers)
            self._fill_in_process(answer, chosen, settled, updates)
        return 0

    def _fill_in_process(
        self, answer: Answer, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], settled: Mapping[str, KeyArray],
        updates: UpdatePositions,
    ) -> None:  # fmt: skip
        """One that the same updates are written to: what one of them may have overtaken meanwhile goes."""
        batch, there = answer.batch, np.zeros(len(chosen), np.bool_)
        self.store.fill_tables(
            batch.tables, batch.keys, batch.starts, np.empty_like(batch.rows), batch.bases, chosen, there
        )
        chosen &= ~there
        self.store.insert_tables(batch.tables, batch.keys, batch.starts, batch.rows, batch.bases, chosen)
        for table, own in answer.spans():
            now = updates.settled(table)
            if not np.array_equal(now, settled[table]):
                keys = batch.keys[own][chosen[own]]
                moved = np.ones(len(now), np.bool_) if now.size != settled[table].size else now != settled[table]
                self.store.delete(table, keys[moved[updates.partitions_of(table, keys)]])

    @contextlib.contextmanager
    def _noting_if_full(self) -> Iterator[None]:
        try:
            yield
        except RedisFull:
            self._found_full_s = time.monotonic()
            raise

    def close(self) -> None:
        """Close the store, and its client."""
        with contextlib.closing(self.store):
            if self.client is not None:
                self.client.close()
