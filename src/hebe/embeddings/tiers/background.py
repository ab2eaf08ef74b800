"""Work on the tiers that no query waits for: a bounded queue and a few threads.

They have the priority of workers: one that gave way would keep the interpreter lock while it waits for a core, and all
queries would wait with it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, Full, Queue

from hebe.embeddings.store import in_words

log = logging.getLogger("hebe.tiers")

MOST_HELD_BYTES = 64 << 20
"""Of pieces of work together, those that wait and those under way, unless a single one holds more."""

_TELL_AGAIN_S = 60.0
_MOST_TOLD = 100
"""What faults say that differ each time is not remembered without end."""


class FaultLog:
    """Logs faults of work that is done again and again, `what` first: what one says, once a minute, with how often it
    came meanwhile. For any number of threads.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._telling = threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}
        """By what they say, when that was told, and how many have come since."""

    def __call__(self, fault: Exception) -> None:
        """Log it, or count it."""
        text, now_s = in_words(fault), self._clock()
        with self._telling:
            told_s, count = self._told.get(text, (-math.inf, 0))
            news = now_s >= told_s + _TELL_AGAIN_S
            if text not in self._told and len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told[text] = (now_s, 0) if news else (told_s, count + 1)
        if news:
            log.warning("%s: %s%s", self._what, text, f" (and {count:,} times since this was told)" if count else "")


class BackgroundWork:
    """Runs what is submitted on `threads` threads, in order of submission; at most `depth` pieces wait, and all that
    are not done hold at most `MOST_HELD_BYTES`.

    What cannot wait is dropped and counted: it was only to make later queries cheaper. `on_fault` hears of faults.
    """

    def __init__(self, name: str, threads: int, depth: int, on_fault: Callable[[Exception], None]) -> None:
        self._queue: Queue[tuple[Callable[[], None], int]] = Queue(depth)
        self._held_bytes = 0
        self._on_fault = on_fault
        self._closing = threading.Event()
        self._counting = threading.Lock()
        self.dropped = 0
        self._names = [f"hebe-{name}-{number}" for number in range(threads)]
        self._threads: list[threading.Thread] = []
        """Those that have started."""

    @property
    def waiting(self) -> int:
        """Pieces that no thread has begun."""
        return self._queue.qsize()

    def submit(self, work: Callable[[], None], held_bytes: int = 0) -> bool:
        """Line `work` up, which holds so many bytes of memory until it is done; False if it was dropped.

        The first one has the threads started, unless they are; where the system has none left, those that run do the
        work, and the next one that is submitted has the others started.
        """
        with contextlib.suppress(RuntimeError, MemoryError):
            self.start()
        with self._counting:
            has_room = not self._held_bytes or self._held_bytes + held_bytes <= MOST_HELD_BYTES
            if self._threads and has_room and not self._closing.is_set():
                with contextlib.suppress(Full):
                    self._queue.put_nowait((work, held_bytes))
                    self._held_bytes += held_bytes
                    return True
            self.dropped += 1
        return False

    def drain(self) -> None:
        """Return when all that was submitted so far is done."""
        self._queue.join()

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        self._closing.set()
        with self._counting:
            started, self._threads = self._threads, []
        for thread in started:
            thread.join()

    def start(self) -> None:
        """Start the threads, which take priority and cores from the one that calls; once is enough. Raises RuntimeError
        if the system has too few left.
        """
        if len(self._threads) == len(self._names):
            return
        with self._counting:
            for name in self._names[len(self._threads) :]:
                if self._closing.is_set():
                    return
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                work, held_bytes = self._queue.get(timeout=0.1)
            except Empty:
                continue
            try:
                work()
            except Exception as fault:  # a piece of work that fails leaves its thread to the next
                self._on_fault(fault)
            finally:
                del work
                with self._counting:
                    self._held_bytes -= held_bytes
                self._queue.task_done()
