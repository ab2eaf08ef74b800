"""Level 2 as a lookup uses it: what it is asked, and what it is told afterwards, in no query's way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.store import KeyArray, RowArray, StoreError, VolatileStore, last_of_each
from hebe.embeddings.tiers.batch_lookup import Answer
from hebe.embeddings.tiers.shared_fills import SharedFills
from hebe.embeddings.tiers.tier_client import TierGuard
from hebe.embeddings.tiers.update_tracking import RecentUpdates

_DELETED_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class VolatileTier:
    """The store, and its guard where it may stall; one in this process answers at once, and has none. Queries go
    through the guard, which has a store of its own, so that nothing that is done here takes a connection from them.

    Made by `of_process` and `guarded`.
    """

    store: VolatileStore
    guard: TierGuard | None = None
    fills: SharedFills | None = None
    """Of one elsewhere, which other servers may share."""

    @classmethod
    def of_process(cls, store: VolatileStore) -> VolatileTier:
        """One in this process."""
        return cls(store)

    @classmethod
    def guarded(cls, store: VolatileStore, guard: TierGuard) -> VolatileTier:
        """One elsewhere; `guard` has another store of the same rows."""
        return cls(store, guard, SharedFills())

    @property
    def available(self) -> bool:
        """Whether questions pass."""
        return self.guard is None or self.guard.available

    @property
    def may_fill(self) -> bool:
        """Whether it may be given rows of level 3."""
        return self.fills is None or self.fills.allowed

    @property
    def has_room(self) -> bool:
        """Whether it has not run out of memory a moment ago."""
        return self.fills is None or not self.fills.full

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """What it had, (table, keys), was used; nothing is told to one that is being left alone, or has no room to note
        it. For the background.
        """
        if self.available and self.has_room:
            with self._noting_if_full():
                self.store.touch(parts)

    def fill(self, answer: Answer, seen: Sequence[int], updates: Mapping[str, RecentUpdates]) -> None:
        """Put in what it lacked and level 3 had, unless it has it by then, or an update has overtaken the rows since
        those `seen`, a number each table. For the background.

        The keys are noted first and looked at again last: an update that comes in between either finds them noted, and
        deletes them, or is found here. So it is where level 3 falls behind meanwhile.
        """
        if not self.available or not self.may_fill or not answer.found.any():
            return
        batch, chosen = answer.batch, answer.found.copy()
        spans = [(table, slice(*batch.starts[number : number + 2])) for number, table in enumerate(batch.tables)]
        for (table, own), number in zip(spans, seen, strict=True):
            keys = batch.keys[own][answer.found[own]]
            if keys.size:
                updates[table].note_filled(keys)
                chosen[own] &= ~updates[table].overtaken(batch.keys[own], number)
        there = np.zeros(len(chosen), np.bool_)
        self.store.fill_tables(
            batch.tables, batch.keys, batch.starts, np.empty_like(batch.rows), batch.bases, chosen, there
        )
        chosen &= ~there
        with self._noting_if_full():
            if self.fills is not None:
                self.fills.note(batch.parts(np.flatnonzero(chosen)))
            try:
                self.store.insert_tables(batch.tables, batch.keys, batch.starts, batch.rows, batch.bases, chosen)
            finally:  # some of the rows may be there when it fails
                for (table, own), number in zip(spans, seen, strict=True):
                    overtaken = chosen[own] & (updates[table].overtaken(batch.keys[own], number) | (not self.may_fill))
                    self.delete(table, batch.keys[own][overtaken], updates[table])

    def take_back(self, table: str, keys: KeyArray, rows: RowArray | None, updates: RecentUpdates) -> None:
        """Delete what was put there of `keys` before this update of them was known, unless it is the update's `rows`:
        then who brings the store up to date has overwritten it. None: the update has deleted them.
        """
        filled = updates.filled_among(keys)
        if rows is None or not filled.size or not self.available:
            self.delete(table, filled, updates)
            return
        last = last_of_each(keys)
        newest = rows[last[np.isin(keys[last], filled)]]
        there, found = np.empty_like(newest), np.empty(len(filled), np.bool_)
        try:
            self.store.query(table, filled, there, found)
        except StoreError:  # it is said where the tier is asked
            updates.owe(filled)
            return
        older = found & (there.view(np.uint32) != newest.view(np.uint32)).any(1)
        self.delete(table, filled[older], updates)

    def take_back_unsure(self, updates: Mapping[str, RecentUpdates]) -> None:
        """Delete what was put there since level 3 had all updates: it may have been deleted there before."""
        for table, keys in [] if self.fills is None else self.fills.take_unsure():
            self.delete(table, np.unique(keys), updates[table])

    def owes(self, updates: Mapping[str, RecentUpdates]) -> bool:
        """Whether it still has rows that it should have been told to delete: then it is not to be asked."""
        return any(each.owes for each in updates.values())

    def settle(self, updates: Mapping[str, RecentUpdates]) -> None:
        """Have it delete what it could not be told to delete. For the background; one at a time."""
        for table, each in updates.items():
            if each.owes and self.available:
                with contextlib.suppress(StoreError), each.paying() as owed:  # it is said where the tier is asked
                    for keys in self.store.dump_keys(table, _DELETED_AT_ONCE) if owed is None else _pieces(owed):
                        self.store.delete(table, keys)

    def delete(self, table: str, keys: KeyArray, updates: RecentUpdates) -> None:
        """Have it delete these, now, or, if it cannot be told, before it is asked again."""
        if not keys.size:
            return
        if self.available:
            with contextlib.suppress(StoreError):  # it is said where the tier is asked
                self.store.delete(table, keys)
                return
        updates.owe(keys)

    @contextlib.contextmanager
    def _noting_if_full(self) -> Iterator[None]:
        try:
            yield
        except RedisFull:
            if self.fills is not None:
                self.fills.found_full()
            raise

    def close(self) -> None:
        """Close the store, and its guard."""
        with contextlib.closing(self.store):
            if self.guard is not None:
                self.guard.close()


def _pieces(keys: KeyArray) -> Iterator[KeyArray]:
    return (keys[first : first + _DELETED_AT_ONCE] for first in range(0, keys.size, _DELETED_AT_ONCE))
