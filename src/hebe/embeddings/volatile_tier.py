"""Level 2 as a lookup uses it: what it is asked, and what it is told afterwards, in no query's way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hebe.embeddings.batch_lookup import Answer
from hebe.embeddings.recent_updates import RecentUpdates
from hebe.embeddings.store import KeyArray, RowArray, StoreError, VolatileStore, last_of_each
from hebe.embeddings.tier_guard import TierGuard


@dataclass(frozen=True, slots=True)
class VolatileTier:
    """The store, and its guard where it may stall; one in this process answers at once, and has none. Queries go
    through the guard, which has a store of its own, so that nothing that is done here takes a connection from them.

    Made by `of_process` and `guarded`.
    """

    store: VolatileStore
    guard: TierGuard | None = None

    @classmethod
    def of_process(cls, store: VolatileStore) -> VolatileTier:
        """One in this process."""
        return cls(store)

    @classmethod
    def guarded(cls, store: VolatileStore, guard: TierGuard) -> VolatileTier:
        """One elsewhere; `guard` has another store of the same rows."""
        return cls(store, guard)

    @property
    def available(self) -> bool:
        """Whether questions pass."""
        return self.guard is None or self.guard.available

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """What it had, (table, keys), was used; nothing is told to one that is being left alone. For the background."""
        if self.available:
            self.store.touch(parts)

    def fill(self, answer: Answer, seen: Sequence[int], updates: Mapping[str, RecentUpdates]) -> None:
        """Put in what it lacked and level 3 had, unless it has it by then, or an update has overtaken the rows since
        those `seen`, a number each table. For the background.

        The keys are noted first and looked at again last: an update that comes in between either finds them noted, and
        deletes them, or is found here.
        """
        if not self.available:
            return
        batch, chosen = answer.batch, answer.found.copy()
        spans = [(table, slice(*batch.starts[number : number + 2])) for number, table in enumerate(batch.tables)]
        serials = []
        for (table, own), number in zip(spans, seen, strict=True):
            keys = batch.keys[own][answer.found[own]]
            serials.append(updates[table].note_filled(keys) if keys.size else 0)
            if keys.size:
                chosen[own] &= ~updates[table].overtaken(batch.keys[own], number)
        there = np.zeros(len(chosen), np.bool_)
        self.store.fill_tables(
            batch.tables, batch.keys, batch.starts, np.empty_like(batch.rows), batch.bases, chosen, there
        )
        chosen &= ~there
        try:
            self.store.insert_tables(batch.tables, batch.keys, batch.starts, batch.rows, batch.bases, chosen)
        finally:  # some of the rows may be there when it fails
            for (table, own), number, serial in zip(spans, seen, serials, strict=True):
                overtaken = chosen[own] & updates[table].overtaken(batch.keys[own], number)
                self._delete(table, batch.keys[own][overtaken], serial, updates[table])

    def take_back(self, table: str, keys: KeyArray, rows: RowArray | None, serial: int, updates: RecentUpdates) -> None:
        """Delete what was put there of `keys` before this update of them was known, unless it is the update's `rows`:
        then who brings the store up to date has overwritten it. None: the update has deleted them.

        `serial` is that of the last note before the update: what is on its way there and was noted later stays noted,
        since the tier that it comes from may not have the update yet.
        """
        filled = updates.filled_among(keys)
        if rows is None or not filled.size or not self.available:
            self._delete(table, filled, serial, updates)
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
        updates.deleted(filled[~older], serial)
        self._delete(table, filled[older], serial, updates)

    def owes(self, updates: Mapping[str, RecentUpdates]) -> bool:
        """Whether it still has rows that it should have been told to delete: then it is not to be asked."""
        return any(each.owes for each in updates.values())

    def settle(self, updates: Mapping[str, RecentUpdates]) -> None:
        """Have it delete what it could not be told to delete. For the background."""
        for table, each in updates.items():
            serial = each.serial
            self._delete(table, each.owed(), serial, each)

    def _delete(self, table: str, keys: KeyArray, serial: int, updates: RecentUpdates) -> None:
        """Now, or, if it cannot be told, before it is asked again; with it, notes of `keys` up to `serial` are done."""
        if not keys.size:
            return
        if self.available:
            with contextlib.suppress(StoreError):  # it is said where the tier is asked
                self.store.delete(table, keys)
                updates.deleted(keys, serial)
                return
        updates.owe(keys)

    def close(self) -> None:
        """Close the store, and its guard."""
        if self.guard is not None:
            self.guard.close()
        self.store.close()
