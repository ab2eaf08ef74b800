"""What happened to each model's queries, counted once for the protocol's statistics and for Prometheus.

Plain numbers, written and read on the event loop's thread, but for the batches, which workers report; nothing is
formatted before somebody asks. `prometheus` and the front ends only read.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import Any

from hebe.query import KeyCounts, QueryResult

LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Upper bounds of the latency buckets: about three to an octave where SLA targets lie."""

STAGE_BOUNDS_S = (0.00005, 0.0001, 0.0002, 0.0003, *LATENCY_BOUNDS_S)
"""Upper bounds of the buckets of one stage."""

SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Upper bounds, in items, of the query-size and batch-size buckets."""


LATE_REFUSALS = frozenset({"deadline", "queue_full", "expired"})
"""Why queries are refused that came faster than they can be answered in time."""

CANCELLED = "cancelled"
"""Why a query has no answer whose client did not wait for it."""


class Histogram:
    """Counts by upper bound (inclusive), one more for what lies above all, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def quantile(self, share: float) -> float | None:
        """About the value that `share` (0 to 1) of those counted do not exceed; None if there are none.

        Read off a straight line through its bucket, as Prometheus does; the largest bound where it lies above all.
        """
        rank, below, low = share * sum(self.counts), 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * max(rank - below, 0.0) / count
            below, low = below + count, bound
        return self.bounds[-1] if self.counts[-1] else None


class Duration:
    """How often something happened, and how long it took altogether."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one occurrence."""
        self.count += 1
        self.seconds += seconds

    def document(self) -> dict[str, int]:
        """Count and whole nanoseconds, as the protocol names them."""
        return {"count": self.count, "ns": max(0, round(self.seconds * 1e9))}


class ModelStatistics:
    """One model version's counters. `sla_latency_s` is the bound that attainment is counted against."""

    def __init__(self, name: str, version: int, sla_latency_s: float) -> None:
        self.name = name
        self.version = version
        self.sla_latency_s = sla_latency_s
        self.items_answered = 0
        self.last_query_unix_s = 0.0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.refused: Counter[str] = Counter()
        self.refused_late = 0
        self.failures = 0
        self.within_sla = 0
        self.keys = KeyCounts()
        self.latency_s = Histogram(LATENCY_BOUNDS_S)
        self.stage_s = {stage: Histogram(STAGE_BOUNDS_S) for stage in ("queue", "sparse", "dense")}
        self.query_items = Histogram(SIZE_BOUNDS)
        self.batch_items = Histogram(SIZE_BOUNDS)
        self.batches: dict[int, Duration] = {}
        self._batches_lock = Lock()

    def query_answered(self, items: int, result: QueryResult, decode_s: float, decoded_after_s: float) -> None:
        """A query of `items` was answered; decoding its request took `decode_s` and was over `decoded_after_s` after
        its arrival.

        To the protocol it waits only from then on, and the parts of its time add up to no more than `success`. The
        stages of the metrics are the whole latency, so that there it waits from its arrival on.
        """
        self.items_answered += items
        self.last_query_unix_s = time.time()
        latency_s = result.latency_s
        self.success.add(latency_s)
        self.queue.add(max(result.queue_s - decoded_after_s, 0.0))
        share = result.share_of_latency
        self.compute_input.add(decode_s + share * result.loading_s)
        self.compute_infer.add(share * (result.sparse_s + result.dense_s))
        self.within_sla += latency_s <= self.sla_latency_s
        self.keys.add(result.keys)
        self.latency_s.add(latency_s)
        stages = self.stage_s
        stages["queue"].add(result.queue_s)
        stages["sparse"].add(result.sparse_s)
        stages["dense"].add(result.loading_s + result.dense_s)
        self.query_items.add(items)

    @property
    def sla_attainment(self) -> float:
        """Of the queries that had the latency bound's time at least, the share that was answered within it. NaN before
        the first.
        """
        arrived = self.within_sla + self.missed_sla
        return self.within_sla / arrived if arrived else math.nan

    @property
    def missed_sla(self) -> int:
        """How many of them were not: answered late, refused since they would be late, or too many, given up after the
        bound, or failed.
        """
        return self.success.count - self.within_sla + self.refused_late + self.failures

    def answer_encoded(self, encode_s: float) -> None:
        """Turning an answer into bytes took `encode_s`, after the latency that was counted: to the protocol a part of
        the request's time as well.
        """
        self.compute_output.add(encode_s)
        self.success.seconds += encode_s

    def query_refused(self, reason: str, after_s: float, allowed_s: float = math.inf, *, failed: bool = False) -> None:
        """A request, which had `allowed_s` of its own, was answered with an error, `after_s` after its arrival, or its
        client has gone by then; `failed`: by the server's fault.

        One that had less than the latency bound says nothing of whether that can be kept.
        """
        self.refused[reason] += 1
        if failed:
            self.failures += 1
        elif reason == CANCELLED:
            self.refused_late += after_s > self.sla_latency_s
        else:
            self.refused_late += reason in LATE_REFUSALS and allowed_s >= self.sla_latency_s
        self.fail.add(after_s)

    def batch_ran(self, items: int, sparse_s: float, dense_s: float) -> None:
        """A worker ran a batch of `items`. The driver calls this, from any thread."""
        with self._batches_lock:
            self.batch_items.add(items)
            batch = self.batches.get(items)
            if batch is None:
                batch = self.batches[items] = Duration()
            batch.add(sparse_s + dense_s)

    @property
    def executions(self) -> int:
        """Batches run."""
        return sum(self.batch_items.counts)

    def document(self) -> dict[str, Any]:
        """The counters as one element of the protocol's `model_stats`, for JSON and for protobuf alike."""
        none = {"count": 0, "ns": 0}
        with self._batches_lock:
            batches = sorted(self.batches.items())
        return {
            "name": self.name,
            "version": str(self.version),
            "last_inference": int(self.last_query_unix_s * 1e3),
            "inference_count": self.items_answered,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.document(),
                "fail": self.fail.document(),
                "queue": self.queue.document(),
                "compute_input": self.compute_input.document(),
                "compute_infer": self.compute_infer.document(),
                "compute_output": self.compute_output.document(),
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [
                {
                    "batch_size": items,
                    "compute_input": {"count": batch.count, "ns": 0},
                    "compute_infer": batch.document(),
                    "compute_output": {"count": batch.count, "ns": 0},
                }
                for items, batch in batches
            ],
            "memory_usage": [],
        }


class Statistics:
    """All models' counters, and those of requests that reached no model."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int], ModelStatistics] = {}
        self.refused: Counter[str] = Counter()

    def of(self, name: str, version: int, sla_latency_s: float) -> ModelStatistics:
        """The counters of one model version, made on first use."""
        key = (name, version)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelStatistics(name, version, sla_latency_s)
        found.sla_latency_s = sla_latency_s
        return found

    def forget(self, name: str, version: int) -> None:
        """Drop the counters of a model version, so that versions that come and go do not pile up."""
        self._models.pop((name, version), None)

    def find(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Counters of all models, of one, or of one version, sorted."""
        return [
            self._models[key]
            for key in sorted(self._models)
            if (not name or key[0] == name) and (not version or str(key[1]) == version)
        ]

    def __iter__(self) -> Iterator[ModelStatistics]:
        return iter(self.find())
