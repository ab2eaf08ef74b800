"""What RAM serving, making or training a model will need, told before anything is allocated.

    serving  = process + tables + DenseNet + a query
               + workers x threads x (buffers + rows fetched from tiers + activations + part of a query)
    training = tables + an accumulator a row + DenseNet, its gradients and Adam's two moments + activations
               + scores of the held-out rows
    making   = a piece of a table at a time + DenseNet

Tables and buffers are known exactly from the spec; activations by running the DenseNet once; the
rest are the constants below, measured (tests/integration/tiers/test_memory_estimate.py holds the estimate within 10% of
what `hebe serve` takes).

What a server has freed it mostly keeps (`machine.process_limits`): the warm-up's queries and activations count
though nothing runs. Not so the largest activations, which the C library maps one by one: `batch_bytes`.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.machine.memory import available_bytes
from hebe.models.architectures.ranking_model import CHUNK_BYTES
from hebe.spec import ModelSpec

PROCESS_BYTES = 418 << 20
"""`hebe serve` with one tiny model: Python, torch, numba's compiler and both front ends.

This, and all that follows up to `_MAPPED_BYTES`: VmRSS of /proc/PID/status, once ready, of `hebe serve` with seventeen
models of all architectures, at batch sizes from 1 to 1024 with 1, 2 and 4 threads in all. The typical error of the
estimate is 3%, the greatest 12%: DIEN's at a batch size of 1024, which differs by a sixth from start to start.
"""

THREAD_BYTES = 1 << 20
"""A worker's thread: stack, torch's per-thread state."""

KEPT_ACTIVATIONS = 1.5
"""What a thread keeps for activations, by the most that live at once: pieces that are free do not fit together."""

KEPT_QUERIES = 0.7
"""Of the warm-up query, what a thread keeps; the front end keeps all of the one that it asks. On average: whether one
of a thread's heaps, of 64 MiB, is given back differs from start to start.
"""

PACKED_WEIGHTS = 1.6
"""What a thread keeps for matrix products, by the largest matrix of weights in one, which is laid out anew for each."""

_PRODUCTS = frozenset(
    {
        "linear",
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "matmul",
        "mv",
        "addmv",
        "einsum",
        "gru",
        "lstm",
        "rnn_tanh",
        "rnn_relu",
    }
    | {"gru_cell", "lstm_cell", "mkldnn_rnn_layer", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"}
    | {"_native_multi_head_attention", "_transformer_encoder_layer_fwd", "convolution", "_convolution"}
)
"""Ops that multiply by matrices of weights; others, as `index`, read what they need where it lies."""

OP_BYTES = 16 << 10
"""An op of the scripted DenseNet: thousands where a loop is unrolled, as DIEN's steps are."""

_MAPPED_BYTES = 28 << 20
"""From about this size on an allocation is given back when it is freed: the C library maps those of 32 MiB on, and
those of nearly as much fill a thread's heap, of 64 MiB, by themselves.
"""


TRAINING_BYTES = 100 << 20
"""What training adds to the process whatever the model: torch's autograd, batches of the data file.

This and the factors of `training_bytes` and `making_bytes`: growth of VmHWM over VmRSS before the call, criteo-dlrm and
recos-dlrm at several scales and batch sizes (training), dlrm-rmc1 and mt-wnd (making).
"""

TRITON_BYTES = 79 << 20
"""What training adds besides where Triton is installed, which torch's optimizers import."""

HELD_OUT_ROW_BYTES = 66
"""Of a held-out row: label and score, and place and rank while the AUC is computed, which is of all of them at once."""

MAKING_BYTES = 16 << 20
"""What `hebe model new` adds to the process whatever the model."""

_MOST_SAMPLE_ITEMS = 1024


class NotEnoughMemory(RuntimeError):
    """Less memory is available than would be needed; says how much of either and what to do."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes resident once a model is served by `workers` workers with batches of up to `batch_size` items.

    `worker_bytes` is for each worker with all its threads. `query_bytes` is what a query of `batch_size` items takes
    while it waits or runs: one is in the total, since its memory is kept. `batch_bytes` is what a batch adds while it
    runs, and gives back; `background_bytes` what work on tiers adds at most that no query waits for. The total is that
    of a server that has nothing to do.
    """

    process_bytes: int
    table_bytes: int
    dense_net_bytes: int
    worker_bytes: int
    query_bytes: int
    batch_bytes: int
    background_bytes: int
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
        return self.table_bytes + self.dense_net_bytes + self.query_bytes + self.workers * self.worker_bytes


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
    `hebe serve`. RocksDB comes on top of it: a process of 40 MB and at most 256 MiB of rows where updates come. Rows
    that threads fetch from tiers are counted for uniform keys, as the warm-up's are.

    `dense_net` is that of the spec, in evaluation mode. Raises `StoreError` for a cache that cannot be so small.
    """
    tables = EmbeddingHierarchy.planned_bytes(spec, table_memory_bytes, row_format, hierarchy)
    if hierarchy is not None and hierarchy.is_tiered:
        row_format = hierarchy.cache_of(spec.name).row_format
    activations = _Activations.of(spec, dense_net, batch_size)
    query_bytes = batch_size * (8 * spec.lookups_per_item + 4 * spec.dense_dim)
    kept_bytes = KEPT_ACTIVATIONS * activations.most_bytes(_is_kept) + KEPT_QUERIES * query_bytes
    kept_bytes += PACKED_WEIGHTS * activations.largest_factor_bytes
    scratch_bytes, outgrown_bytes = (
        EmbeddingHierarchy.planned_scratch_bytes(spec, items, table_memory_bytes, row_format, hierarchy)
        for items in (batch_size, batch_size // 4)  # as the warm-up's batches grow
    )
    kept_bytes += scratch_bytes + (outgrown_bytes if _is_kept(outgrown_bytes) else 0)
    return MemoryEstimate(
        process_bytes=PROCESS_BYTES,
        table_bytes=tables,
        dense_net_bytes=_weight_bytes(dense_net) + OP_BYTES * activations.ops,
        worker_bytes=worker_threads * (THREAD_BYTES + buffer_bytes(spec, batch_size) + round(kept_bytes)),
        query_bytes=query_bytes,
        batch_bytes=activations.most_bytes(lambda size_bytes: not _is_kept(size_bytes)),
        background_bytes=EmbeddingHierarchy.planned_background_bytes(
            spec, batch_size, table_memory_bytes, row_format, hierarchy
        ),
        workers=workers,
        worker_threads=worker_threads,
        batch_size=batch_size,
        row_format=row_format,
    )


def training_bytes(
    spec: ModelSpec, dense_net: nn.Module, step_items: int, score_items: int, held_out_rows: int = 0
) -> int:
    """What training takes beside the process: steps of `step_items`, then scoring of `held_out_rows`, `score_items` at
    a time.
    """
    rows = sum(4 * table.rows * (table.dim + 1) for table in spec.tables)
    # a step keeps its activations for the way back, and makes gradients of them
    step_bytes = round(2.5 * activation_bytes(spec, dense_net, step_items))
    activations = max(step_bytes, activation_bytes(spec, dense_net, score_items))
    scores = HELD_OUT_ROW_BYTES * held_out_rows
    fixed = TRAINING_BYTES + (TRITON_BYTES if find_spec("triton") is not None else 0)
    return fixed + rows + _piece_bytes(spec) + 4 * _weight_bytes(dense_net) + activations + scores


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


def _weights(dense_net: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    return itertools.chain(dense_net.parameters(), dense_net.buffers())


def _weight_bytes(dense_net: nn.Module) -> int:
    return sum(map(_bytes, _weights(dense_net)))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_kept(size_bytes: float) -> bool:
    return size_bytes < _MAPPED_BYTES


def buffer_bytes(spec: ModelSpec, batch_size: int) -> int:
    """One thread's key matrix and DenseNet inputs for a full batch."""
    key_bytes = 8 * (spec.lookups_per_item + len(spec.sequences))
    return batch_size * (key_bytes + 4 * (spec.dense_dim + spec.sparse_width))


def activation_bytes(spec: ModelSpec, dense_net: nn.Module, batch_size: int) -> int:
    """The most bytes that the DenseNet's intermediate results take at once, found by running a batch.

    A batch above 1024 items is not run, which could itself take more than there is, but taken in proportion.
    """
    return _Activations.of(spec, dense_net, batch_size).most_bytes()


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the results of ops, views of `weights` and `inputs` apart: each lives from the op that makes it to the
    last that reads it, as it does where a graph is run (in Python, variables make some live longer).

    `ops` counts what ran. `largest_factor_bytes` is the largest matrix of weights that a product reads. Sizes of
    results are multiplied by `scale`.
    """

    def __init__(self, weights: Iterable[Tensor], inputs: Iterable[Tensor], scale: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = 0
        self.largest_factor_bytes = 0
        self._scale = scale
        self._lives: list[_Life] = []
        self._weights = {tensor.untyped_storage()._cdata for tensor in weights}
        known = self._weights.union(tensor.untyped_storage()._cdata for tensor in inputs)
        self._alive: dict[int, _Life | None] = dict.fromkeys(known)

    @classmethod
    def of(cls, spec: ModelSpec, dense_net: nn.Module, batch_size: int) -> _Activations:
        """Those of a batch."""
        items = min(batch_size, _MOST_SAMPLE_ITEMS)
        inputs = [
            torch.zeros(items, spec.dense_dim),
            torch.zeros(items, spec.sparse_width),
            torch.ones(items, len(spec.sequences), dtype=torch.int64),
        ]
        if spec.reads_keys:
            inputs.append(torch.zeros(items, spec.lookups_per_item, dtype=torch.int64))
        with torch.no_grad(), cls(_weights(dense_net), inputs, batch_size / items) as activations:
            dense_net(*inputs)
        found: _Activations = activations
        return found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and that torch may skip it, it imports its compiler, for 2 s and 140 MB."""
        return False

    def most_bytes(self, counts: Callable[[float], bool] = lambda _: True) -> int:
        """The most bytes alive at once in tensors of those sizes that count."""
        changes = [0.0] * (self.ops + 2)
        for life in self._lives:
            size_bytes = life.size_bytes * self._scale
            if counts(size_bytes):
                changes[life.first] += size_bytes
                changes[life.last + 1] -= size_bytes
        return math.ceil(max(itertools.accumulate(changes)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.ops += 1
        is_product = func.overloadpacket.__name__ in _PRODUCTS
        for tensor in _tensors_of((args, kwargs)):
            storage = tensor.untyped_storage()
            life = self._alive.get(storage._cdata)
            if life is not None:
                life.last = self.ops
            elif is_product and tensor.dim() >= 2 and storage._cdata in self._weights:
                self.largest_factor_bytes = max(self.largest_factor_bytes, min(_bytes(tensor), storage.nbytes()))
        for tensor in _tensors_of(result):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._alive:
                self._alive[key] = life = _Life(storage.nbytes(), self.ops, self.ops)
                self._lives.append(life)
                weakref.finalize(storage, self._alive.pop, key)
        return result


@dataclass(slots=True)
class _Life:
    """Of a result: its size, the op that makes it and the last that reads it."""

    size_bytes: int
    first: int
    last: int


def _tensors_of(values: Any) -> Iterator[Tensor]:
    return (value for value in pytree.tree_leaves(values) if isinstance(value, Tensor))
