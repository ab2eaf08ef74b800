"""What moves through Hebe, and who fills each field.

Query        one user's ranking request. Filled by serving (or the simulator, which leaves the tensors out).
SubQuery     items `[start, stop)` of a query. Made by `scheduling.node`.
Batch        sub-queries that run together on one worker. Made by `scheduling.node`.
QueryResult  the answer. Filled by the driver when the last sub-query is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hebe.spec import FeatureSpec, OutOfRange

KeyArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

MOST_ITEMS = 8192
"""Of the largest query that a server takes, unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class JaggedKeys:
    """Keys of one feature with a number of lookups of its own for each item.

    `values` int64 `[sum(lengths)]`, item after item; `offsets` int64 `[items + 1]`, where each item's keys start, and
    last how many there are: `JaggedKeys([7, 8, 9], [0, 2, 3])` is `[7, 8]` and `[9]`.
    """

    values: KeyArray
    offsets: KeyArray


FeatureKeys = KeyArray | JaggedKeys
"""Either int64 `[items, lookups]` or jagged."""


def bring_into_range(keys: KeyArray, rows: int, rule: OutOfRange) -> KeyArray:
    """`keys` int64 of any shape as a feature with this rule reads them from a table of `rows`.

    A rule that leaves some keys outside of the table leaves them as they are, to be refused if they are not below
    `key_limit`.
    """
    if rule is OutOfRange.WRAP:
        return keys - keys // rows * rows  # half the time of a remainder: NumPy divides by a constant without division
    if rule in (OutOfRange.CLAMP, OutOfRange.CLAMP_LOW):
        keys = np.maximum(keys, 0)
    if rule in (OutOfRange.CLAMP, OutOfRange.CLAMP_HIGH):
        keys = np.minimum(keys, rows - 1)
    return keys


def key_limit(rows: int, rule: OutOfRange) -> int:
    """Keys that a feature with this rule has brought into range must be below it, and not below 0."""
    return 1 << 63 if rule is OutOfRange.UNKNOWN else rows


def unlike_behaviours(features: Mapping[str, FeatureKeys], parts: Sequence[FeatureSpec]) -> str:
    """Which item has more keys of one of these parts of a behaviour sequence than of another, in words; empty if none.

    Parts stand side by side, position by position: where one lacks keys, those of the others would say nothing.
    `features` has every one of them, for as many items.
    """
    if not any(isinstance(features[part.name], JaggedKeys) for part in parts):
        return ""
    counts = _lengths(features, parts[0])
    for part in parts[1:]:
        beside = _lengths(features, part)
        if not np.array_equal(counts, beside):
            item = int(np.argmax(counts != beside))
            return (
                f"item {item} has {counts[item]} key(s) of '{parts[0].name}' and {beside[item]} of '{part.name}'; "
                "they are parts of one behaviour sequence, of which an item must have as many keys each"
            )
    return ""


def _lengths(features: Mapping[str, FeatureKeys], feature: FeatureSpec) -> npt.NDArray[np.int64]:
    keys = features[feature.name]
    return np.diff(keys.offsets) if isinstance(keys, JaggedKeys) else np.full(len(keys), feature.lookups)


@dataclass(slots=True, eq=False)
class Query:
    """One ranking request.

    `query_id`  unique while the query lives; drawn by the driver.
    `items`     the query size: candidates to score.
    `arrival_s` intended arrival on the driver's clock; latency counts from here.
    `deadline_s` when the answer stops being useful, on the same clock (`inf`: never).
    `priority`  the smaller, the more urgent.
    `features`  keys by feature name, views of the received bytes, checked against the spec; empty in simulation.
    `dense`     float32 `[items, dense_dim]`, or None where the model has no dense input.
    `max_defaulted_fraction` the largest share of its keys that may get a default vector because their row is late.
    `counted`   whether its keys are such as clients ask for: they show in the statistics of caches and stores, which
                hold their rows afterwards. Not where the server itself asks, with keys of its own making.
    `described` where its keys lie in memory, for as long as `features` live, where that was found out when they came:
                int64, `key_matrix.place_described`; else None.
    """

    query_id: int
    items: int
    arrival_s: float
    deadline_s: float = float("inf")
    priority: int = 0
    features: Mapping[str, FeatureKeys] = field(default_factory=dict)
    dense: FloatArray | None = None
    max_defaulted_fraction: float = 1.0
    counted: bool = True
    described: KeyArray | None = None


@dataclass(frozen=True, slots=True)
class SubQuery:
    """Items `[start, stop)` of `query`; the whole query where it was not split."""

    query: Query
    start: int
    stop: int

    @property
    def items(self) -> int:
        """How many items it has."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """What one worker runs at once; `items` is its batch size."""

    batch_id: int
    sub_queries: tuple[SubQuery, ...]
    items: int

    def share(self, start: int, stop: int) -> list[SubQuery]:
        """Items `[start, stop)` of it."""
        parts, row = [], 0
        for part in self.sub_queries:
            first, end = max(start - row, 0), min(stop - row, part.items)
            if first < end:
                parts.append(SubQuery(part.query, part.start + first, part.start + end))
            row += part.items
        return parts


@dataclass(slots=True)
class KeyCounts:
    """How keys were answered: of `total`, `defaulted` with a default vector since their row was not there in time,
    `stale` with a row of which a lower tier has a newer version, `unknown` with a default vector since none has them.
    Of those `defaulted`, the deadline has `cut` off so many, as against tiers that failed.
    """

    total: int = 0
    defaulted: int = 0
    stale: int = 0
    unknown: int = 0
    cut: int = 0

    def add(self, other: KeyCounts) -> None:
        """Count those too."""
        self.total += other.total
        self.defaulted += other.defaulted
        self.stale += other.stale
        self.unknown += other.unknown
        self.cut += other.cut


@dataclass(slots=True, eq=False)
class QueryResult:
    """The answer to one query, and where its time went.

    `scores` float32 `[items, outputs]`. Times are seconds: `queue_s` from arrival to the first start of a batch
    that holds a part of it, `sparse_s` and `dense_s` summed over those batches, as is `loading_s`, of inputs to an
    accelerator, `latency_s` from arrival to completion. `keys` says how the query's keys were answered.
    """

    query_id: int
    scores: FloatArray
    latency_s: float
    queue_s: float
    sparse_s: float
    dense_s: float
    keys: KeyCounts = field(default_factory=KeyCounts)
    loading_s: float = 0.0

    @property
    def share_of_latency(self) -> float:
        """What `sparse_s`, `loading_s` and `dense_s` are multiplied by as parts of the latency: 1, or less for a query
        that was split, whose parts run side by side.
        """
        work_s = self.sparse_s + self.loading_s + self.dense_s
        busy_s = max(self.latency_s - self.queue_s, 0.0)
        return min(1.0, busy_s / work_s) if work_s > 0 else 0.0
