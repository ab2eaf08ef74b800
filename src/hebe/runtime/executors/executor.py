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
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from hebe.embeddings.batches.key_matrix import complete, fill_lengths, place_dense, place_described, place_keys
from hebe.embeddings.hierarchy import EmbeddingHierarchy, LookupReport, LookupScratch, present_by_item
from hebe.machine.gpu import is_gpu
from hebe.models.scripted_net import DenseFunction
from hebe.query import Batch, FloatArray, KeyArray, KeyCounts
from hebe.runtime.executors.batch_outcome import BatchOutcome, DenseInputs
from hebe.runtime.executors.dense_executor import new_dense_executor
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.runtime.executors.op_team import OpTeam
from hebe.spec import ModelSpec


class SparseExecutor:
    """The SparseNet on the calling thread and the others of its `team`: `DenseInputs` of a batch. One thread at a time.

    With `hot`, rows that the accelerator has are left out of the sums; their places are handed on.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        max_items: int,
        hot: HotSparseNet | None,
        team: OpTeam,
    ) -> None:
        self.spec = spec
        self.max_items = max_items
        self._hierarchy = hierarchy
        self._hot = hot
        self._sequences = bool(spec.sequences)
        self._team = team
        self._scratches = [hierarchy.new_scratch(max_items) for _ in range(team.op_workers)]
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
            query, start, stop = part.query, part.start, part.stop
            if query.described is not None:
                copies.append(place_described(inputs.keys, row, query.described, start, stop))
            else:
                copies.append(place_keys(inputs.keys, row, query.features, start, stop, spec))
            if query.dense is not None:
                place_dense(inputs.dense, row, query.dense, start, stop)
            row += part.items
        keys = inputs.keys[:items]
        described = copies[0] if len(copies) == 1 else np.concatenate(copies)
        inputs.lookup = self._look_up(batch, keys, described, inputs, dense_s)
        if self._sequences:
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
            if self._hot.all_hot:  # the accelerator begins with zeros
                return LookupReport(KeyCounts(total=self._hot.number(keys, inputs.hot_keys[: len(keys)])))
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


class ModelExecutor:
    """SparseNet, then DenseNet, on the calling thread and its `op_workers`. With the `device` of an accelerator the
    DenseNet, which is `dense` there, runs on it, where `hot` rows are added to the sums. One thread at a time.
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
        device: torch.device | None = None,
    ) -> None:
        self.max_items = max_items
        self._inputs = DenseInputs(spec, max_items, hot=hot is not None, pinned=is_gpu(device))
        team = OpTeam(op_workers)
        self._sparse = SparseExecutor(spec, hierarchy, max_items, hot, team)
        self._dense = new_dense_executor(spec, dense, max_items, device, hot, team)
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
