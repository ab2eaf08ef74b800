"""The stores that an ingestion brings up to date: what differs between those that keep positions, or have no place for
new keys, and those that do neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.embeddings.updates.store_batches import StoreBatch


@runtime_checkable
class PositionedStore(Protocol):
    """A store that keeps with its rows how much of each log they include."""

    def apply(self, table: str, keys: KeyArray, rows: RowArray | None, position: tuple[str, int] | None = None) -> bool:
        """Put rows or delete keys, and note the position, all or nothing; False if it is there or past it already."""
        ...

    def positions(self) -> dict[str, int]:
        """By log, the offset up to which its updates are in the store."""
        ...


@runtime_checkable
class FixedStore(Protocol):
    """A store that has no place for other keys than those that it was made with."""

    @property
    def refused_keys(self) -> Mapping[str, int]:
        """By table, the keys of updates so far that it had no place for, and left out."""
        ...


class UpdatedStores:
    """Stores by tier name, iterated in the order in which they are written."""

    def __init__(self, stores: Mapping[str, EmbeddingStore]) -> None:
        self._stores = dict(stores)
        self._positioned = {tier: store for tier, store in stores.items() if isinstance(store, PositionedStore)}
        self._fixed = {tier: store for tier, store in stores.items() if isinstance(store, FixedStore)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def positions(self) -> dict[str, int] | None:
        """By log, the offset up to which all stores that keep positions have its updates; None if none of them does."""
        found = [store.positions() for store in self._positioned.values()]
        if not found:
            return None
        return {name: min(known[name] for known in found) for name in found[0] if all(name in known for known in found)}

    def write(self, tier: str, table: str, batch: StoreBatch, position: tuple[str, int] | None) -> None:
        """Put a batch into one store, and `position` with it if that keeps positions. Raises what the store does."""
        if tier in self._positioned:
            self._positioned[tier].apply(table, batch.keys, batch.rows, position)
        elif batch.rows is None:
            self._stores[tier].delete(table, batch.keys)
        else:
            self._stores[tier].insert(table, batch.keys, batch.rows)

    def refused_keys(self, tier: str, table: str) -> int | None:
        """How many keys of updates so far a store had no place for; None if it takes any."""
        return self._fixed[tier].refused_keys.get(table, 0) if tier in self._fixed else None
