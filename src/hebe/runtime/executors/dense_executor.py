"""Runs the DenseNet on what is handed on: on the host, on a second CPU device, or on a GPU.

An accelerator has buffers of its own, to which inputs are brought first: that is loading. There it adds its hot rows.
Scores are copied from the executor's buffer, so that they outlast its next batch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch

from hebe.machine.gpu import is_gpu
from hebe.models.scripted_net import DenseFunction
from hebe.query import FloatArray
from hebe.runtime.executors.batch_outcome import SUMS, BatchOutcome, DenseInputs, copy_scores, views_of
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.runtime.executors.op_team import FEWEST_DENSE_ITEMS, OpTeam
from hebe.spec import ModelSpec

_Executor = TypeVar("_Executor")


class DenseExecutor(Protocol):
    """The DenseNet of a model, for one batch or several that are fused. One thread at a time."""

    spec: ModelSpec

    def run(self, handed: Sequence[DenseInputs], /) -> BatchOutcome:
        """Scores of these inputs, one after the other. Raises ValueError for more items than there is room for."""
        ...


def new_dense_executor(
    spec: ModelSpec,
    dense: DenseFunction,
    max_items: int,
    device: torch.device | None = None,
    hot: HotSparseNet | None = None,
    team: OpTeam | None = None,
) -> DenseExecutor:
    """That of `device`, for fused batches of up to `max_items`; None is the host, which does not fuse, and whose op
    workers are `team`. `dense` and the rows of `hot` must be on that device.
    """
    if device is None:
        return HostDenseExecutor(spec, dense, max_items, team)
    if not is_gpu(device):
        return SecondCpuDenseExecutor(spec, dense, max_items, hot)
    return GpuDenseExecutor(spec, dense, max_items, device, hot)


def _inferring(run: Callable[[_Executor, Sequence[DenseInputs]], BatchOutcome]) -> Callable[..., BatchOutcome]:
    """`run` in inference mode, in which a worker is already."""

    @functools.wraps(run)
    def in_inference_mode(executor: _Executor, handed: Sequence[DenseInputs]) -> BatchOutcome:
        if torch.is_inference_mode_enabled():
            return run(executor, handed)
        with torch.inference_mode():
            return run(executor, handed)

    return in_inference_mode


class HostScores:
    """Written batch by batch by a `DenseFunction` of the host: one buffer, as `tensor` and as `array`."""

    def __init__(self, spec: ModelSpec, max_items: int) -> None:
        with torch.inference_mode(mode=False):  # as `views_of` needs it
            self.tensor = torch.empty(max_items, spec.outputs)
            self._views = views_of([self.tensor])
        self.array: FloatArray = self.tensor.numpy()

    def first(self, items: int) -> FloatArray:
        """A copy of so many."""
        scores = np.empty((items, *self.array.shape[1:]), np.float32)
        copy_scores(self.array[:items], scores)
        return scores


class HostDenseExecutor:
    """On the calling thread and the others of its `team`, and on the buffers in which inputs are handed on."""

    def __init__(self, spec: ModelSpec, dense: DenseFunction, max_items: int, team: OpTeam | None = None) -> None:
        self.spec, self._run_dense = spec, dense
        self._team = OpTeam(1) if team is None else team
        self._scores = HostScores(spec, max_items)

    @_inferring
    def run(self, handed: Sequence[DenseInputs]) -> BatchOutcome:
        """Scores of one batch."""
        started_s = time.perf_counter()
        (inputs,) = handed
        shares = self._team.shares(inputs.items, FEWEST_DENSE_ITEMS)
        if len(shares) == 1:
            self._run_dense(inputs.items, self._scores.tensor, *inputs.tensors)
        else:
            self._team.run([functools.partial(self._run_share, inputs, *share) for share in shares])
        scores = self._scores.first(inputs.items)
        return BatchOutcome(scores, 0.0, time.perf_counter() - started_s, inputs.lookup, 0.0, (inputs,))

    def _run_share(self, inputs: DenseInputs, start: int, stop: int) -> None:
        with torch.inference_mode():  # an op worker's thread is not in it
            rows = (tensor[start:stop] for tensor in inputs.tensors)
            self._run_dense(stop - start, self._scores.tensor[start:stop], *rows)


class SecondCpuDenseExecutor:
    """On the calling thread, in buffers that stand for those of a GPU."""

    def __init__(self, spec: ModelSpec, dense: DenseFunction, max_items: int, hot: HotSparseNet | None = None) -> None:
        self.spec, self._run_dense, self._hot = spec, dense, hot
        self._own = DenseInputs(spec, max_items, hot=hot is not None)
        self._scores = HostScores(spec, max_items)

    @_inferring
    def run(self, handed: Sequence[DenseInputs]) -> BatchOutcome:
        """Scores of these inputs, one after the other."""
        started_s = time.perf_counter()
        own = self._own
        _gather(handed, own, self._hot)
        loaded_s = time.perf_counter()
        items, tensors = own.items, own.tensors
        if self._hot is not None and own.hot_keys is not None:
            self._hot.add(own.hot_keys[:items], own.sparse[:items])
            tensors = tensors[:-1]
        self._run_dense(items, self._scores.tensor, *tensors)
        scores = self._scores.first(items)
        dense_s = time.perf_counter() - loaded_s
        return BatchOutcome(scores, 0.0, dense_s, handed[0].lookup, loaded_s - started_s, tuple(handed))


class GpuDenseExecutor:
    """On the GPU `device`, in a stream of its own, so that co-located workers run side by side.

    The calling thread waits for the scores without the interpreter lock. Inputs that are handed on in pinned memory
    are copied from there; those of several, which are fused, are brought together on the host before, for a copy of
    each tensor costs the GPU some microseconds however small it is. Raises what torch raises where its memory is short.
    """

    def __init__(
        self,
        spec: ModelSpec,
        dense: DenseFunction,
        max_items: int,
        device: torch.device,
        hot: HotSparseNet | None = None,
    ) -> None:
        self.spec, self._run_dense, self._hot = spec, dense, hot
        self._max_items = max_items
        self._fused: DenseInputs | None = None
        with torch.cuda.device(device):
            of_one = DenseInputs(spec, 1, hot=hot is not None).tensors
            self._own = [torch.empty(max_items, *one.shape[1:], dtype=one.dtype, device=device) for one in of_one]
            self._scores = torch.empty(max_items, spec.outputs, device=device)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._began, self._loaded = (_timed_event() for _ in range(2))

    @_inferring
    def run(self, handed: Sequence[DenseInputs]) -> BatchOutcome:
        """Scores of these inputs, one after the other."""
        started_s = time.perf_counter()
        inputs = handed[0] if len(handed) == 1 else self._gathered(handed)
        items = inputs.items
        if items > self._max_items:
            raise _too_many(items, self._max_items)
        gathering_s = time.perf_counter() - started_s
        with torch.cuda.stream(self._stream):
            self._began.record(self._stream)
            for place, (source, target) in enumerate(zip(inputs.tensors, self._own, strict=True)):
                if _are_zero(place, self._hot):
                    target[:items].zero_()
                else:
                    target[:items].copy_(source[:items], non_blocking=True)
            self._loaded.record(self._stream)
            tensors = self._own
            if self._hot is not None:
                *tensors, hot_keys = tensors
                self._hot.add_on_gpu(hot_keys[:items], tensors[SUMS][:items])
            self._run_dense(items, self._scores, *tensors)
            scores = self._scores[:items].cpu()  # waits for this stream
        service_s = time.perf_counter() - started_s
        loading_s = min(gathering_s + self._began.elapsed_time(self._loaded) / 1e3, service_s)
        return BatchOutcome(scores.numpy(), 0.0, service_s - loading_s, handed[0].lookup, loading_s, tuple(handed))

    def _gathered(self, handed: Sequence[DenseInputs]) -> DenseInputs:
        if self._fused is None:
            self._fused = DenseInputs(self.spec, self._max_items, hot=self._hot is not None, pinned=True)
        _gather(handed, self._fused, self._hot)
        return self._fused


def _are_zero(place: int, hot: HotSparseNet | None) -> bool:
    """Whether this tensor of the inputs is of sums to which nothing was added on the host."""
    return place == SUMS and hot is not None and hot.all_hot


def _gather(handed: Sequence[DenseInputs], own: DenseInputs, hot: HotSparseNet | None) -> None:
    """`handed`, one after the other, in `own`."""
    row = 0
    for inputs in handed:
        end = row + inputs.items
        if end > own.max_items:
            raise _too_many(end, own.max_items)
        for place, (source, target) in enumerate(zip(inputs.arrays, own.arrays, strict=True)):
            target[row:end] = 0 if _are_zero(place, hot) else source[: inputs.items]
        row = end
    own.items = row


def _too_many(items: int, most: int) -> ValueError:
    return ValueError(f"batch of {items} items, but this executor holds at most {most}")


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
