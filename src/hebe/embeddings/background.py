"""Work on the tiers that no query waits for: a bounded queue and a few threads of low priority."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue

_NICENESS = 5
"""Below the workers, which queries wait for."""


class BackgroundWork:
    """Runs what is submitted on `threads` threads, in order of submission; at most `depth` pieces wait.

    What cannot wait is dropped and counted: it was only to make later queries cheaper. `on_fault` hears of faults.
    """

    def __init__(self, name: str, threads: int, depth: int, on_fault: Callable[[Exception], None]) -> None:
        self._queue: Queue[Callable[[], None]] = Queue(depth)
        self._on_fault = on_fault
        self._closing = threading.Event()
        self._counting = threading.Lock()
        self.dropped = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"hebe-{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Pieces that no thread has begun."""
        return self._queue.qsize()

    def submit(self, work: Callable[[], None]) -> bool:
        """Line `work` up; False if it was dropped."""
        if not self._closing.is_set():
            with contextlib.suppress(Full):
                self._queue.put_nowait(work)
                return True
        with self._counting:
            self.dropped += 1
        return False

    def drain(self) -> None:
        """Return when all that was submitted so far is done."""
        self._queue.join()

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._closing.is_set():
            try:
                work = self._queue.get(timeout=0.1)
            except Empty:
                continue
            try:
                work()
            except Exception as fault:  # a piece of work that fails leaves its thread to the next
                self._on_fault(fault)
            finally:
                self._queue.task_done()
