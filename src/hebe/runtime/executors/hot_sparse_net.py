"""Hot-SparseNet: the rows of a model that an accelerator holds, beside the host's whole tables (Hercules IV.B).

The host parts a batch's keys, looks the cold ones up in the whole tables, and hands over these partial sums with the
numbers of the hot rows, which the accelerator adds before it runs the DenseNet. What comes out equals the whole
lookup's: summed features but for the order of additions, copied ones exactly.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from hebe.embeddings.batches.gpu_hot_tables import GpuHotTables
from hebe.embeddings.batches.hot_tables import HotKeys, HotTables, hot_bytes
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.machine.gpu import CPU, is_gpu
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
    `StoreError` where tables may change, and where `device`, the accelerator's, or the host has not enough memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        hot: HotRows,
        memory: AcceleratorMemory,
        *,
        online_updates: bool,
        device: torch.device = CPU,
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
            self._keys = HotKeys(spec, hot.rows)
            self._tables: HotTables | GpuHotTables
            if is_gpu(device):
                self._tables = GpuHotTables(spec, hierarchy.memory, self._keys, device)
            else:
                self._tables = HotTables(spec, hierarchy.memory, self._keys)
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
        split = self._keys.split(keys, keys if cold_keys is None else cold_keys, hot_keys)
        with self._lock:
            self._hits = HotLookups(self._hits.lookups + split.keys, self._hits.hot + split.hot)
        return split.hot

    @property
    def all_hot(self) -> bool:
        """Whether the accelerator has every row that a query may ask for: the host then has nothing to look up."""
        return self._keys.all_hot

    def number(self, keys: KeyArray, hot_keys: KeyArray) -> int:
        """`split` where all are hot: `keys` stay, and nothing is left to look up. Returns how many there are."""
        found = self._keys.number(keys, hot_keys)
        with self._lock:
            self._hits = HotLookups(self._hits.lookups + found, self._hits.hot + found)
        return found

    def add(self, hot_keys: KeyArray, sums: RowArray) -> None:
        """Complete `sums[:n]`, float32 `[>= n, sparse_width]`, the lookup of what `split` left, by the hot rows of
        `hot_keys`, int64 `[n, lookups_per_item]`: on a second CPU device. Raises ValueError for arrays of another
        shape, `StoreError` once closed.
        """
        if not isinstance(self._tables, HotTables):
            raise StoreError("the hot rows are on a GPU")
        self._tables.add(hot_keys, sums)

    def add_on_gpu(self, hot_keys: torch.Tensor, sums: torch.Tensor) -> None:
        """`add` of arrays on the GPU that has the rows, in the stream of the calling thread. Raises likewise."""
        if isinstance(self._tables, HotTables):
            raise StoreError("the hot rows are on no GPU")
        self._tables.add(hot_keys, sums)

    def close(self) -> None:
        """Give the memory back; call it when no batch adds any more. Closing twice is harmless."""
        self._tables.close()
        self._reserved.release()
