"""What RAM serving, making or training a model will need, told before anything is allocated.

    serving  = process + tables + DenseNet + workers x threads x (buffers + activations)
    training = tables + an accumulator a row + DenseNet, its gradients and Adam's two moments + activations
    making   = a piece of a table at a time + DenseNet

Tables and buffers are known exactly from the spec; activations by running the DenseNet once; the
rest are the constants below, measured (tests/integration/test_memory_estimate.py holds the estimate within 10% of
what `hebe serve` takes).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.hierarchy_config import HierarchyConfig
from hebe.embeddings.table_memory import RowFormat, available_bytes
from hebe.models.ranking_model import CHUNK_BYTES
from hebe.spec import ModelSpec

PROCESS_BYTES = 424 << 20
"""`hebe serve` with one tiny model: Python, torch, numba's compiler and both front ends.

Measured as VmRSS of /proc/PID/status, once ready, of
`hebe model new dlrm-rmc1 --scale 0.0001 --repository DIR; hebe serve DIR --workers 1`
"""

THREAD_BYTES = 4 << 20
"""A worker's thread: stack, allocator arena, torch's per-thread state."""

DENSE_NET_COPIES = 1.4
"""The weights in the frozen graph, and what the allocator keeps of the copy that they were read into."""


TRAINING_BYTES = 100 << 20
"""What training adds to the process whatever the model: torch's autograd, batches of the data file.

This and the factors of `training_bytes` and `making_bytes`: growth of VmHWM over VmRSS before the call, criteo-dlrm and
recos-dlrm at several scales and batch sizes (training), dlrm-rmc1 and mt-wnd (making).
"""

MAKING_BYTES = 16 << 20
"""What `hebe model new` adds to the process whatever the model."""

_MOST_SAMPLE_ITEMS = 1024


class NotEnoughMemory(RuntimeError):
    """Less memory is available than would be needed; says how much of either and what to do."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes resident once a model is served by `workers` workers with batches of up to `batch_size` items.

    `worker_bytes` is for each worker with all its threads. `query_bytes` is what a query of `batch_size` items adds
    while it waits or runs; the total is that of a server without any.
    """

    process_bytes: int
    table_bytes: int
    dense_net_bytes: int
    worker_bytes: int
    query_bytes: int
    workers: int
    worker_threads: int
    batch_size: int
    row_format: RowFormat

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
    worker_threads: int = 1,
    row_format: RowFormat = RowFormat.FP32,
    hierarchy: HierarchyConfig | None = None,
) -> MemoryEstimate:
    """The memory that serving `spec` takes; `table_memory_bytes`, `row_format` and `hierarchy` are those of
    `hebe serve`. RocksDB comes on top of it: a process of 40 MB and at most 256 MiB of rows where updates come.

    `dense_net` is that of the spec, in evaluation mode. Raises `StoreError` for a cache that cannot be so small.
    """
    tables = EmbeddingHierarchy.planned_bytes(spec, table_memory_bytes, row_format, hierarchy)
    if hierarchy is not None and hierarchy.is_tiered:
        row_format = hierarchy.cache_of(spec.name).row_format
    thread_bytes = THREAD_BYTES + buffer_bytes(spec, batch_size) + activation_bytes(spec, dense_net, batch_size)
    return MemoryEstimate(
        process_bytes=PROCESS_BYTES,
        table_bytes=tables,
        dense_net_bytes=round(DENSE_NET_COPIES * _weight_bytes(dense_net)),
        worker_bytes=worker_threads * thread_bytes,
        query_bytes=batch_size * (8 * spec.lookups_per_item + 4 * spec.dense_dim),
        workers=workers,
        worker_threads=worker_threads,
        batch_size=batch_size,
        row_format=row_format,
    )


def training_bytes(spec: ModelSpec, dense_net: nn.Module, step_items: int, score_items: int) -> int:
    """What training takes beside the process: steps of `step_items`, then scoring of `score_items` at a time."""
    rows = sum(4 * table.rows * (table.dim + 1) for table in spec.tables)
    # a step keeps its activations for the way back, and makes gradients of them
    step_bytes = round(2.5 * activation_bytes(spec, dense_net, step_items))
    activations = max(step_bytes, activation_bytes(spec, dense_net, score_items))
    return TRAINING_BYTES + rows + _piece_bytes(spec) + 4 * _weight_bytes(dense_net) + activations


def making_bytes(spec: ModelSpec, dense_net: nn.Module) -> int:
    """What drawing and storing a new model takes beside the process: two pieces of a table, copies of the weights."""
    return MAKING_BYTES + 2 * _piece_bytes(spec) + 4 * _weight_bytes(dense_net)


def check_memory(what: str, needed_bytes: int, remedy: str) -> None:
    """Raise `NotEnoughMemory` where `needed_bytes` are not available; no word where that is not known."""
    available = available_bytes()
    if available is not None and needed_bytes > available:
        raise NotEnoughMemory(
            f"{what} needs {needed_bytes:,} bytes of memory and {available:,} are available: {remedy}"
        )


def _piece_bytes(spec: ModelSpec) -> int:
    """The largest piece of a table that is drawn at a time."""
    return min(CHUNK_BYTES, max(table.size_bytes for table in spec.tables))


def _weight_bytes(dense_net: nn.Module) -> int:
    """Parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*dense_net.parameters(), *dense_net.buffers()))


def buffer_bytes(spec: ModelSpec, batch_size: int) -> int:
    """One thread's key matrix and DenseNet inputs for a full batch."""
    key_bytes = 8 * (spec.lookups_per_item + len(spec.sequences))
    return batch_size * (key_bytes + 4 * (spec.dense_dim + spec.sparse_width))


def activation_bytes(spec: ModelSpec, dense_net: nn.Module, batch_size: int) -> int:
    """The most bytes that the DenseNet's intermediate results take at once, found by running a batch.

    A batch above 1024 items is not run, which could itself take more than there is, but taken in proportion.
    """
    items = min(batch_size, _MOST_SAMPLE_ITEMS)
    inputs = [
        torch.zeros(items, spec.dense_dim),
        torch.zeros(items, spec.sparse_width),
        torch.ones(items, len(spec.sequences), dtype=torch.int64),
    ]
    if spec.reads_keys:
        inputs.append(torch.zeros(items, spec.lookups_per_item, dtype=torch.int64))
    with torch.no_grad(), _LiveBytes((*dense_net.parameters(), *dense_net.buffers(), *inputs)) as live:
        dense_net(*inputs)
    peak: int = live.peak
    return -(-peak * batch_size // items)


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
