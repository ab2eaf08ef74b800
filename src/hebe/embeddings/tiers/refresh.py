"""Brings level 1 up to date with the lower tiers while queries go on (HPS 6, steps 2 to 5).

Keys are dumped in batches, looked up in levels 2 and 3, and their rows in level 1 replaced; a key that no tier has any
more leaves level 1. By period, a share of the cache per iteration, or when asked to.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hebe.embeddings.options import RefreshOptions
from hebe.embeddings.store import KeyArray
from hebe.embeddings.tiers.lookup import TieredLookup

FaultListener = Callable[[Exception], None]

_TRY_AGAIN_S = 1.0
"""After a refresh that was asked for has failed."""


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What an iteration came to: rows looked at, replaced, dropped since no tier has them, not reached in time."""

    rows: int
    replaced: int
    dropped: int
    unreachable: int
    seconds: float


class CacheRefresh:
    """Refreshes level 1 of `lookup`. Iterations go round the tables and their keys, each from where the last ended."""

    def __init__(self, lookup: TieredLookup, options: RefreshOptions, on_fault: FaultListener | None = None) -> None:
        self._lookup = lookup
        self._options = options
        self._on_fault = on_fault
        self._one_at_a_time = threading.Lock()
        self._closing = threading.Event()
        self._asked = threading.Event()
        self._batches: Iterator[tuple[str, KeyArray]] = iter(())
        self.last: RefreshReport | None = None
        self.iterations = 0
        self._thread = threading.Thread(target=self._run, name="hebe-refresh", daemon=True)

    def start(self) -> None:
        """Begin to refresh by period and when asked, on a thread with priority and cores of the one that calls. The
        times of `RefreshOptions` run from here.
        """
        self._thread.start()

    def ask(self) -> None:
        """Refresh all of level 1 soon, in the background: its rows may be old. Those that no tier can be asked for then
        are stale until their use has renewed them.
        """
        self._asked.set()

    def refresh(self, share: float = 1.0, *, doubted: bool = False) -> RefreshReport:
        """Refresh this share of level 1's rows, on the calling thread; if `doubted`, those that cannot be are stale.
        Raises `StoreError` after `close`.
        """
        with self._one_at_a_time:
            started_s = time.monotonic()
            wanted: float = math.ceil(share * sum(self._lookup.cache.size(table) for table in self._lookup.dims))
            rows = replaced = dropped = unreachable = rounds = 0
            if share >= 1.0:  # to the end of a dump, which has more than that where rows come meanwhile
                wanted, self._batches = math.inf, iter(())
            while rows < wanted and rounds < 2 and not self._closing.is_set():
                batch = next(self._batches, None)
                if batch is None:
                    self._batches = self._dump()
                    rounds += 1
                    continue
                done = self._lookup.renew(*batch, doubted=doubted)
                rows += len(batch[1])
                replaced, dropped, unreachable = replaced + done[0], dropped + done[1], unreachable + done[2]
            self.last = RefreshReport(rows, replaced, dropped, unreachable, time.monotonic() - started_s)
            self.iterations += 1
            return self.last

    def close(self) -> None:
        """End the thread; an iteration under way ends with its batch."""
        self._closing.set()
        self._asked.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _dump(self) -> Iterator[tuple[str, KeyArray]]:
        for table in self._lookup.dims:
            for keys in self._lookup.cache.dump_keys(table, self._options.batch_rows):
                yield table, keys

    def _run(self) -> None:
        options = self._options
        interval_s = options.refresh_interval or math.inf
        share = options.cache_refresh_percentage_per_iteration or 1.0
        started_s = time.monotonic()
        once_s, next_s = started_s + (options.refresh_delay or math.inf), started_s + interval_s
        while True:
            asked = self._asked.wait(min(max(min(once_s, next_s) - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
            self._asked.clear()
            if self._closing.is_set():
                return
            now_s = time.monotonic()
            once, by_period = now_s >= once_s, now_s >= next_s
            if not (asked or once or by_period):
                continue
            try:
                self.refresh(1.0 if asked or once else share, doubted=asked)
            except Exception as fault:  # a thread that ended would leave old rows in level 1, unnoticed
                if self._on_fault is not None and not self._closing.is_set():
                    self._on_fault(fault)
                if asked and not self._closing.wait(_TRY_AGAIN_S):
                    self._asked.set()
            if once:
                once_s = math.inf
            if by_period:
                next_s = time.monotonic() + interval_s
