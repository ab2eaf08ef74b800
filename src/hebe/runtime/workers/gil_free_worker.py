"""A worker's thread that runs batches without the interpreter lock, and how such workers' batches are heard of.

The interpreter lock is passed on to a thread that sleeps by waking it, and nobody has it meanwhile. With a thread of
Python for each core of a server that passes most of its time. Of these workers' batches the event loop hears that
gives them queries, of several at once if they end together: in the thread that has the lock anyway. A thread of its own
for it would have to be woken for each batch: on two cores 4 callers of 32 items got 11% less by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import structlog

from hebe.query import Batch
from hebe.runtime.executors.batch_outcome import BatchOutcome, Measured
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.executors.gil_free_op_worker import write_message
from hebe.runtime.workers.worker import Finished, Runner, Work, Worker

log = structlog.get_logger("hebe.worker")

_READ_BYTES = 4096
_LOOK_S = 0.005


class UnlockedWorker(Worker):
    """One thread, as `Worker`, and those of its other op workers; outcomes are told by `reports`."""

    def __init__(
        self,
        worker_id: int,
        executor: UnlockedExecutor,
        cores: Sequence[int],
        warm_up: Callable[[], Measured],
        reports: Reports,
        *,
        gives_way: bool = False,
    ) -> None:
        self._executor, self._reports = executor, reports
        self._batch: Batch | None = None
        self._fault: Exception | None = None
        reports.add(worker_id, self)
        try:
            super().__init__(worker_id, executor, cores, warm_up, reports.finished, gives_way=gives_way)
        except BaseException:
            reports.remove(worker_id)
            raise

    def submit(self, work: Work) -> None:
        """Run a batch; the last one must have been told of."""
        self._batch = work.batch
        try:
            self._executor.place(work.batch)
        except Exception as fault:  # told as if it had failed on its thread
            self._fault = fault
            self._reports.tell(self.worker_id)
        else:
            self._executor.start()

    def end(self) -> None:
        """End the thread after the batch that was submitted, if any."""
        self._executor.end()

    def join(self) -> None:
        """Wait until the thread has ended, and hear of what it tells meanwhile, as nobody else may."""
        while self.alive:  # its thread waits for its other op workers
            self._reports.hear()
            self._thread.join(_LOOK_S)
        self._reports.hear()

    def report(self, finished: Finished) -> None:
        """Tell of the batch that has been run, and run the one that is due then."""
        batch, fault, self._batch, self._fault = self._batch, self._fault, None, None
        if batch is None:
            return
        outcome: BatchOutcome | Exception
        try:
            outcome = self._executor.outcome() if fault is None else fault
        except Exception as failed:
            outcome = failed
        following = finished(self.worker_id, batch, outcome)
        if following is not None:
            self.submit(following)

    def _work(self, runner: Runner, finished: Finished) -> None:  # noqa: ARG002
        self._executor.tell(self._reports.outbox, self.worker_id)
        self._executor.run_batches()

    def _ended(self) -> None:
        try:
            self._executor.close()
        finally:
            self._reports.remove(self.worker_id)


class Reports:
    """Of the batches that workers have run `finished` is told: on one of the event loops of `hear_on`, as it comes, and
    by whoever calls `hear`.
    """

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self._inbox, self.outbox = os.pipe()
        os.set_blocking(self._inbox, False)
        self._workers: dict[int, UnlockedWorker] = {}
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._closing = threading.Lock()
        self._closed = False

    def add(self, name: int, worker: UnlockedWorker) -> None:
        """Hear of a worker's batches, under its name."""
        self._workers[name] = worker

    def remove(self, name: int) -> None:
        """Hear of it no more, after what it has told."""
        self.tell(-name - 1)

    def tell(self, name: int) -> None:
        """As a worker does when a batch has been run; heard by nobody once this is closed."""
        with self._closing:  # else the number of the file might be another's by now
            if not self._closed:
                write_message(self.outbox, np.int64(name).tobytes())

    def hear_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on hear on `loop`, too, on whose thread this is called; what one hears, no other does. None of those
        before it is left, as queries may be awaited on it when this one is closed.
        """
        with self._closing:
            if self._closed or loop in self._loops:
                return
            self._loops = [*(each for each in self._loops if not each.is_closed()), loop]
        loop.add_reader(self._inbox, self.hear)

    def hear(self) -> None:
        """Tell of the batches that have been run by now."""
        told = self._read()
        while told:
            for name in np.frombuffer(told, np.int64).tolist():
                if name < 0:
                    self._workers.pop(-name - 1, None)
                elif (worker := self._workers.get(name)) is not None:
                    self._hear(worker)
            told = self._read() if len(told) == _READ_BYTES else b""

    def _read(self) -> bytes:
        with self._closing:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    return os.read(self._inbox, _READ_BYTES)
        return b""

    def _hear(self, worker: UnlockedWorker) -> None:
        try:
            worker.report(self.finished)
        except Exception:  # the others' batches are told of all the same
            log.exception("worker lost: its batch could not be told of", worker=worker.worker_id)
            worker.end()

    def close(self) -> None:
        """Hear of what is left, once no batch runs any more."""
        self.hear()
        with self._closing:
            if self._closed:
                return
            self._closed = True
            os.close(self.outbox)
            loops = tuple(self._loops)
        if not loops:
            os.close(self._inbox)
        for loop in loops:
            _on(loop, partial(self._leave, loop), closed=partial(self._left, loop))

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._inbox)
        self._left(loop)

    def _left(self, loop: asyncio.AbstractEventLoop) -> None:
        """A file must not be closed while a loop looks at it."""
        with self._closing:
            self._loops.remove(loop)
            last = not self._loops
        if last:
            os.close(self._inbox)


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], object], closed: Callable[[], None]) -> None:
    """Call this on the thread of `loop`, or `closed` here, if that loop is closed."""
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if loop is running:
        call()
        return
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        closed()
