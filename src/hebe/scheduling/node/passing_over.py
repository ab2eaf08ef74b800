"""What an idle worker leaves to workers of another lane, which would be done with it sooner though they are at work.

So a slow lane beside a fast one takes what stands further behind, or nothing: each query is done as soon as it can be,
by the work that is ahead of it on either (earliest finish time, as in list scheduling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hebe.scheduling.node.lane_choice import Way

_MOST = 64
"""Parts that are passed over in one turn: each is looked at."""
_FEW = 8
"""Parts that it costs little to look at with each event."""
_LOOKS = 8
"""So often within the time that it would take itself a worker that took nothing looks again, if nothing happens: those
that it waits for may take longer than they should."""


@dataclass(frozen=True, slots=True)
class FreeWay:
    """A way, with the seconds until the first of its places, and until its dense workers, have nothing to do."""

    way: Way
    free_in_s: float
    dense_ahead_s: float

    def done_s(self, items: int, parts: int = 1) -> float:
        """Seconds until a query, in so many parts of `items`, is done, if it is the next that the way takes."""
        turns = -(-parts // self.way.places)
        return self.way.done_s(items, self.free_in_s, self.dense_ahead_s, turns)


class PassingOver:
    """One turn of one idle worker, from the head of the queue on; `others` are the ways of other roles."""

    def __init__(self, others: Sequence[FreeWay]) -> None:
        self._others = others
        self._parts = self._items = 0
        """Passed over, and so ahead of what comes next on the other ways."""
        self._bound_s = math.inf
        """Until when what was taken would be done elsewhere: the batch that it is in is to be done by then."""
        self._shortest_s = math.inf
        """What this worker would take for what it passed over, at least."""

    @property
    def is_over(self) -> bool:
        """Whether it has looked at enough."""
        return self._parts >= _MOST

    def leaves(self, items: int, done_s: float, budget_s: float) -> bool:
        """Whether it passes over the part that is next, of `items`: with it the worker would be done with its batch
        after `done_s`. No part is left to workers that would be done with it after `budget_s`.
        """
        elsewhere_s = min(
            each.way.done_behind_s(self._parts, self._items, items, each.free_in_s, each.dense_ahead_s)
            for each in self._others
        )
        if done_s <= min(elsewhere_s, self._bound_s) or elsewhere_s > budget_s:
            self._bound_s = min(self._bound_s, max(elsewhere_s, done_s))
            return False
        self._parts += 1
        self._items += items
        self._shortest_s = min(self._shortest_s, done_s)
        return True

    @property
    def looks_again_s(self) -> float:
        """Seconds after which the worker should look again if it took nothing; inf if it passed over nothing."""
        return self._shortest_s / _LOOKS

    @property
    def looked_at_few(self) -> bool:
        """Whether it may look again sooner, whenever something happens."""
        return self._parts <= _FEW
