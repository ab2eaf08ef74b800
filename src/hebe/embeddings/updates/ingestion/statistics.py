"""What an ingestion has done and how far behind it is: counted by its thread, read by any."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.latency import LatencyRecorder, LatencySummary

VISIBLE_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0,
)  # fmt: skip
"""Upper bounds of the buckets of update-to-visible latency: from one batch to a day behind."""

_RATE_S = 10.0
_RATE_STEP_S = 0.5
_MOST_GAPS = 100
_MOST_POISON = 100


@dataclass(frozen=True, slots=True)
class VisibleHistogram:
    """Update-to-visible latencies as Prometheus counts them: messages, cumulative, never fewer than before."""

    bounds_s: tuple[float, ...]
    at_most: tuple[int, ...]
    """Messages that took no longer than the bound of that place."""
    messages: int
    """All messages, those beyond the last bound included."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class IngestionStatistics:
    """Since the ingestion began, but for what is said to be of now."""

    messages: int
    """Messages applied."""
    rows: int
    """Rows put into the stores."""
    deletes: int
    """Keys deleted."""
    duplicates: int
    """Messages dropped, as they had been applied before."""
    reordered: int
    """Messages that came after later ones and were applied in their place."""
    passed_over: int
    """Messages older than the model that is loaded, which has them."""
    gaps: int
    """Times that messages were missing."""
    missing: int
    """Messages that were."""
    last_gaps: tuple[Gap, ...]
    poison: int
    """Messages that could not be applied and were put aside."""
    last_poison: tuple[str, ...]
    """Of these the last ones: which each was, why, and where it is or what it began with."""
    refused: int
    """Keys of rows that a store has no place for, and left out."""
    unheld: int
    """Rows that the row format of a store could not hold, and that were clipped."""
    failures: int
    """Calls to the source or a store that failed; all were tried again."""
    last_error: str | None
    """What the last failure or poison message was."""
    is_failing: bool
    """Whether the last call failed: nothing is applied now."""
    failing_s: float | None
    """For how many seconds calls have failed; None while they do not."""
    left_out_s: float | None
    """How many seconds ago rows were left out first: missing, put aside or refused; None while none were."""
    rows_per_s: float
    """Rows and deleted keys applied, over the last seconds."""
    lag: Mapping[TopicPartition, int] | None
    """Messages of each partition that are not committed, when last asked; None while the log does not tell."""
    visible: Mapping[str, LatencySummary]
    """By tier, seconds from the trainer's `send` to the row being in the store, by the machines' wall clocks."""
    visible_histogram: Mapping[str, VisibleHistogram]
    """The same as counts that only grow."""

    @property
    def lag_messages(self) -> int | None:
        """Messages not committed, of all partitions; None while that is not known."""
        return None if self.lag is None else sum(self.lag.values())


class IngestionCounter:
    """Counts; `read` may be called from any thread."""

    def __init__(self, tiers: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._visible = {tier: LatencyRecorder() for tier in tiers}
        self._buckets = {tier: [0] * (len(VISIBLE_BOUNDS_S) + 1) for tier in self._visible}
        self._sums_s = dict.fromkeys(self._visible, 0.0)
        self._counts = dict.fromkeys(("messages", "rows", "deletes", "duplicates", "reordered", "passed_over"), 0)
        self._counts |= dict.fromkeys(("gaps", "missing", "poison", "refused", "unheld", "failures"), 0)
        self._last_gaps: deque[Gap] = deque(maxlen=_MOST_GAPS)
        self._last_poison: deque[str] = deque(maxlen=_MOST_POISON)
        self._last_error: str | None = None
        self._is_failing = False
        self._failing_since_s = self._left_out_since_s = math.inf
        self._lag: dict[TopicPartition, int] | None = None
        self._begun_s = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()
        """(when, keys) of the last seconds, a few a second."""

    def add(self, **counts: int) -> None:
        """Count more of the fields of those names."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count
            if counts.get("refused"):
                self._note_left_out()
            self._note_rate(counts.get("rows", 0) + counts.get("deletes", 0))

    def visible(self, tier: str, sent_s: Iterable[float]) -> None:
        """Messages sent at these times are in the tier now. Clocks that run ahead count as no time."""
        now_s = time.time()
        with self._lock:
            for sent in sent_s:  # one or two: less work than that of arrays
                latency_s = max(0.0, now_s - sent)
                self._visible[tier].record(latency_s)
                self._buckets[tier][bisect_left(VISIBLE_BOUNDS_S, latency_s)] += 1
                self._sums_s[tier] += latency_s

    def gap(self, gap: Gap) -> None:
        """Messages are missing."""
        with self._lock:
            self._counts["gaps"] += 1
            self._counts["missing"] += gap.last - gap.first + 1
            self._last_gaps.append(gap)
            self._note_left_out()

    def poison(self, fault: str, told: str) -> None:
        """A message was put aside; `told` names it, and says where it is."""
        with self._lock:
            self._counts["poison"] += 1
            self._last_poison.append(told)
            self._last_error = fault
            self._note_left_out()

    def failed(self, fault: str) -> bool:
        """A call failed; returns whether that is news, for whoever logs it."""
        with self._lock:
            news = not self._is_failing or fault != self._last_error
            self._counts["failures"] += 1
            if not self._is_failing:
                self._failing_since_s = time.monotonic()
            self._last_error, self._is_failing = fault, True
            return news

    def succeeded(self) -> bool:
        """A call went well; returns whether that is news."""
        with self._lock:
            news, self._is_failing = self._is_failing, False
            return news

    def lag(self, lag: Mapping[TopicPartition, int] | None) -> None:
        """The source's lag; None if it does not tell any more."""
        with self._lock:
            self._lag = None if lag is None else dict(lag)

    def read(self) -> IngestionStatistics:
        """All of it, now."""
        with self._lock:
            self._note_rate(0)
            span_s = min(_RATE_S, time.monotonic() - self._begun_s)
            return IngestionStatistics(
                **self._counts,
                last_gaps=tuple(self._last_gaps),
                last_poison=tuple(self._last_poison),
                last_error=self._last_error,
                is_failing=self._is_failing,
                failing_s=time.monotonic() - self._failing_since_s if self._is_failing else None,
                left_out_s=None if math.isinf(self._left_out_since_s) else time.monotonic() - self._left_out_since_s,
                rows_per_s=sum(count for _, count in self._recent) / span_s if span_s > 0 else 0.0,
                lag=self._lag,
                visible={tier: recorder.summary() for tier, recorder in self._visible.items()},
                visible_histogram={tier: self._histogram(tier) for tier in self._visible},
            )

    def _histogram(self, tier: str) -> VisibleHistogram:
        *at_most, messages = accumulate(self._buckets[tier])
        return VisibleHistogram(VISIBLE_BOUNDS_S, tuple(at_most), messages, self._sums_s[tier])

    def _note_left_out(self) -> None:
        self._left_out_since_s = min(self._left_out_since_s, time.monotonic())

    def _note_rate(self, keys: int) -> None:
        now_s = time.monotonic()
        while self._recent and self._recent[0][0] < now_s - _RATE_S:
            self._recent.popleft()
        if keys and self._recent and self._recent[-1][0] > now_s - _RATE_STEP_S:
            self._recent[-1] = (self._recent[-1][0], self._recent[-1][1] + keys)
        elif keys:
            self._recent.append((now_s, keys))
