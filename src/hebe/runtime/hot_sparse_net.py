"""Hot-SparseNet: the rows of a model that an accelerator holds, beside the host's whole tables (Hercules IV.B).

The host parts a batch's keys, looks the cold ones up in the whole tables, and hands over these partial sums with the
numbers of the hot rows, which the accelerator adds before it runs the DenseNet. What comes out equals the whole
lookup's: summed features but for the order of additions, copied ones exactly.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.hot_tables import HotTables, hot_bytes
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.models.hot_rows import HotRows
from hebe.runtime.accelerator_memory import AcceleratorMemory
from hebe.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class HotLookups:
    """Of all keys so far, padding left out: how many, and how many read a hot row."""

    lookups: int = 0
    hot: int = 0

    @property
    def share(self) -> float:
        """The coverage that was measured, 0 before the first key."""
        return self.hot / self.lookups if self.lookups else 0.0


class HotSparseNet:
    """The rows `hot` of `hierarchy`'s tables, copied to the accelerator whose `memory` it is. Workers share it.

    Copies do not follow changes of the whole tables, so these must be fixed: all rows resident, and no
    `online_updates`, which the caller knows of. `size_bytes` are reserved of `memory` until `close`. Raises
    `StoreError` where tables may change, and where the accelerator or the host has not enough memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        hot: HotRows,
        memory: AcceleratorMemory,
        *,
        online_updates: bool,
    ) -> None:
        if hierarchy.tiers is not None:
            raise StoreError(
                f"model {spec.name}: hot rows on an accelerator need all tables in memory, and some are read through "
                "tiers: allow more table memory, or choose another placement"
            )
        if online_updates:
            raise StoreError(
                f"model {spec.name}: hot rows on an accelerator would keep what they were when online updates come: "
                "choose another placement, or serve without updates"
            )
        self.size_bytes = hot_bytes(spec, hot.rows, hierarchy.memory.row_format)
        self.expected_coverage = hot.expected_coverage
        self._lock = threading.Lock()
        self._hits = HotLookups()
        self._reserved = memory.reserve(self.size_bytes, f"hot rows of model {spec.name}")
        try:
            self._tables = HotTables(spec, hierarchy.memory, hot.rows)
        except BaseException:
            self._reserved.release()
            raise

    @property
    def hits(self) -> HotLookups:
        """What `split` has seen since the start."""
        return self._hits

    def split(self, keys: KeyArray, hot_keys: KeyArray, cold_keys: KeyArray | None = None) -> int:
        """Take the keys of hot rows out of the key matrix `keys`, int64 `[n, lookups_per_item]`, -1 in their place, and
        write to `hot_keys[:n]`, of the same form, what `add` reads.

        With `cold_keys`, of the same form, the rest is written there and `keys` stays: for DenseNets that read keys,
        and for lengths of sequences. Returns how many keys are hot, which the lookup of the others does not count. Keys
        out of range are left to it. Raises ValueError for arrays of another shape.
        """
        split = self._tables.split(keys, keys if cold_keys is None else cold_keys, hot_keys)
        with self._lock:
            self._hits = HotLookups(self._hits.lookups + split.keys, self._hits.hot + split.hot)
        return split.hot

    def add(self, hot_keys: KeyArray, sums: RowArray) -> None:
        """Complete `sums[:n]`, float32 `[>= n, sparse_width]`, the lookup of what `split` left, by the hot rows of
        `hot_keys`, int64 `[n, lookups_per_item]`. Raises ValueError for arrays of another shape, `StoreError` once
        closed.
        """
        self._tables.add(hot_keys, sums)

    def close(self) -> None:
        """Give the memory back; call it when no batch adds any more. Closing twice is harmless."""
        self._tables.close()
        self._reserved.release()
