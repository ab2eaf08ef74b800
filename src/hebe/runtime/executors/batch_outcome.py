"""What the DenseNet takes of a batch, and what comes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hebe.embeddings.hierarchy import LookupReport
from hebe.embeddings.store import StoreError
from hebe.query import FloatArray, KeyArray, KeyCounts
from hebe.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Scores float32 `[batch size, outputs]`, where the time went, seconds, and how keys were answered.

    `loading_s` is what it took to bring the inputs to the DenseNet's device. `handed`: of a sparse worker's batch, what
    came of it; of a dense worker's, that of which it was made, in order, whose lookups tell of its keys.
    """

    scores: FloatArray
    sparse_s: float
    dense_s: float
    lookup: LookupReport
    loading_s: float = 0.0
    handed: tuple[DenseInputs, ...] = ()

    @property
    def service_s(self) -> float:
        """Seconds on the worker."""
        return self.sparse_s + self.loading_s + self.dense_s

    @property
    def usual_s(self) -> float:
        """`service_s` without the time for which its lookup waited in vain: what the next such batch should take, since
        the circuit of a tier that does not answer opens, or it is waited for within what time a query has to spare.
        """
        return self.service_s - min(self.lookup.in_vain_s, self.sparse_s)  # a dense worker's is not its own

    def sparse_s_at(self, row: int) -> float:
        """Seconds of the lookup that item `row` was part of."""
        for inputs in self.handed:
            if row < inputs.items:
                return inputs.sparse_s
            row -= inputs.items
        return self.sparse_s

    def keys_of(self, start: int, stop: int) -> KeyCounts:
        """How the keys of items `[start, stop)` were answered; where all were found, their total is their share of the
        batch's.
        """
        if not self.handed:
            return _keys_of(self.lookup, len(self.scores), start, stop)
        counts, first = KeyCounts(), 0
        for inputs in self.handed:
            end = first + inputs.items
            if first < stop and start < end:
                counts.add(_keys_of(inputs.lookup, inputs.items, max(start - first, 0), min(stop, end) - first))
            first = end
        return counts


def _keys_of(lookup: LookupReport, items: int, start: int, stop: int) -> KeyCounts:
    total = lookup.keys.total
    if lookup.by_item is not None:
        counts = KeyCounts(*lookup.by_item[start:stop].sum(axis=0).tolist())
        if lookup.keys.cut:
            counts.cut = round(lookup.keys.cut * counts.defaulted / lookup.keys.defaulted)
        return counts
    return KeyCounts(total if stop - start == items else round(total * (stop - start) / items))


def told_to_clients(fault: Exception | None) -> str:
    """What a client may read of a fault of `ModelExecutor.run`: other code's words may name files of this machine."""
    message = fault.client_message if isinstance(fault, StoreError) else type(fault).__name__
    return f"{message}; the server's log has the details"


def views_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """To be kept beside `tensors` that are given to a `DenseFunction` again and again: a tensor that only Python holds
    takes the interpreter lock when the function lets go of it, one that has a view does not. But tensors that are made
    in inference mode do not know of their views.
    """
    return [tensor[:] for tensor in tensors]


SUMS = 1
"""The place of `sparse` among the tensors of `DenseInputs`."""


def copy_scores(scores: FloatArray, out: FloatArray) -> None:
    """Copy all of `scores` to `out`, both float32, contiguous and of one size, without letting go of the interpreter
    lock, as NumPy does from 500 numbers on: to have it again may take much longer.

    Raises ValueError if the sizes differ.
    """
    out.data.cast("B")[:] = scores.data.cast("B")


class DenseInputs:
    """What the DenseNet takes of a batch: buffers for `max_items`, of which the first `items` rows are filled.

    `dense` float32 `[n, dense_dim]`, `sparse` float32 `[n, sparse_width]`, `lengths` int64 `[n, sequences]`, `keys`
    int64 `[n, lookups_per_item]`; `hot_keys` like `keys`, where an accelerator has hot rows. `tensors` are what the
    DenseNet is called with, and `hot_keys` behind them. `sparse_s` and `lookup` are what the lookup took and came to.

    `pinned`: in memory that a GPU reads while the host goes on. Raises RuntimeError where there is none.
    """

    def __init__(self, spec: ModelSpec, max_items: int, *, hot: bool = False, pinned: bool = False) -> None:
        self.max_items, self.items = max_items, 0
        key_shape = (max_items, spec.lookups_per_item)
        with torch.inference_mode(mode=False):  # as `views_of` needs it
            keys = torch.full(key_shape, -1, dtype=torch.int64, pin_memory=pinned)
            dense = torch.zeros(max_items, spec.dense_dim, pin_memory=pinned)  # aligned as torch's kernels like it
            sparse = torch.zeros(max_items, spec.sparse_width, pin_memory=pinned)
            lengths = torch.zeros(max_items, len(spec.sequences), dtype=torch.int64, pin_memory=pinned)
            self.tensors = [dense, sparse, lengths]
            if spec.reads_keys:
                self.tensors.append(keys)
            self.hot_keys: KeyArray | None = None
            if hot:
                hot_keys = torch.full(key_shape, -1, dtype=torch.int64, pin_memory=pinned)
                self.tensors.append(hot_keys)
                self.hot_keys = hot_keys.numpy()
            self._views = views_of(self.tensors)
        self.keys: KeyArray = keys.numpy()
        self.dense, self.sparse, self.lengths = dense.numpy(), sparse.numpy(), lengths.numpy()
        self.arrays = [tensor.numpy() for tensor in self.tensors]
        self.sparse_s = 0.0
        self.lookup = LookupReport(KeyCounts())
        self._home: Callable[[], Callable[[DenseInputs], None] | None] = lambda: None

    def put_back_to(self, home: Callable[[], Callable[[DenseInputs], None] | None]) -> None:
        """Where `put_back` puts them, if that is still there."""
        self._home = home

    def put_back(self) -> None:
        """Nobody uses them any more: they may be filled again."""
        if (home := self._home()) is not None:
            home(self)


Measured = list[tuple[int, BatchOutcome]]
"""Warm-up batches: items and outcome of each size."""
