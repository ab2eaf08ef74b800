"""Tells a lookup again and again what levels 2 and 3 have of the updates that its server knows of, or may lack.

level 2   Redis, which servers of one group write   up to when it has all that the log had    `UpdateLag.written`
level 3   this server's own                         the same                                  `SharedFills`

Rows of a level 3 that has all of a few seconds ago go to level 2 in between; what it was given of one that proves to
lack more is taken back.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from hebe.embeddings.periodic import Lookout
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.tiers import Tiers
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog
from hebe.embeddings.updates.group_progress import GroupProgress, committed_offsets, log_ends
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion

_LOOK_S = 2.0
_CURRENT_S = 5.0
"""So long is waited for a level 3 of which it is not known how far it is."""
_FILL_S = 10.0
_PROGRESS_S = 5.0
"""So often the log is asked what both levels lack."""


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
        self._progress, self._level_3 = GroupProgress(), GroupProgress()
        self._asked_s = -math.inf
        volatile = tiers.lookup.volatile
        assert volatile is not None
        assert volatile.fills is not None
        self._fills = volatile.fills
        written = tiers.written if ingestion is None else None
        self._hears_all = written is not None
        """Of updates that a Redis without level 3 lacked when level 1 was filled, and of all since."""
        if written is not None:
            self._progress.look(written.asked_s, written.ends, written.committed)
        self._tell(self._progress.has_all_until_s)
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
            self._progress, self._hears_all = GroupProgress(), False
            self._tell(-math.inf)

    def look(self) -> None:
        """Tell what is known now. Raises `StoreError`."""
        fills, lag, now_s, boot_now_s = self._fills, self._tiers.lookup.level_2_lag, time.monotonic(), boot_s()
        if not fills.allowed:
            self._tiers.lookup.take_back_unsure()
        if fills.notes is not None:
            with contextlib.suppress(StoreError):  # it is said where the tier is asked
                fills.notes.look()
        urgent = lag.waits or not fills.allowed or self._told_s == -math.inf
        if urgent or now_s >= self._asked_s + _PROGRESS_S:
            self._asked_s = now_s
            ends = log_ends(self._log, self._topics)
            if self._ingestion is not None:
                self._look_at_level_3(self._ingestion, boot_now_s, ends)
                self._forget_sure()
            self._look_at_level_2(now_s, ends)
        if self._ingestion is not None:
            end_s = now_s + _FILL_S
            self._tiers.fill_level_2(
                lambda: fills.allowed and time.monotonic() < end_s and not self._lookout.closing.is_set()
            )

    def _look_at_level_3(self, ingestion: UpdateIngestion, now_s: float, ends: Mapping[TopicPartition, int]) -> None:
        applied, progress = ingestion.applied(), self._level_3
        progress.look(now_s, ends, {at: offset for at, offset in applied.items() if offset is not None})
        self._fills.level_3_has_s = has_s = max(progress.has_all_until_s, self._fills.level_3_has_s)
        # Of a log that has removed what was applied last, only that nothing comes tells whether all is.
        unknown = not self._fills.allowed and (has_s == -math.inf or None in applied.values())
        # A server of before may still have some of the partitions.
        if unknown and ingestion.drain(_CURRENT_S) and ends.keys() <= ingestion.applied().keys():
            self._fills.level_3_has_s = now_s

    def _forget_sure(self) -> None:
        """Of what level 2 was given nothing need be taken back that it had before level 3 had all updates."""
        notes, has_s = self._fills.notes, self._fills.level_3_has_s
        if notes is not None and self._tiers.lookup.settle():
            with contextlib.suppress(StoreError):  # it is said where the tier is asked
                notes.forget(has_s)

    def _look_at_level_2(self, now_s: float, ends: Mapping[TopicPartition, int]) -> None:
        lag, progress, group = self._tiers.lookup.level_2_lag, self._progress, self._group()
        if group is None:
            return
        waits = lag.waits
        committed = committed_offsets(self._log, ends, group)
        with self._telling:
            if progress is not self._progress:
                return
            progress.look(now_s, ends, committed)
            if progress.has_all_until_s > self._told_s:
                known = self._told_s > -math.inf
                self._tell(progress.has_all_until_s)
                if not known and self._ingestion is None and not self._hears_all:
                    self._tiers.refresh.ask()  # what level 1 was given meanwhile may be old
            if waits and progress.has_all_until_s == now_s:
                lag.caught_up()

    def _tell(self, until_s: float) -> None:
        self._told_s = until_s
        self._tiers.lookup.level_2_lag.written(until_s)
