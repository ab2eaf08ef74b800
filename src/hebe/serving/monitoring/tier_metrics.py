"""Prometheus metrics of the tiers that models read their tables through, and of the online updates that they follow.

| metric | type | labels |
|---|---|---|
| hebe_recently_defaulted_ratio | gauge | model, version; keys of the last seconds' answers; no sample without any |
| hebe_tier_available | gauge | model, version, tier = volatile_db, persistent_db |
| hebe_tier_failures_total | counter | model, version, tier |
| hebe_tier_hits_total | counter | model, version, tier; keys that the tiers above lacked |
| hebe_tier_rows | gauge | model, version, tier; of persistent_db, and of volatile_db in this process |
| hebe_tier_bytes | gauge | model, version, tier = volatile_db in this process; its memory |
| hebe_cache_rows, hebe_cache_capacity_rows, hebe_cache_bytes | gauge | model, version |
| hebe_cache_hits_total, hebe_cache_misses_total | counter | model, version; distinct keys of a batch |
| hebe_cache_evictions_total, hebe_hash_map_evictions_total | counter | model, version; rows that gave way to others |
| hebe_cache_unheld_total | counter | model, version; rows beyond what the row format holds |
| hebe_insertions_waiting | gauge | model, version; work in the background |
| hebe_insertions_dropped_total | counter | model, version |
| hebe_refreshes_total | counter | model, version |
| hebe_update_log_lost | gauge | model, version; 1 where rows had updates of another log than there is now |
| hebe_refresh_seconds | gauge | model, version; of the last |
| hebe_updates_rows_total, hebe_updates_deletes_total | counter | model, version, ingestion |
| hebe_updates_lag_messages | gauge | model, version, ingestion; no sample while the log does not tell |
| hebe_updates_failing | gauge | model, version, ingestion |
| hebe_updates_visible_seconds | histogram | model, version, ingestion, tier |
| hebe_updates_gaps_total, hebe_updates_missing_total | counter | model, version, ingestion; gaps, messages in them |
| hebe_updates_poison_total, hebe_updates_duplicates_total | counter | model, version, ingestion |
| hebe_updates_refused_total | counter | model, version, ingestion; keys that a store in memory has no place for |
| hebe_updates_unheld_total | counter | model, version, ingestion; rows beyond what table memory's row format holds |
| hebe_updates_passed_over_total | counter | model, version, ingestion; messages older than the model's rows |

An ingestion reads the log for stores that go together: `tiers`, `volatile_db` or `resident`. Where no model has tiers,
or online updates, there are no such metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

if TYPE_CHECKING:
    from hebe.runtime.tier_state import IngestionStatistics, TiersState, VisibleHistogram
    from hebe.serving.hosting.hosted_model import HostedModel

_MODEL = ("model", "version")
_TIER = (*_MODEL, "tier")
_INGESTION = (*_MODEL, "ingestion")


def tier_metrics(models: Sequence[HostedModel]) -> Iterator[Metric]:
    """The metrics above of those of `models` that have tiers."""
    states = [((model.spec.name, str(model.version)), model, tiers) for model in models if (tiers := model.tiers)]
    if not states:
        return
    available = GaugeMetricFamily(
        "hebe_tier_available", "1 if the tier is asked, 0 while its circuit is open.", labels=_TIER
    )
    failures = CounterMetricFamily(
        "hebe_tier_failures", "Requests to a tier that failed, took too long, or met damaged rows.", labels=_TIER
    )
    hits = CounterMetricFamily("hebe_tier_hits", "Keys that a tier had and those above it lacked.", labels=_TIER)
    rows = GaugeMetricFamily("hebe_tier_rows", "Rows in a tier below the cache.", labels=_TIER)
    memory = GaugeMetricFamily("hebe_tier_bytes", "Memory of a tier below the cache in this process.", labels=_TIER)
    for labels, model, state in states:
        guarded = {level.name: level for level in state.levels}
        found = {"volatile_db": state.counts.volatile_hits, "persistent_db": state.counts.persistent_hits}
        for tier in (tier for tier in model.tier_kinds if tier in found):
            level = guarded.get(tier)  # a tier in this process has no guard: it is there
            available.add_metric((*labels, tier), float(level is None or level.available))
            failures.add_metric((*labels, tier), 0 if level is None else level.failures)
            hits.add_metric((*labels, tier), found[tier])
        for tier, size in state.sizes.items():
            rows.add_metric((*labels, tier), size.rows)
            if size.memory_bytes is not None:
                memory.add_metric((*labels, tier), size.memory_bytes)
    yield from (available, failures, hits, rows, memory)
    defaulted = GaugeMetricFamily(
        "hebe_recently_defaulted_ratio",
        "Of the keys of the last seconds' answers, those that got a default vector for want of time.",
        labels=_MODEL,
    )
    for labels, model, _ in states:
        if (share := model.defaulted_share) is not None:
            defaulted.add_metric(labels, share)
    yield defaulted
    for name, text, value in _TIER_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_MODEL)
        for labels, _, state in states:
            gauge.add_metric(labels, value(state))
        yield gauge
    for name, text, value in _TIER_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_MODEL)
        for labels, _, state in states:
            counter.add_metric(labels, value(state))
        yield counter


_TIER_GAUGES: tuple[tuple[str, str, Callable[[TiersState], float]], ...] = (
    ("hebe_cache_rows", "Rows in the cache.", lambda state: state.cached_rows),
    ("hebe_cache_capacity_rows", "Rows that the cache has room for.", lambda state: state.cache_capacity_rows),
    ("hebe_cache_bytes", "Memory of the cache.", lambda state: state.cache_bytes),
    (
        "hebe_insertions_waiting",
        "Work on the tiers that waits in the background.",
        lambda state: state.insertions_waiting,
    ),
    (
        "hebe_refresh_seconds",
        "What the last refresh of the cache took; 0 before the first.",
        lambda state: 0.0 if state.last_refresh is None else state.last_refresh.seconds,
    ),
    (
        "hebe_update_log_lost",
        "1 where rows had updates of another log than there is now, and may lack some that it held.",
        lambda state: float(state.lost_log is not None),
    ),
)
_TIER_COUNTERS: tuple[tuple[str, str, Callable[[TiersState], float]], ...] = (
    ("hebe_cache_hits", "Distinct keys of a batch that the cache had.", lambda state: state.counts.cache_hits),
    ("hebe_cache_misses", "Distinct keys of a batch that the cache lacked.", lambda state: state.counts.cache_misses),
    ("hebe_cache_evictions", "Rows that gave way to others in the cache.", lambda state: state.cache_evictions),
    (
        "hebe_cache_unheld",
        "Rows with numbers beyond what the cache's row format holds, written clipped, or as NaN.",
        lambda state: state.cache_unheld,
    ),
    (
        "hebe_hash_map_evictions",
        "Rows that gave way to others in a volatile store in this process.",
        lambda state: state.hash_map_evictions,
    ),
    (
        "hebe_insertions_dropped",
        "Work on the tiers that was dropped, since too much waited already.",
        lambda state: state.insertions_dropped,
    ),
    ("hebe_refreshes", "Refreshes of the cache.", lambda state: state.refreshes),
)


def update_metrics(models: Sequence[HostedModel]) -> Iterator[Metric]:
    """The metrics above of those of `models` that follow online updates."""
    ingestions = [
        ((model.spec.name, str(model.version), name), statistics)
        for model in models
        for name, statistics in model.updates.items()
    ]
    if not ingestions:
        return
    for name, text, value in _UPDATE_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_INGESTION)
        for labels, statistics in ingestions:
            counter.add_metric(labels, value(statistics))
        yield counter
    for name, text, known in _UPDATE_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_INGESTION)
        for labels, statistics in ingestions:
            if (now := known(statistics)) is not None:  # NaN would make the sum over all servers NaN
                gauge.add_metric(labels, now)
        yield gauge
    visible = HistogramMetricFamily(
        "hebe_updates_visible_seconds",
        "From the trainer's sending an update to its being in the tier.",
        labels=(*_INGESTION, "tier"),
    )
    for labels, statistics in ingestions:
        for tier, histogram in statistics.visible_histogram.items():
            visible.add_metric((*labels, tier), _buckets(histogram), histogram.sum_s)
    yield visible


_UPDATE_COUNTERS: tuple[tuple[str, str, Callable[[IngestionStatistics], float]], ...] = (
    ("hebe_updates_rows", "Updated rows that were applied.", lambda statistics: statistics.rows),
    ("hebe_updates_deletes", "Keys that updates deleted.", lambda statistics: statistics.deletes),
    ("hebe_updates_gaps", "Times that messages were missing.", lambda statistics: statistics.gaps),
    ("hebe_updates_missing", "Messages that were missing.", lambda statistics: statistics.missing),
    (
        "hebe_updates_poison",
        "Messages that could not be applied and were put aside.",
        lambda statistics: statistics.poison,
    ),
    ("hebe_updates_duplicates", "Messages that had been applied before.", lambda statistics: statistics.duplicates),
    (
        "hebe_updates_refused",
        "Keys of updated rows that a store in memory has no place for, and that were left out.",
        lambda statistics: statistics.refused,
    ),
    (
        "hebe_updates_unheld",
        "Updated rows with numbers beyond what the row format of table memory holds, written clipped.",
        lambda statistics: statistics.unheld,
    ),
    (
        "hebe_updates_passed_over",
        "Messages sent before the model's rows were read out of training, and so not applied.",
        lambda statistics: statistics.passed_over,
    ),
)
_UPDATE_GAUGES: tuple[tuple[str, str, Callable[[IngestionStatistics], float | None]], ...] = (
    (
        "hebe_updates_lag_messages",
        "Messages in the log that are not applied yet; no sample while the log does not tell.",
        lambda each: each.lag_messages,
    ),
    (
        "hebe_updates_failing",
        "1 while the log or a store fails, so that nothing is applied.",
        lambda each: each.is_failing,
    ),
)


def _buckets(histogram: VisibleHistogram) -> list[tuple[str, float]]:
    bounded = [
        (repr(float(bound_s)), float(count))
        for bound_s, count in zip(histogram.bounds_s, histogram.at_most, strict=True)
    ]
    return [*bounded, ("+Inf", float(histogram.messages))]
