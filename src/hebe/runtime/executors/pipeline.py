"""The S-D pipeline of one lane: what its sparse and its dense workers run, and the buffers in which they hand on.

A sparse worker fills `DenseInputs` from the lane's stock and hands them on; a dense worker, on the host or on the
accelerator, scores them, and they go back. How many are under way is the scheduler's to bound.
"""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import torch

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.machine.gpu import is_gpu
from hebe.models.scripted_net import DenseFunction, example_inputs
from hebe.query import Batch, FloatArray
from hebe.runtime.executors.batch_outcome import BatchOutcome, DenseInputs
from hebe.runtime.executors.dense_executor import DenseExecutor, new_dense_executor
from hebe.runtime.executors.executor import SparseExecutor
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.runtime.executors.op_team import OpTeam
from hebe.spec import ModelSpec

_NO_SCORES: FloatArray = np.empty((0, 0), np.float32)


class Pipeline:
    """One lane: sparse workers of `op_workers` each, with batches of at most `batch_size`, and dense ones that take up
    to `dense_items`.

    `hot`: the Hot-SparseNet, where the accelerator has one. `device`: the accelerator's, on which `dense` is to run.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        dense: DenseFunction,
        batch_size: int,
        dense_items: int,
        hot: HotSparseNet | None = None,
        op_workers: int = 1,
        *,
        device: torch.device | None = None,
    ) -> None:
        self._spec, self._hierarchy, self._dense, self._hot = spec, hierarchy, dense, hot
        self.batch_size, self.dense_items = batch_size, dense_items
        self._op_workers, self._device = op_workers, device
        self._idle: list[DenseInputs] = []
        self.dense_s = 0.0
        """What the last dense batch took."""

    def sparse(self) -> SparseRunner:
        """What one sparse worker runs."""
        return SparseRunner(
            self, SparseExecutor(self._spec, self._hierarchy, self.batch_size, self._hot, OpTeam(self._op_workers))
        )

    def dense(self) -> DenseRunner:
        """What one dense worker runs."""
        return DenseRunner(self, new_dense_executor(self._spec, self._dense, self.dense_items, self._device, self._hot))

    def take(self) -> DenseInputs:
        """Inputs that nobody uses; `put_back` returns them."""
        with contextlib.suppress(IndexError):  # none is idle
            return self._idle.pop()
        inputs = DenseInputs(self._spec, self.batch_size, hot=self._hot is not None, pinned=is_gpu(self._device))
        # Not the stock itself: buffers that held what holds them would stay until the next full garbage collection.
        inputs.put_back_to(weakref.WeakMethod(self.put_back))
        return inputs

    def put_back(self, inputs: DenseInputs) -> None:
        """They may be filled again."""
        self._idle.append(inputs)


class SparseRunner:
    """Runs the SparseNet; its outcomes have no scores, but one batch of inputs that are to be handed on."""

    def __init__(self, pipeline: Pipeline, executor: SparseExecutor) -> None:
        self._pipeline, self._executor = pipeline, executor

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = ()) -> BatchOutcome:  # noqa: ARG002
        """Look up a batch. Raises `StoreError` if rows cannot be read."""
        inputs = self._pipeline.take()
        try:
            self._executor.run(batch, inputs, self._pipeline.dense_s)
        except BaseException:
            inputs.put_back()
            raise
        return BatchOutcome(_NO_SCORES, inputs.sparse_s, 0.0, inputs.lookup, handed=(inputs,))

    def rehearse(self, batch: Batch) -> BatchOutcome:
        """`run`, with nobody to hand on to."""
        outcome = self.run(batch)
        for inputs in outcome.handed:
            inputs.put_back()
        return outcome


class DenseRunner:
    """Runs the DenseNet on what was handed on, which the worker puts back when the scores have been read."""

    def __init__(self, pipeline: Pipeline, executor: DenseExecutor) -> None:
        self._pipeline, self._executor = pipeline, executor

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = ()) -> BatchOutcome:  # noqa: ARG002
        """Scores of a batch."""
        outcome = self._executor.run(handed)
        self._pipeline.dense_s = outcome.dense_s
        return outcome

    def rehearse(self, batch: Batch) -> BatchOutcome:
        """`run`, on example inputs: for zeros, which buffers begin with, a model that divides by them has no score."""
        handed, left = [], batch.items
        while left > 0:
            inputs = self._pipeline.take()
            inputs.items = min(left, self._pipeline.batch_size)
            for tensor, example in zip(inputs.tensors, example_inputs(self._executor.spec, inputs.items), strict=False):
                tensor[: inputs.items] = example  # there are none of hot rows
            left -= inputs.items
            handed.append(inputs)
        outcome = self.run(batch, tuple(handed))
        for inputs in handed:
            inputs.put_back()
        return outcome
