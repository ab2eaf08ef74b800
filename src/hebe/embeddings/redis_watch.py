"""Rows of a Redis over a level 3 that may have gone back: they are taken out, and filled in again when asked for.

A replica that takes over may lack what was written last, and an instance that restarts may have an old snapshot.
Nothing in a row says so, and it would be old until its next update. But another process has it then
(`RedisStore.runs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hebe.embeddings.lookout import Lookout
from hebe.embeddings.redis_store import RedisStore

log = logging.getLogger("hebe.tiers")

_LOOK_S = 2.0


class RedisWatch:
    """Looks after `store`, as other servers may that share it. Set `cleared` before `start`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.cleared: Callable[[], None] | None = None
        """Called after other processes have come to have rows, and these are gone, by whoever it was: level 1 may have
        old ones by then."""
        self._runs: list[bytes] | None = None
        failing = "Redis is not watched, so that its rows may be old after a failover"
        self._lookout = Lookout("redis-watch", _LOOK_S, self.look, failing)

    def look(self) -> None:
        """Take out what may have gone back. Raises `StoreError`."""
        runs = self._store.runs()
        if runs == self._runs:
            return
        strayed = self._store.strayed(runs)
        if strayed:
            self._store.clear(strayed)
            self._store.note_runs(runs)
        if self._runs is not None:
            log.warning("other Redis processes have rows of %s now: they are filled anew", ", ".join(self._store.dims))
            if self.cleared is not None:
                self.cleared()
        self._runs = runs

    def start(self) -> None:
        """Look from time to time from now on."""
        self._lookout.start()

    def close(self) -> None:
        """Look no more. Closing twice is harmless."""
        self._lookout.close()
