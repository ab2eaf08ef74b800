"""What this server puts into a level 2 that other servers write to as well, out of its own level 3.

Level 3 follows updates at its own pace. A row that it still has may have been deleted in level 2 by the server that
writes there, and others have heard of that, and believe level 2 after a while (`UPDATED_BY_OTHERS_S`). So level 2 is
given rows only while level 3 is known to have all updates of a few seconds ago; and should it prove to lack more, what
it was given since that time is taken back, before anybody believes it. Where this server does not live to do it, others
do, or the next one here (`redis.fills`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hebe.embeddings.store import KeyArray
from hebe.embeddings.updates.boot_clock import boot_s

if TYPE_CHECKING:
    from hebe.embeddings.redis.fills import RedisFills

MOST_BEHIND_S = 30.0
"""Half of what others wait. That level 3 has all is known with the next look but one, and the interval of updates is
in it too."""
_FULL_S = 5.0
"""So long nothing is sent for later queries to a level 2 that had no memory for it: it would be in vain each time."""

Parts = Sequence[tuple[str, KeyArray]]
"""Tables with keys."""


class SharedFills:
    """Any number of threads may note fills while another one says how far level 3 is. The clock goes on while the
    machine sleeps, as those of others do.
    """

    def __init__(self, clock: Callable[[], float] = boot_s) -> None:
        self.level_3_has_s = math.inf
        """Level 3 has all updates that the log had at this time of the clock; always, where no updates come."""
        self.notes: RedisFills | None = None
        """For others; None where no updates come."""
        self._clock = clock
        self._noting = threading.Lock()
        self._found_full_s = -math.inf
        self._unsure: deque[tuple[float, Parts]] = deque()
        """What was put there since, and when."""

    @property
    def allowed(self) -> bool:
        """Whether level 2 may be given rows of level 3 now."""
        return self._clock() - self.level_3_has_s <= MOST_BEHIND_S

    @property
    def full(self) -> bool:
        """Whether level 2 had no memory for what it was sent a moment ago."""
        return self._clock() < self._found_full_s + _FULL_S

    def found_full(self) -> None:
        """Level 2 has no memory for what it was sent."""
        self._found_full_s = self._clock()

    def note(self, parts: Parts) -> None:
        """These are about to be put there. Raises `StoreError` where that cannot be noted."""
        if not parts:
            return
        now_s = self._clock()
        if self.notes is not None:
            self.notes.note(parts, now_s)
        with self._noting:
            self._unsure.append((now_s, parts))
            while self._unsure and self._unsure[0][0] < self.level_3_has_s:
                self._unsure.popleft()

    def take_unsure(self) -> list[tuple[str, KeyArray]]:
        """What was put there since level 3 had all updates: from now on it is the caller's to take back."""
        with self._noting:
            taken = [part for noted_s, parts in self._unsure if noted_s >= self.level_3_has_s for part in parts]
            self._unsure.clear()
        return taken
