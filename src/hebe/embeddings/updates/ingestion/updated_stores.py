"""The stores that an ingestion brings up to date: what differs between those that keep positions, may have no place for
new keys, or cannot hold every number, and those that do none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch


class UpdateListener(Protocol):
    """Follows what an ingestion does; called by its thread. What it raises is logged."""

    def begin(self, at: TopicPartition, position: int, identity: str) -> None:
        """A partition of the log of that identity is read from behind `position` on (-1: its oldest message): at
        first, and again where the log went back or is another one.
        """
        ...

    def writing(self, table: str, place: LogPlace) -> None:
        """Stores are about to be given these updates: before each try."""
        ...

    def written(self, table: str, keys: KeyArray, rows: RowArray | None, place: LogPlace) -> None:
        """All stores have these rows; with None they have deleted the keys. Without keys, the position is new alone."""
        ...


@runtime_checkable
class PositionedStore(Protocol):
    """A store that keeps with its rows how much of each log they include."""

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
        """Put rows or delete keys, and note position and mark, all or nothing.

        `offsets` has for each key the offset of its message. False if the store is there or past it already, unless
        `anew`: then the log went back, and this is the position now.
        """
        ...

    def positions(self) -> dict[str, int]:
        """By log, the offset up to which its updates are in the store."""
        ...

    def marks(self) -> dict[str, str]:
        """By log, which message is there; "" where that was not noted."""
        ...


UpdatedStore = EmbeddingStore | PositionedStore
"""Rows and deletes are put into either; the first has no positions."""


@runtime_checkable
class BoundedStore(Protocol):
    """A store that may have no place for new keys, and goes on without them."""

    @property
    def refused_keys(self) -> Mapping[str, int]:
        """By table, the keys of updates so far that it had no place for, and left out."""
        ...

    @property
    def why_refused(self) -> str:
        """Why it had none, and what would help, for its operator."""
        ...


@runtime_checkable
class NarrowStore(Protocol):
    """A store of a narrow row format."""

    @property
    def unheld_rows(self) -> Mapping[str, int]:
        """By table, the rows of updates so far that the format could not hold other than clipped."""
        ...


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """How much of a log stores have: up to offset `offset`. `mark` is that of the last message up to there, "" where it
    is not known: older versions did not keep it.
    """

    offset: int
    mark: str = ""


class UpdatedStores:
    """Stores by tier name, iterated in the order in which they are written."""

    def __init__(self, stores: Mapping[str, UpdatedStore]) -> None:
        self._tiers = list(stores)
        self._plain = {tier: store for tier, store in stores.items() if not isinstance(store, PositionedStore)}
        self._positioned = {tier: store for tier, store in stores.items() if isinstance(store, PositionedStore)}
        self._bounded = {tier: store for tier, store in stores.items() if isinstance(store, BoundedStore)}
        self._narrow = {tier: store for tier, store in stores.items() if isinstance(store, NarrowStore)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tiers)

    def positions(self) -> dict[str, StoredPosition] | None:
        """By log, up to where all stores that keep positions have its updates; None if none of them does."""
        found = [
            {name: StoredPosition(offset, marks.get(name, "")) for name, offset in offsets.items()}
            for offsets, marks in ((store.positions(), store.marks()) for store in self._positioned.values())
        ]
        if not found:
            return None
        return {
            name: min((known[name] for known in found), key=lambda position: position.offset)
            for name in found[0]
            if all(name in known for known in found)
        }

    def write(
        self, tier: str, table: str, batch: StoreBatch, position: tuple[str, int] | None, *, anew: bool = False
    ) -> None:
        """Put a batch into one store, with `position`, and the batch's mark, if that keeps positions.

        `anew`: the position need not be beyond the one that the store has. Raises what the store does.
        """
        if tier in self._positioned:
            store, mark = self._positioned[tier], batch.mark
            store.apply(table, batch.keys, batch.rows, position, mark=mark, anew=anew, offsets=batch.offsets)
        elif batch.rows is None:
            self._plain[tier].delete(table, batch.keys)
        else:
            self._plain[tier].insert(table, batch.keys, batch.rows)

    def refused_keys(self, tier: str, table: str) -> tuple[int, str] | None:
        """How many keys of updates so far a store had no place for, and why; None if it takes any."""
        store = self._bounded.get(tier)
        return None if store is None else (store.refused_keys.get(table, 0), store.why_refused)

    def unheld_rows(self, tier: str, table: str) -> int:
        """How many rows of updates so far a store could not hold as they were sent."""
        store = self._narrow.get(tier)
        return 0 if store is None else store.unheld_rows.get(table, 0)
