"""Tells a lookup again and again what levels 2 and 3 have of the updates that its server knows of, or may lack.

level 2   Redis, which servers of one group write   up to when it has all that the log had    `UpdateLag.written`
level 3   this server's own                         whether it has all                        `level_3_is_current`

Rows of a level 3 that has all go to level 2 in between.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence

from hebe.embeddings.lookout import Lookout
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import Tiers
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.group_progress import GroupProgress, ends_and_committed
from hebe.embeddings.updates.ingestion import UpdateIngestion

_LOOK_S = 2.0
_CURRENT_S = 5.0
"""What was sent so long ago is in a level 3 that has all updates."""
_FILL_S = 10.0
_PROGRESS_S = 5.0
"""So often it is asked up to when Redis has all updates."""


class LevelsWatch:
    """Of `tiers` whose level 2 is a Redis that the members of `group` write; None while that is not known. `ingestion`
    writes their level 3, if they have one.
    """

    def __init__(
        self,
        tiers: Tiers,
        update_log: UpdateLog,
        topics: Sequence[Topic],
        group: Callable[[], str | None],
        ingestion: UpdateIngestion | None,
    ) -> None:
        self._tiers, self._log, self._topics, self._group, self._ingestion = tiers, update_log, topics, group, ingestion
        self._telling = threading.Lock()
        self._progress = GroupProgress()
        self._asked_s = -math.inf
        # Of updates that a Redis without level 3 lacked when level 1 was filled this server hears yet, if `written`.
        begun = ingestion is None and tiers.written is not None
        self._tell(time.monotonic() if begun else -math.inf)
        self._lookout = Lookout("levels-watch", _LOOK_S, self.look, "what Redis lacks is not known")

    def start(self) -> None:
        """Look now, and from time to time from then on."""
        with contextlib.suppress(StoreError):  # it is told by the looks that follow
            self.look()  # what takes no longer than that is done before the model is ready
        self._lookout.start()

    def close(self) -> None:
        """Look no more. Closing twice is harmless."""
        self._lookout.close()

    def other_group(self) -> None:
        """Level 2 has other rows, of another group: which updates they have is not known until the next look."""
        with self._telling:
            self._progress, self._asked_s = GroupProgress(), -math.inf
            self._tell(-math.inf)

    def look(self) -> None:
        """Tell what is known now. Raises `StoreError`."""
        if self._ingestion is not None:
            self._look_at_level_3(self._ingestion)
        self._look_at_level_2()

    def _look_at_level_3(self, ingestion: UpdateIngestion) -> None:
        lookup = self._tiers.lookup

        def current() -> bool:
            return not (self._lookout.closing.is_set() or ingestion.statistics().is_failing)

        lookup.level_3_is_current = current() and (lookup.level_3_is_current or ingestion.drain(_CURRENT_S))
        end_s = time.monotonic() + _FILL_S
        self._tiers.fill_level_2(lambda: lookup.level_3_is_current and time.monotonic() < end_s and current())

    def _look_at_level_2(self) -> None:
        lag, now_s, progress, group = self._tiers.lookup.level_2_lag, time.monotonic(), self._progress, self._group()
        waits = lag.waits
        if group is None or not (waits or now_s >= self._asked_s + _PROGRESS_S):
            return
        self._asked_s = now_s
        ends, committed = ends_and_committed(self._log, self._topics, group)
        with self._telling:
            if progress is not self._progress:
                return
            progress.look(now_s, ends, committed)
            if progress.has_all_until_s > self._told_s:
                known = self._told_s > -math.inf
                self._tell(progress.has_all_until_s)
                if not known and self._ingestion is None:
                    self._tiers.refresh.ask()  # what level 1 was given meanwhile may be old
            if waits and progress.has_all_until_s == now_s:
                lag.caught_up()

    def _tell(self, until_s: float) -> None:
        self._told_s = until_s
        self._tiers.lookup.level_2_lag.written(until_s)
