"""The accelerator of a server, as its lanes use it; with no GPU it is a second CPU device with a memory of its own.

It runs DenseNets, and may hold the rows that are looked up most (Hercules, section IV.B). These lie there once for all
workers that are co-located, which share its memory: each has so much of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hebe.embeddings import hot_tables
from hebe.models.hot_rows import Frequencies, choose_hot_rows
from hebe.runtime.accelerator_memory import AcceleratorMemory
from hebe.runtime.hot_sparse_net import HotSparseNet
from hebe.runtime.loaded_model import LoadedModel
from hebe.spec import ModelSpec


def default_memory_bytes(spec: ModelSpec) -> int:
    """Memory for hot rows where nothing says how much there is: a tenth of the tables'."""
    return spec.table_bytes // 10


class Accelerator:
    """`memory_bytes` for the hot rows of one model; `frequencies`, asked when some are wanted, tells how often each of
    its rows is looked up. Without it there are no hot rows.
    """

    def __init__(self, memory_bytes: int, frequencies: Callable[[], Frequencies] | None = None) -> None:
        self.memory_bytes = memory_bytes
        self._frequencies = frequencies
        self._nets: dict[int, HotSparseNet] = {}
        self._lock = threading.Lock()

    def warm_up(self, model: LoadedModel) -> None:
        """Compile what hot rows of `model` take, or load it from disk: no query shall wait for it as they are made."""
        if self._frequencies is not None:
            hot_tables.warm_up(model.hierarchy.memory.row_format)

    def hot_sparse_net(self, model: LoadedModel, co_located: int) -> HotSparseNet:
        """The hot rows of `model` for so many workers, made if they are not there.

        While a server is split anew, those of before lie beside them. Raises `StoreError` where tables may change or
        memory is short, ValueError where frequencies are not known, and what asking for them raises.
        """
        if self._frequencies is None:
            raise ValueError(
                f"model {model.spec.name}: it is not known which rows are hot: start the server with a profile of "
                "placement hot-sparse-on-accelerator, which tells, or choose sparse-on-host"
            )
        with self._lock:
            if co_located not in self._nets:
                memory = AcceleratorMemory(self.memory_bytes // co_located)
                row_format = model.hierarchy.memory.row_format
                hot = choose_hot_rows(model.spec, self._frequencies(), memory.capacity_bytes, row_format)
                net = HotSparseNet(model.spec, model.hierarchy, hot, memory, online_updates=model.updates is not None)
                self._nets[co_located] = net
            return self._nets[co_located]

    def keep(self, co_located: set[int]) -> None:
        """Give back the hot rows that are for none of these numbers of workers."""
        with self._lock:
            unused = [self._nets.pop(count) for count in list(self._nets) if count not in co_located]
        for net in unused:
            net.close()
