"""The stores that an ingestion brings up to date: what differs between those that keep positions, may have no place for
new keys, or cannot hold every number, and those that do none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.embeddings.updates.heard_updates import LogPlace
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch

UpdateListener = Callable[[str, KeyArray, RowArray | None, LogPlace], None]
"""Called with a table and keys and rows that all stores have now, and where these stand in the log; rows None: all
stores have deleted the keys."""

Overtaken = Callable[[str, KeyArray], None]
"""Called with a table and keys whose rows may be old in a store that others write as well; from one thread."""


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
    ) -> bool:
        """Put rows or delete keys, and note position and mark, all or nothing.

        False if it is there or past it already, unless `anew`: then the log went back, and this is the position now.
        """
        ...

    def positions(self) -> dict[str, int]:
        """By log, the offset up to which its updates are in the store."""
        ...

    def marks(self) -> dict[str, str]:
        """By log, which message is there; "" where that was not noted."""
        ...


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

    def __init__(self, stores: Mapping[str, EmbeddingStore]) -> None:
        self._stores = dict(stores)
        self._positioned = {tier: store for tier, store in stores.items() if isinstance(store, PositionedStore)}
        self._bounded = {tier: store for tier, store in stores.items() if isinstance(store, BoundedStore)}
        self._narrow = {tier: store for tier, store in stores.items() if isinstance(store, NarrowStore)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    @property
    def keep_positions(self) -> bool:
        """Whether any of them does."""
        return bool(self._positioned)

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
            self._positioned[tier].apply(table, batch.keys, batch.rows, position, mark=batch.mark, anew=anew)
        elif batch.rows is None:
            self._stores[tier].delete(table, batch.keys)
        else:
            self._stores[tier].insert(table, batch.keys, batch.rows)

    def refused_keys(self, tier: str, table: str) -> tuple[int, str] | None:
        """How many keys of updates so far a store had no place for, and why; None if it takes any."""
        store = self._bounded.get(tier)
        return None if store is None else (store.refused_keys.get(table, 0), store.why_refused)

    def unheld_rows(self, tier: str, table: str) -> int:
        """How many rows of updates so far a store could not hold as they were sent."""
        store = self._narrow.get(tier)
        return 0 if store is None else store.unheld_rows.get(table, 0)
