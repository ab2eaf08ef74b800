"""A worker's thread: runs batches of one model on the worker's cores (the papers' inference thread).

Threads, not processes: the lookup and the scripted DenseNet run without the interpreter lock, the tables are
shared for nothing, and queries reach the worker without a copy. docs/serving.md has the measured comparison, and why
a worker may have two threads. Where nothing else is needed, `gil_free_worker` does without Python between batches too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import torch

from hebe.machine.pinning import lower_priority, pin_thread
from hebe.query import Batch
from hebe.runtime.executors.batch_outcome import BatchOutcome, DenseInputs, Measured

_NICENESS = 10
"""Of a worker that shares its cores with the front end, which needs them for fractions of a millisecond: where it has
to wait for a whole batch, so do the other workers, for their next. On two cores this gave 8 to 11% more throughput."""


class Work(NamedTuple):
    """A batch; for a dense worker, with what sparse workers have handed on for it."""

    batch: Batch
    handed: tuple[DenseInputs, ...] = ()


class Runner(Protocol):
    """What a worker runs."""

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = (), /) -> BatchOutcome:
        """Score a batch, or do this worker's part of it."""
        ...

    def rehearse(self, batch: Batch, /) -> BatchOutcome:
        """`run`, with nobody before or behind it."""
        ...


Finished = Callable[[int, Batch, BatchOutcome | Exception], Work | None]
"""Told of each outcome, on the worker's thread; may return the worker's next batch, which saves a hand-over."""


class Worker:
    """One thread. Warms up on its cores, which `started` awaits; then runs what is submitted, one at a time."""

    def __init__(
        self,
        worker_id: int,
        runner: Runner,
        cores: Sequence[int],
        warm_up: Callable[[], Measured],
        finished: Finished,
        *,
        gives_way: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.cores = tuple(cores)
        self._gives_way = gives_way
        self.started: Future[Measured] = Future()
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        # The thread alone holds these, and lets go of them as it ends: a worker that held its owner's methods would
        # keep the runner's buffers after both are done with, until the next full garbage collection.
        self._thread = threading.Thread(
            target=self._run, args=(runner, warm_up, finished), name=f"hebe-worker-{worker_id}", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def submit(self, work: Work) -> None:
        """Run a batch as soon as the worker is free."""
        self._inbox.put(work)

    def end(self) -> None:
        """End the thread after the batches submitted so far, and those that `finished` gives it meanwhile."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def stop(self) -> None:
        """`end` it, and wait for it."""
        self.end()
        self.join()

    def _run(self, runner: Runner, warm_up: Callable[[], Measured], finished: Finished) -> None:
        with torch.inference_mode():  # for good: it costs some microseconds each time
            try:
                if self._begin(warm_up):
                    self._work(runner, finished)
            finally:
                self._ended()

    def _ended(self) -> None:
        """On its thread, which does nothing any more."""

    def _begin(self, warm_up: Callable[[], Measured]) -> bool:
        try:
            pin_thread(self.cores)
            if self._gives_way:
                lower_priority(_NICENESS)
            torch.set_num_threads(1)  # on each of its cores an op worker calls torch itself
            measured = warm_up()
        except Exception as fault:
            self.started.set_exception(fault)
            return False
        self.started.set_result(measured)
        return True

    def _work(self, runner: Runner, finished: Finished) -> None:
        while (work := self._inbox.get()) is not None:
            following: Work | None = work
            while following is not None:
                batch, handed = following
                try:
                    outcome: BatchOutcome | Exception = runner.run(batch, handed)
                except BaseException as fault:  # a batch's fault is its queries', not the worker's
                    outcome = (
                        fault if isinstance(fault, Exception) else RuntimeError(f"{type(fault).__name__}: {fault}")
                    )
                following = finished(self.worker_id, batch, outcome)
                for inputs in handed:
                    inputs.put_back()
