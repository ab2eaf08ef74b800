"""Runs one batch of one model: gather the keys of its sub-queries, look up, run the DenseNet.

Each worker has an executor of its own, with buffers for the largest batch made once, so that a batch costs no
allocation but its scores; the tables and the DenseNet behind it are shared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from hebe.embeddings.hierarchy import EmbeddingHierarchy, LookupReport
from hebe.embeddings.key_matrix import fill_lengths, place_keys
from hebe.embeddings.store import StoreError
from hebe.query import Batch, FloatArray, KeyArray, KeyCounts
from hebe.runtime.dense_graph import DenseFunction
from hebe.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Scores float32 `[batch size, outputs]`, where the time went, seconds, and how keys were answered."""

    scores: FloatArray
    sparse_s: float
    dense_s: float
    lookup: LookupReport

    @property
    def service_s(self) -> float:
        """Seconds on the worker."""
        return self.sparse_s + self.dense_s

    def keys_of(self, start: int, stop: int) -> KeyCounts:
        """How the keys of items `[start, stop)` were answered; their total is their share of the batch's."""
        total = self.lookup.keys.total
        whole = stop - start == len(self.scores)
        counts = KeyCounts(total if whole else round(total * (stop - start) / len(self.scores)))
        if self.lookup.by_item is not None:
            counts.defaulted, counts.stale, counts.unknown = self.lookup.by_item[start:stop].sum(axis=0).tolist()
        return counts


def told_to_clients(fault: Exception | None) -> str:
    """What a client may read of a fault of `ModelExecutor.run`: other code's words may name files of this machine."""
    message = fault.client_message if isinstance(fault, StoreError) else type(fault).__name__
    return f"{message}; the server's log has the details"


class ModelExecutor:
    """SparseNet, then DenseNet, on the calling thread. One thread at a time."""

    def __init__(self, spec: ModelSpec, hierarchy: EmbeddingHierarchy, dense: DenseFunction, max_items: int) -> None:
        self._spec = spec
        self._hierarchy = hierarchy
        self._run_dense = dense
        self.max_items = max_items
        self._scratch = hierarchy.new_scratch(max_items)
        self._keys = np.full((max_items, spec.lookups_per_item), -1, dtype=np.int64)
        self._dense = torch.zeros(max_items, spec.dense_dim)
        self._sparse = torch.zeros(max_items, spec.sparse_width)
        self._lengths = torch.zeros(max_items, len(spec.sequences), dtype=torch.int64)
        self._dense_array, self._sparse_array = self._dense.numpy(), self._sparse.numpy()
        self._lengths_array = self._lengths.numpy()
        self._inputs = [self._dense, self._sparse, self._lengths]
        self._dense_s = 0.0
        if spec.reads_keys:
            self._inputs.append(torch.from_numpy(self._keys))

    @torch.inference_mode()
    def run(self, batch: Batch) -> BatchOutcome:
        """Score a batch of at most `max_items`. Raises `StoreError` if rows cannot be read."""
        items = batch.items
        if items > self.max_items:
            raise ValueError(f"batch of {items} items, but this executor holds at most {self.max_items}")
        started_s = time.perf_counter()
        row = 0
        copies = []
        for part in batch.sub_queries:
            copies.append(place_keys(self._keys, row, part.query.features, part.start, part.stop, self._spec))
            if part.query.dense is not None:
                self._dense_array[row : row + part.items] = part.query.dense[part.start : part.stop]
            row += part.items
        keys = self._keys[:items]
        described = copies[0] if len(copies) == 1 else np.concatenate(copies)
        report = self._look_up(batch, keys, described)
        if self._spec.sequences:
            fill_lengths(self._lengths_array, keys, self._spec)
        looked_up_s = time.perf_counter()
        scores = self._run_dense(*(tensor[:items] for tensor in self._inputs))
        finished_s = time.perf_counter()
        self._dense_s = finished_s - looked_up_s
        return BatchOutcome(scores.numpy(), looked_up_s - started_s, self._dense_s, report)

    def _look_up(self, batch: Batch, keys: KeyArray, copies: KeyArray) -> LookupReport:
        """Look up, waiting for slower tiers at most until the first deadline of the batch leaves just the DenseNet's
        time; waiting in any case where a query bounds its defaulted keys.
        """
        out = self._sparse_array[: len(keys)]
        if self._hierarchy.tiers is None:
            return self._hierarchy.lookup(keys, out, self._scratch, copies)
        deadline_s = min(part.query.deadline_s for part in batch.sub_queries)
        wait = any(part.query.max_defaulted_fraction < 1 for part in batch.sub_queries)
        left_s = deadline_s - time.monotonic() - self._dense_s
        return self._hierarchy.lookup(keys, out, self._scratch, copies, left_s, wait=wait)
