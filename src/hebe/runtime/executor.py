"""Runs batches of one model: gather the keys of the sub-queries, look up, run the DenseNet.

    SparseExecutor  keys, numbers and pooled rows of a batch into `DenseInputs`        on the host
    DenseExecutor   `DenseInputs` of one or several batches -> scores                  on the host or an accelerator
    ModelExecutor   one after the other, in buffers of its own

`pipeline` has the two on workers of their own.

Each worker has an executor of its own, with buffers for the largest batch made once, so that a batch costs no
allocation but its scores; the tables and the DenseNet behind it are shared. In a pipeline `DenseInputs` are what is
handed on, and go back to be filled again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hebe.embeddings.hierarchy import EmbeddingHierarchy, LookupReport, LookupScratch, present_by_item
from hebe.embeddings.key_matrix import complete, fill_lengths, place_keys
from hebe.embeddings.store import StoreError
from hebe.query import Batch, FloatArray, KeyArray, KeyCounts
from hebe.runtime.dense_graph import DenseFunction
from hebe.runtime.hot_sparse_net import HotSparseNet
from hebe.runtime.op_team import OpTeam
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
        a tier that does not answer is left alone, or waited for within what time a query has to spare.
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
    if lookup.by_item is not None:
        return KeyCounts(*lookup.by_item[start:stop].sum(axis=0).tolist())
    total = lookup.keys.total
    return KeyCounts(total if stop - start == items else round(total * (stop - start) / items))


def told_to_clients(fault: Exception | None) -> str:
    """What a client may read of a fault of `ModelExecutor.run`: other code's words may name files of this machine."""
    message = fault.client_message if isinstance(fault, StoreError) else type(fault).__name__
    return f"{message}; the server's log has the details"


class DenseInputs:
    """What the DenseNet takes of a batch: buffers for `max_items`, of which the first `items` rows are filled.

    `dense` float32 `[n, dense_dim]`, `sparse` float32 `[n, sparse_width]`, `lengths` int64 `[n, sequences]`, `keys`
    int64 `[n, lookups_per_item]`; `hot_keys` like `keys`, where an accelerator has hot rows. `sparse_s` and `lookup`
    are what the lookup took and came to.
    """

    def __init__(self, spec: ModelSpec, max_items: int, *, hot: bool = False) -> None:
        self.max_items, self.items = max_items, 0
        self.keys: KeyArray = np.full((max_items, spec.lookups_per_item), -1, dtype=np.int64)
        dense = torch.zeros(max_items, spec.dense_dim)  # torch's memory is aligned as its kernels like it
        sparse = torch.zeros(max_items, spec.sparse_width)
        lengths = torch.zeros(max_items, len(spec.sequences), dtype=torch.int64)
        self.dense, self.sparse, self.lengths = dense.numpy(), sparse.numpy(), lengths.numpy()
        self.hot_keys: KeyArray | None = np.full_like(self.keys, -1) if hot else None
        self.tensors = [dense, sparse, lengths]
        if spec.reads_keys:
            self.tensors.append(torch.from_numpy(self.keys))
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


class SparseExecutor:
    """The SparseNet on the calling thread and its further `op_workers`: `DenseInputs` of a batch. One thread at a time.

    With `hot`, rows that the accelerator has are left out of the sums; their places are handed on.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        max_items: int,
        hot: HotSparseNet | None = None,
        op_workers: int = 1,
    ) -> None:
        self.spec = spec
        self.max_items = max_items
        self._hierarchy = hierarchy
        self._hot = hot
        self._team = OpTeam(op_workers)
        self._scratches = [hierarchy.new_scratch(max_items) for _ in range(op_workers)]
        self._cold = np.empty((max_items, spec.lookups_per_item), np.int64) if hot is not None else None

    def run(self, batch: Batch, inputs: DenseInputs, dense_s: float = 0.0) -> None:
        """Fill `inputs` for a batch of at most `max_items`, with `dense_s` of its time left for the DenseNet.

        Raises `StoreError` if rows cannot be read.
        """
        items, spec = batch.items, self.spec
        if items > self.max_items:
            raise ValueError(f"batch of {items} items, but this executor holds at most {self.max_items}")
        started_s = time.perf_counter()
        row = 0
        copies = []
        for part in batch.sub_queries:
            copies.append(place_keys(inputs.keys, row, part.query.features, part.start, part.stop, spec))
            if part.query.dense is not None:
                inputs.dense[row : row + part.items] = part.query.dense[part.start : part.stop]
            row += part.items
        keys = inputs.keys[:items]
        described = copies[0] if len(copies) == 1 else np.concatenate(copies)
        inputs.lookup = self._look_up(batch, keys, described, inputs, dense_s)
        if spec.sequences:
            fill_lengths(inputs.lengths, keys, spec)
        inputs.items = items
        inputs.sparse_s = time.perf_counter() - started_s

    def _look_up(
        self, batch: Batch, keys: KeyArray, copies: KeyArray, inputs: DenseInputs, dense_s: float
    ) -> LookupReport:
        """Look up, waiting for slower tiers at most until the first deadline of the batch leaves just the DenseNet's
        time; waiting in any case where a query bounds its defaulted keys.
        """
        out = inputs.sparse[: len(keys)]
        counted = any(part.query.counted for part in batch.sub_queries)
        if self._hot is not None and self._cold is not None and inputs.hot_keys is not None:
            cold = self._cold[: len(keys)]
            complete(keys, copies)
            hot = self._hot.split(keys, inputs.hot_keys[: len(keys)], cold)
            report = self._share_out(cold, out, math.inf, wait=False, counted=counted)  # tiered tables have no hot rows
            report.keys.total += hot
            if report.by_item is not None:
                report.by_item[:, 0] = present_by_item(keys)
            return report
        left_s, wait = math.inf, False
        if self._hierarchy.tiers is not None:
            deadline_s = min(part.query.deadline_s for part in batch.sub_queries)
            wait = any(part.query.max_defaulted_fraction < 1 for part in batch.sub_queries)
            left_s = deadline_s - time.monotonic() - dense_s
        if self._team.op_workers == 1:
            return self._hierarchy.lookup(keys, out, self._scratches[0], copies, left_s, wait=wait, counted=counted)
        complete(keys, copies)
        return self._share_out(keys, out, left_s, wait=wait, counted=counted)

    def _share_out(self, keys: KeyArray, out: FloatArray, left_s: float, *, wait: bool, counted: bool) -> LookupReport:
        """The lookup, its items shared among the op workers."""

        def look_up(share: tuple[int, int], scratch: LookupScratch) -> LookupReport:
            start, stop = share
            return self._hierarchy.lookup(
                keys[start:stop], out[start:stop], scratch, timeout_s=left_s, wait=wait, counted=counted
            )

        shares = self._team.shares(len(keys))
        tasks = [partial(look_up, *each) for each in zip(shares, self._scratches, strict=False)]
        return _joined(self._team.run(tasks), [keys[start:stop] for start, stop in shares])


def _joined(reports: Sequence[LookupReport], shares: Sequence[KeyArray]) -> LookupReport:
    """Of lookups of these shares of a key matrix, side by side."""
    if len(reports) == 1:
        return reports[0]
    keys, in_vain_s = KeyCounts(), max(report.in_vain_s for report in reports)
    for report in reports:
        keys.add(report.keys)
    if all(report.by_item is None for report in reports):
        return LookupReport(keys, in_vain_s=in_vain_s)
    by_item = [
        np.pad(present_by_item(share)[:, None], ((0, 0), (0, 3))) if report.by_item is None else report.by_item
        for report, share in zip(reports, shares, strict=True)
    ]
    return LookupReport(keys, np.concatenate(by_item), in_vain_s)


class DenseExecutor:
    """The DenseNet on the calling thread, for one batch or several that are fused. One thread at a time.

    With `max_items` it has buffers of its own, as an accelerator has: inputs are brought there first, which counts as
    loading, and `hot` rows are added there. Without, it runs on the buffers in which inputs are handed on.
    """

    def __init__(
        self, spec: ModelSpec, dense: DenseFunction, max_items: int = 0, hot: HotSparseNet | None = None
    ) -> None:
        self.spec = spec
        self._run_dense = dense
        self._hot = hot
        self._own = DenseInputs(spec, max_items, hot=hot is not None) if max_items else None

    @torch.inference_mode()
    def run(self, handed: Sequence[DenseInputs]) -> BatchOutcome:
        """Scores of these inputs, one after the other."""
        started_s = time.perf_counter()
        inputs = handed[0] if self._own is None else self._load(handed, self._own)
        loaded_s = time.perf_counter()
        if self._hot is not None and inputs.hot_keys is not None:
            self._hot.add(inputs.hot_keys[: inputs.items], inputs.sparse[: inputs.items])
        scores = self._run_dense(*(tensor[: inputs.items] for tensor in inputs.tensors))
        dense_s = time.perf_counter() - loaded_s
        loading_s = loaded_s - started_s if self._own is not None else 0.0
        return BatchOutcome(scores.numpy(), 0.0, dense_s, handed[0].lookup, loading_s, tuple(handed))

    @staticmethod
    def _load(handed: Sequence[DenseInputs], own: DenseInputs) -> DenseInputs:
        row = 0
        for inputs in handed:
            end = row + inputs.items
            if end > own.max_items:
                raise ValueError(f"batch of {end} items, but this executor holds at most {own.max_items}")
            for source, target in zip(inputs.arrays, own.arrays, strict=True):
                target[row:end] = source[: inputs.items]
            if own.hot_keys is not None and inputs.hot_keys is not None:
                own.hot_keys[row:end] = inputs.hot_keys[: inputs.items]
            row = end
        own.items = row
        return own


class ModelExecutor:
    """SparseNet, then DenseNet, on the calling thread and its `op_workers`. With `on_accelerator` the DenseNet runs in
    an accelerator's own buffers, where `hot` rows are added to the sums. One thread at a time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        dense: DenseFunction,
        max_items: int,
        hot: HotSparseNet | None = None,
        op_workers: int = 1,
        *,
        on_accelerator: bool = False,
    ) -> None:
        self.max_items = max_items
        self._inputs = DenseInputs(spec, max_items, hot=hot is not None)
        self._sparse = SparseExecutor(spec, hierarchy, max_items, hot, op_workers)
        self._dense = DenseExecutor(spec, dense, max_items if on_accelerator else 0, hot)
        self._dense_s = 0.0

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = ()) -> BatchOutcome:  # noqa: ARG002
        """Score a batch of at most `max_items`. Raises `StoreError` if rows cannot be read."""
        inputs = self._inputs
        self._sparse.run(batch, inputs, self._dense_s)
        outcome = self._dense.run((inputs,))
        self._dense_s = outcome.dense_s
        return BatchOutcome(outcome.scores, inputs.sparse_s, outcome.dense_s, inputs.lookup, outcome.loading_s)

    def rehearse(self, batch: Batch) -> BatchOutcome:
        """`run`: nothing is handed on."""
        return self.run(batch)
