"""What RAM serving a model will need, told before anything is loaded.

    resident bytes = process + tables + DenseNet + workers x (buffers + activations)

Tables and buffers are known exactly from the spec; activations by running the DenseNet once; the
rest are the constants below, measured on `hebe serve` (tests/integration/test_memory_estimate.py holds the
estimate within 10% of it).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hebe.embeddings.table_memory import planned_bytes
from hebe.spec import ModelSpec

PROCESS_BYTES = 440 << 20
"""`hebe serve` with one tiny model: Python, torch, numba's compiler and both front ends.

Measured as VmRSS of /proc/PID/status, once ready, of
`hebe model new dlrm-rmc1 --scale 0.0001 --repository DIR; hebe serve DIR --workers 1`
"""

WORKER_BYTES = 4 << 20
"""A worker's thread: stack, allocator arena, torch's per-thread state."""

DENSE_NET_COPIES = 1.4
"""The weights in the frozen graph, and what the allocator keeps of the copy that they were read into."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes resident once a model is served by `workers` workers with batches of up to `batch_size` items.

    `worker_bytes` is for each worker. `query_bytes` is what a query of `batch_size` items adds while it waits or
    runs; the total is that of a server without any.
    """

    process_bytes: int
    table_bytes: int
    dense_net_bytes: int
    worker_bytes: int
    query_bytes: int
    workers: int
    batch_size: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.process_bytes + self.model_bytes

    @property
    def model_bytes(self) -> int:
        """What the model adds to a process that serves already."""
        return self.table_bytes + self.dense_net_bytes + self.workers * self.worker_bytes


def estimate_memory(
    spec: ModelSpec,
    dense_net: nn.Module,
    workers: int = 1,
    batch_size: int = 256,
    table_memory_bytes: int | None = None,
) -> MemoryEstimate:
    """The memory that serving `spec` takes; `table_memory_bytes` bounds the tables as `hebe serve` does.

    `dense_net` is that of the spec, in evaluation mode.
    """
    tables = planned_bytes({table.name: (table.rows, table.dim) for table in spec.tables})
    if table_memory_bytes is not None:
        tables = min(tables, table_memory_bytes)
    weights = sum(t.numel() * t.element_size() for t in (*dense_net.parameters(), *dense_net.buffers()))
    return MemoryEstimate(
        process_bytes=PROCESS_BYTES,
        table_bytes=tables,
        dense_net_bytes=round(DENSE_NET_COPIES * weights),
        worker_bytes=WORKER_BYTES + buffer_bytes(spec, batch_size) + activation_bytes(spec, dense_net, batch_size),
        query_bytes=batch_size * (8 * spec.lookups_per_item + 4 * spec.dense_dim),
        workers=workers,
        batch_size=batch_size,
    )


def buffer_bytes(spec: ModelSpec, batch_size: int) -> int:
    """One worker's key matrix and DenseNet inputs for a full batch."""
    key_bytes = 8 * (spec.lookups_per_item + len(spec.sequences))
    return batch_size * (key_bytes + 4 * (spec.dense_dim + spec.sparse_width))


def activation_bytes(spec: ModelSpec, dense_net: nn.Module, batch_size: int) -> int:
    """The most bytes that the DenseNet's intermediate results take at once, found by running a full batch."""
    inputs = (
        torch.zeros(batch_size, spec.dense_dim),
        torch.zeros(batch_size, spec.sparse_width),
        torch.ones(batch_size, len(spec.sequences), dtype=torch.int64),
    )
    with torch.no_grad(), _LiveBytes((*dense_net.parameters(), *dense_net.buffers(), *inputs)) as live:
        dense_net(*inputs)
    peak: int = live.peak
    return peak


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that ops make, as long as these are referred to; not those of `known`."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size_bytes = storage.nbytes()
        self._now += size_bytes
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._release, key, size_bytes)

    def _release(self, key: int, size_bytes: int) -> None:
        self._seen.discard(key)
        self._now -= size_bytes
