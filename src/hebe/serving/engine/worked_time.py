"""How long a worker has been at work: while at least one of its threads runs a batch."""

from __future__ import annotations


class WorkedTime:
    """Of one worker. Its threads share their cores, so that their times may overlap, and are not added up."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._since_s = 0.0
        self._worked_s = 0.0

    def begin(self, thread_id: int, now: float) -> None:
        """A thread has a batch, or the next one."""
        if not self._running:
            self._since_s = now
        self._running.add(thread_id)

    def end(self, thread_id: int, now: float) -> None:
        """A thread has none any more."""
        if thread_id in self._running:
            self._running.remove(thread_id)
            if not self._running:
                self._worked_s += now - self._since_s

    def until(self, now: float) -> float:
        """Seconds at work so far, what runs now included."""
        return self._worked_s + (now - self._since_s if self._running else 0.0)
