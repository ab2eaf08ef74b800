"""A worker: one pinned thread that runs batches of one model on its own cores (the papers' inference thread).

Threads, not processes: the lookup and the scripted DenseNet run without the interpreter lock, the tables are
shared for nothing, and queries reach the worker without a copy. docs/serving.md has the measured comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

import torch

from hebe.query import Batch
from hebe.runtime.executor import BatchOutcome, ModelExecutor
from hebe.runtime.pinning import pin_thread

Finished = Callable[[int, Batch, BatchOutcome | Exception], Batch | None]
"""Told of each outcome, on the worker's thread; may return the worker's next batch, which saves a hand-over."""

Measured = list[tuple[int, BatchOutcome]]
"""Warm-up batches: items and outcome of each size."""


class Worker:
    """Warms up on its own thread and cores, which `started` awaits; then runs what is submitted, one at a time."""

    def __init__(
        self,
        worker_id: int,
        executor: ModelExecutor,
        cores: Sequence[int],
        warm_up: Callable[[ModelExecutor], Measured],
        finished: Finished,
    ) -> None:
        self.worker_id = worker_id
        self.cores = tuple(cores)
        self.started: Future[Measured] = Future()
        self._executor = executor
        self._warm_up = warm_up
        self._finished = finished
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"hebe-worker-{worker_id}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def submit(self, batch: Batch) -> None:
        """Run `batch` as soon as the worker is free."""
        self._inbox.put(batch)

    def stop(self) -> None:
        """End the thread after the batches submitted so far, and wait for it."""
        self._inbox.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            pin_thread(self.cores)
            torch.set_num_threads(len(self.cores))
            self.started.set_result(self._warm_up(self._executor))
        except Exception as fault:
            self.started.set_exception(fault)
            return
        while (batch := self._inbox.get()) is not None:
            following: Batch | None = batch
            while following is not None:
                batch = following
                try:
                    outcome: BatchOutcome | Exception = self._executor.run(batch)
                except Exception as fault:  # a batch's fault is its queries', not the worker's
                    outcome = fault
                following = self._finished(self.worker_id, batch, outcome)
