"""The accelerator of a server, as its lanes use it: a GPU, or, with none, a second CPU device with a memory of its own.

It runs DenseNets, and may hold the rows that are looked up most (Hercules, section IV.B). These lie there once for all
workers that are co-located, which share its memory: each has so much of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import torch

from hebe.embeddings.batches import hot_tables
from hebe.machine.gpu import FOR_HOT_ROWS, device_memory_bytes, find_accelerator, is_gpu
from hebe.models.hot_rows import Frequencies, choose_hot_rows
from hebe.runtime.accelerator_memory import AcceleratorMemory
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.runtime.loaded_model import LoadedModel
from hebe.spec import ModelSpec


def default_memory_bytes(spec: ModelSpec, device: torch.device) -> int:
    """Memory for hot rows where nothing says how much there is: what a GPU has but for what else it needs, and of a
    second CPU device a tenth of the tables'.
    """
    return int(FOR_HOT_ROWS * device_memory_bytes(device)) if is_gpu(device) else spec.table_bytes // 10


class Accelerator:
    """`memory_bytes` for the hot rows of one model, by default `default_memory_bytes`; `frequencies`, asked when some
    are wanted, tells how often each of its rows is looked up. Without it there are no hot rows. `device`: None is the
    GPU if there is one.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        frequencies: Callable[[], Frequencies] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.memory_bytes = memory_bytes
        self._frequencies, self._given_device = frequencies, device
        self._nets: dict[int, HotSparseNet] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def device(self) -> torch.device:
        """Where DenseNets and hot rows are. Looked for when first asked for: CUDA takes a second, and memory."""
        return find_accelerator() if self._given_device is None else self._given_device

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
                in_all = self.memory_bytes
                if in_all is None:
                    in_all = default_memory_bytes(model.spec, self.device)
                memory = AcceleratorMemory(in_all // co_located)
                row_format = model.hierarchy.memory.row_format
                hot = choose_hot_rows(model.spec, self._frequencies(), memory.capacity_bytes, row_format)
                self._nets[co_located] = HotSparseNet(
                    model.spec, model.hierarchy, hot, memory,
                    online_updates=model.updates is not None, device=self.device,
                )  # fmt: skip
            return self._nets[co_located]

    def keep(self, co_located: set[int]) -> None:
        """Give back the hot rows that are for none of these numbers of workers."""
        with self._lock:
            unused = [self._nets.pop(count) for count in list(self._nets) if count not in co_located]
        for net in unused:
            net.close()
