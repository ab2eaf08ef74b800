"""A worker's thread that runs batches without the interpreter lock, and the thread on which such workers report.

The interpreter lock is passed on to a thread that sleeps by waking it, and nobody has it meanwhile. With a thread of
Python for each core of a server that passes most of its time. Of these workers' batches one thread hears, whatever
their number, of several at once if they end together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from hebe.query import Batch
from hebe.runtime.batch_outcome import BatchOutcome
from hebe.runtime.unlocked_executor import UnlockedExecutor, write_message
from hebe.runtime.worker import Finished, Measured, Runner, Work, Worker

log = structlog.get_logger("hebe.worker")

_END = -1
_READ_BYTES = 4096


class UnlockedWorker(Worker):
    """One thread, as `Worker`, whose outcomes are told on the thread of `reports`."""

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
        while not self._executor.run_batches():
            self._reports.tell(self.worker_id)

    def _ended(self) -> None:
        self._executor.close()
        self._reports.remove(self.worker_id)


class Reports:
    """The thread on which workers' batches are told of to `finished`; it is begun with the first worker."""

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self._inbox, self.outbox = os.pipe()
        self._workers: dict[int, UnlockedWorker] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closed = False

    def add(self, name: int, worker: UnlockedWorker) -> None:
        """Hear of a worker's batches, under its name."""
        self._workers[name] = worker
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="hebe-reports", daemon=True)
            thread.start()
            self._thread = thread

    def remove(self, name: int) -> None:
        """Hear of it no more, after what it has told."""
        self.tell(-name - 2)

    def tell(self, name: int) -> None:
        """As a worker does when a batch has been run; heard by nobody once this is closed."""
        with self._closing:  # else the number of the file might be another's by now
            if not self._closed:
                write_message(self.outbox, np.int64(name).tobytes())

    def close(self) -> None:
        """End the thread, once no batch runs any more."""
        self.tell(_END)
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._thread.join()
        os.close(self._inbox)
        os.close(self.outbox)

    def _run(self) -> None:
        while True:
            for name in np.frombuffer(os.read(self._inbox, _READ_BYTES), np.int64).tolist():
                if name == _END:
                    return
                if name < _END:
                    self._workers.pop(-name - 2, None)
                elif (worker := self._workers.get(name)) is not None:
                    self._hear(worker)

    def _hear(self, worker: UnlockedWorker) -> None:
        try:
            worker.report(self.finished)
        except Exception:  # the others' batches are told of all the same
            log.exception("worker lost: its batch could not be told of", worker=worker.worker_id)
            worker.end()
