"""Copies of the hot rows of a model in the memory of a GPU, which adds them there."""

from __future__ import annotations

import torch

from hebe.embeddings.batches.hot_tables import HotKeys
from hebe.embeddings.batches.lookup_plan import lookup_plan
from hebe.embeddings.memory.gpu_table_memory import GpuTableMemory
from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.store import StoreError
from hebe.kernels.hot_rows.add_hot_rows_gpu import HotRowAdder
from hebe.spec import ModelSpec


class GpuHotTables:
    """As `HotTables`: the rows of `keys`, copied out of `memory`, which must hold all rows of all tables of `spec`, to
    `device`.

    Its kernel is compiled for these tables here, or loaded from disk, so that no query waits for it. Raises
    `StoreError` when its memory is not to be had, and without Triton.
    """

    def __init__(self, spec: ModelSpec, memory: TableMemory, keys: HotKeys, device: torch.device) -> None:
        self._memory = GpuTableMemory(keys.shapes, memory.row_format, device)
        for name, own in keys.ordered.items():
            self._memory.copy_rows(name, memory.stored(name), own)
        plan = lookup_plan(spec, self._memory)
        columns = {"number_columns": spec.lookups_per_item, "out_columns": spec.sparse_width}
        self._adder: HotRowAdder | None = None
        try:
            adder = HotRowAdder(self._memory.flat, plan, memory.row_format, **columns)
        except ImportError as fault:
            raise StoreError(str(fault)) from None
        adder.warm_up()
        self._adder = adder

    def add(self, hot: torch.Tensor, out: torch.Tensor) -> None:
        """Complete `out[:n]`, float32 `[>= n, sparse_width]`, the lookup of the cold keys, by the hot rows of `hot`,
        int64 `[n, lookups_per_item]`, both on the GPU, in the stream of the calling thread. Raises ValueError,
        `StoreError` once closed.
        """
        if (adder := self._adder) is None:
            raise StoreError("the hot rows are closed")
        adder.add(hot, out)

    def close(self) -> None:
        """Give the memory back. Call it when nobody adds any more."""
        self._adder = None  # it holds the rows as well
        self._memory.close()
