"""Which of two lower tiers to ask for the rows of a batch that has a deadline, learned from how long they have taken.

Level 2 comes first, as HPS has it, while the time allows it. Where it does not, level 3 is asked alone, or each for a
part of the keys, side by side, whichever should bring more rows in time. Pure: it reads no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

_KEPT = 0.95
"""What a sample weighs still, once another one has come: about the last twenty count."""
_MIN_SAMPLES = 8
_MAX_OVER = 4.0
"""A sample counts as at most so many times what was expected: one hiccup is no trend."""
_YIELD_KEPT = 0.9
"""The same of what a way has brought."""
_RIDGE = 0.05
"""Of the weight of all samples: draws the part that no key causes to 0, so that samples of one size make a line."""
_MARGIN = 1.5
"""So many mean deviations longer than expected an answer is likely to take at most."""
_TRIES, _MIN_PATIENCE, _MAX_PATIENCE = 3, 25, 1600
"""So often a way is tried at first, and again after so many batches without it, twice as many each time."""
_MIN_LEFT_S = 1e-4
_FEW_LACKED = 0.01
"""Of the keys: for no more than that no time is kept for level 3, if that is short."""
_LATE = 3
"""What takes twice the time that there is counts as an eighth."""
_AS_GOOD = 0.97
"""Of the most rows in time: level 2 first, or else level 3 alone, is preferred down to that."""
_PROBED_BATCHES, _FEW_SAMPLES = 32, 20
"""Of so many batches under a deadline one has the tier asked as well that is not, in no query's way; of an eighth as
many before there were a few samples."""
_SMALL_PIECE_KEYS, _MIN_PIECE_KEYS = 640, 256


class AnswerTimes:
    """Seconds of an answer by number of keys, a line that is fitted to what came last, and how far that was off it."""

    def __init__(self) -> None:
        self.samples = 0
        self._weight = self._keys = self._seconds = self._squares = self._products = 0.0
        self._fixed_s = self.key_s = self._deviation = 0.0

    def add(self, keys: int, seconds: float) -> None:
        """So many keys were answered after so long."""
        expected_s = self.expected_s(keys)
        if self.samples >= _MIN_SAMPLES and expected_s > 0:
            seconds = min(seconds, _MAX_OVER * expected_s)
            self._deviation = _KEPT * self._deviation + (1 - _KEPT) * abs(seconds - expected_s) / expected_s
        self.samples += 1
        self._weight = _KEPT * self._weight + 1
        self._keys = _KEPT * self._keys + keys
        self._seconds = _KEPT * self._seconds + seconds
        self._squares = _KEPT * self._squares + keys * keys
        self._products = _KEPT * self._products + keys * seconds
        self._fit()

    def _fit(self) -> None:
        weight = (1 + _RIDGE) * self._weight
        spread = weight * self._squares - self._keys**2
        self.key_s = (weight * self._products - self._keys * self._seconds) / spread if spread > 0 else 0.0
        self._fixed_s = (self._seconds - self.key_s * self._keys) / weight
        if self.key_s < 0 or self._fixed_s < 0:
            self.key_s, self._fixed_s = self._products / self._squares if self._squares else 0.0, 0.0

    @property
    def known(self) -> bool:
        """Whether there were enough samples."""
        return self.samples >= _MIN_SAMPLES

    def expected_s(self, keys: float) -> float:
        """For so many keys."""
        return self._fixed_s + self.key_s * keys

    def likely_s(self, keys: float) -> float:
        """Within that they are likely to be answered."""
        return self.expected_s(keys) * (1 + _MARGIN * self._deviation)

    def keys_in(self, seconds: float) -> float:
        """How many keys should be answered within `seconds`; `inf` where they cost nothing."""
        left_s = seconds - self._fixed_s
        if left_s <= 0:
            return 0.0
        return left_s / self.key_s if self.key_s > 0 else math.inf


class Level(Enum):
    """A lower tier."""

    TWO = 2
    THREE = 3


class Way(Enum):
    """How lower tiers are asked for a batch."""

    IN_TURN = "level 2, then level 3 for the rest"
    LEVEL_3 = "level 3 alone"
    SIDE_BY_SIDE = "each for a part of the keys at once, then level 3 for what level 2 lacked"


@dataclass(frozen=True, slots=True)
class Plan:
    """`way`, in which level 2 is asked for `level_2_keys` and waited for `level_2_s`.

    `tight_s`: all keys are not likely to be in time, which is so long; else None. `probe`: a tier that has not been
    asked should be asked afterwards, to learn how it does.
    """

    way: Way
    level_2_keys: int
    level_2_s: float
    tight_s: float | None = None
    probe: bool = False


@dataclass(slots=True)
class _Yield:
    """Rows a second that a way has brought in time, where not all were, by the last samples, and at which batch it was
    last tried; after so many more it is tried again.
    """

    rows_s: float = 0.0
    samples: int = 0
    last_planned: int = 0
    patience: int = _MIN_PATIENCE


@dataclass(slots=True)
class TierChoice:
    """What is known of both tiers. Not thread-safe: its owner has the lock."""

    _times: dict[Level, AnswerTimes] = field(default_factory=lambda: {level: AnswerTimes() for level in Level})
    _yields: dict[tuple[Way, int], _Yield] = field(default_factory=dict)
    """By way, and the power of two that the time is nearest to."""
    _has: float = 1.0
    _planned: int = 0

    def answered(self, level: Level, keys: int, found: int, seconds: float) -> None:
        """A tier has answered so many keys, of which it had `found`, late or in time, and not beside the other tier."""
        if keys:
            self._times[level].add(keys, seconds)
            if level is Level.TWO:
                self._has = _KEPT * self._has + (1 - _KEPT) * found / keys

    def came(self, plan: Plan, rows: int, took_s: float) -> None:
        """What came of `plan`, and after how long: a thread may be woken some time after its time is up, and rows that
        come late count for little.
        """
        if plan.tight_s is not None:
            each = self._yield(plan.way, plan.tight_s)
            new = max(1 / (each.samples + 1), 1 - _YIELD_KEPT)
            late = max(1.0, took_s / plan.tight_s) ** _LATE
            each.rows_s += new * (rows / plan.tight_s / late - each.rows_s)
            each.samples, each.last_planned = each.samples + 1, self._planned

    def plan(self, keys: int, left_s: float) -> Plan:
        """How to ask for so many keys, which have `left_s` (`inf`: no deadline), where both tiers can be asked."""
        two, three = self._times[Level.TWO], self._times[Level.THREE]
        if left_s == math.inf:
            return Plan(Way.IN_TURN, keys, left_s)
        self._planned += 1
        if not two.known:
            return self._probing(Plan(Way.IN_TURN, keys, left_s / 2), three)
        level_2_s = self._level_2_s(keys, left_s)
        if two.likely_s(keys) + three.likely_s((1 - self._has) * keys) <= left_s:
            return self._probing(Plan(Way.IN_TURN, keys, level_2_s), three)
        if not three.known or three.likely_s(keys) <= left_s:
            return self._probing(Plan(Way.LEVEL_3, 0, 0.0), two)
        yields = {way: self._yield(way, left_s) for way in Way}
        for each in yields.values():
            if self._planned - each.last_planned > each.patience:
                each.samples, each.patience = 0, min(2 * each.patience, _MAX_PATIENCE)
        new = [way for way, each in yields.items() if each.samples < _TRIES]
        best = max(each.rows_s for each in yields.values())
        way = new[0] if new else next(way for way in Way if yields[way].rows_s >= _AS_GOOD * best)
        if way is Way.LEVEL_3:
            return self._probing(Plan(way, 0, 0.0, left_s), two)
        if way is Way.IN_TURN:
            return self._probing(Plan(way, keys, level_2_s, left_s), three)
        of_two, of_three = two.keys_in(left_s), three.keys_in(left_s)
        share = of_two / (of_two + of_three) if 0 < of_two + of_three < math.inf else 0.5
        return Plan(way, round(keys * share), left_s, left_s)

    def _yield(self, way: Way, left_s: float) -> _Yield:
        return self._yields.setdefault((way, round(math.log2(max(left_s, _MIN_LEFT_S)))), _Yield())

    def _probing(self, plan: Plan, other: AnswerTimes) -> Plan:
        """`plan`, and now and then a probe of the tier that may not be asked by it: more often while it is new."""
        probe = self._planned % (_PROBED_BATCHES if other.samples >= _FEW_SAMPLES else _PROBED_BATCHES // 8) == 0
        return replace(plan, probe=True) if probe else plan

    def piece_keys(self, level: Level, most: int, left_s: float) -> int:
        """How many keys to put to a tier at once: `most`, but no more than half of what it answers within `left_s`, so
        that some are in time; nor so few that their number costs more than that brings.
        """
        times = self._times[level]
        if not times.known or times.key_s <= 0:
            return most
        in_time = left_s / times.key_s  # what a call costs by itself, fewer keys do not save
        return int(max(min(max(in_time / 2, min(in_time, _SMALL_PIECE_KEYS)), most), _MIN_PIECE_KEYS))

    def _level_2_s(self, keys: int, left_s: float) -> float:
        """How long to wait for level 2 where level 3 is asked for the rest: as long as level 3 could still answer all
        keys, should level 2 hang, if level 2 is likely to be done by then; else all but what level 3 needs for what
        level 2 lacks, if that is no more than half.
        """
        two, three = self._times[Level.TWO], self._times[Level.THREE]
        safe_s = left_s - three.likely_s(keys)
        if three.known and safe_s >= two.likely_s(keys):
            return safe_s
        lacked = 1 - self._has
        for_three_s = three.likely_s(lacked * keys) if lacked > _FEW_LACKED else 0.0
        return left_s - for_three_s if for_three_s <= left_s / 2 else left_s
