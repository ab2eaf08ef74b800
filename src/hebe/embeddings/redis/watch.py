"""Rows of a Redis over a level 3 that may have gone back: they are taken out, and filled in again when asked for.

A replica that takes over may lack what was written last, and an instance that restarts may have an old snapshot.
Nothing in a row says so, and it would be old until its next update. But another process has it then
(`RedisStore.runs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hebe.embeddings.periodic import Lookout
from hebe.embeddings.redis.identity import RedisIdentity
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreError, StoreUnavailable

log = logging.getLogger("hebe.tiers")

_LOOK_S = 2.0


class RedisWatch:
    """Looks after `store`, as other servers may that share it, and after its `identity`, where updates come. Set
    `cleared` and `taking` before `start`.
    """

    def __init__(self, store: RedisStore, identity: RedisIdentity | None = None) -> None:
        self._store, self.identity = store, identity
        self.cleared: Callable[[], None] | None = None
        """Called after other processes have come to have rows, and these are gone, by whoever it was: level 1 may have
        old ones by then."""
        self.taking: Callable[[], None] | None = None
        """Called with each look in which all processes take writes: the updates that other servers write, too."""
        self._runs: list[bytes] | None = None
        failing = "Redis cannot be looked after, so that its rows may be old"
        self._lookout = Lookout("redis-watch", _LOOK_S, self.look, failing)

    def look(self) -> None:
        """Take out what may have gone back. Raises `StoreError`."""
        if self.identity is not None:
            self.identity.look()
        try:
            runs = self._store.runs()
        except StoreUnavailable:
            raise
        except StoreError:  # it answers, but not that: nobody can tell whether it takes writes
            self._tell(self.taking)
            raise
        if runs != self._runs:
            self._clear_strayed(runs)
        self._store.claim([runs.index(run) for run in dict.fromkeys(runs)])
        self._tell(self.taking)

    def _clear_strayed(self, runs: list[bytes]) -> None:
        strayed = self._store.strayed(runs)
        if strayed:
            self._store.clear(strayed)
            self._store.note_runs(runs)
        if self._runs is not None:
            log.warning("other Redis processes have rows of %s now: they are filled anew", ", ".join(self._store.dims))
        self._tell(self.cleared)  # with the first look too: rows may have been read before it
        self._runs = runs

    def _tell(self, listener: Callable[[], None] | None) -> None:
        if listener is not None:
            listener()

    def start(self) -> None:
        """Look from time to time from now on."""
        self._lookout.start()

    def close(self) -> None:
        """Look no more. Closing twice is harmless."""
        self._lookout.close()
