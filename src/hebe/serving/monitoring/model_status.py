"""One model's part of the server's status: queries, latency, memory, tiers, updates, configuration, as JSON types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hebe.server_configuration import to_dict

if TYPE_CHECKING:
    from hebe.runtime.tier_state import IngestionStatistics, RefreshReport, TiersState, TierState
    from hebe.serving.hosting.hosted_model import HostedModel
    from hebe.serving.hosting.profile_in_use import ProfileInUse
    from hebe.serving.statistics import ModelStatistics

MOST_CHARACTERS = 400
"""Of a fault's text."""

_MOST_GAPS = 5


def model_status(model: HostedModel, counted: ModelStatistics) -> dict[str, Any]:
    """The status of a model in memory, whose queries `counted` has counted. Latencies are of all of them, read off its
    histogram; `reason` says why it is not ready, `not_ready_s` for how long, where that is known. `threads`: of each of
    its workers.
    """
    state = model.tiers
    answered = counted.success.count
    return {
        "name": model.spec.name,
        "version": model.version,
        "state": "READY",
        "ready": model.ready,
        "reason": model.trouble,
        "not_ready_s": model.trouble_s,
        "workers": model.workers,
        "threads": model.threads,
        "queue_depth": model.queue_depth,
        "batch_size": model.batch_size,
        "configuration": to_dict(model.configuration),
        "max_items": model.max_items,
        "sla": {
            "latency_ms": model.sla_s * 1e3,
            "percentile": model.percentile,
            "attainment": _number(counted.sla_attainment),
        },
        "queries": {
            "answered": answered,
            "items": counted.items_answered,
            "refused": dict(counted.refused),
        },
        "latency_ms": {f"p{share * 100:g}": _ms(counted.latency_s.quantile(share)) for share in (0.5, 0.95, 0.99)},
        "keys": {
            "total": counted.keys.total,
            "defaulted": counted.keys.defaulted,
            "stale": counted.keys.stale,
            "unknown": counted.keys.unknown,
        },
        "table_memory_bytes": model.table_memory_bytes,
        "row_format": model.row_format,
        "tiers": [] if state is None else _tiers(model, state),
        "background": None if state is None else _background(state),
        "refresh": None if state is None else _refresh(state.refreshes, state.last_refresh),
        "updates": {name: _updates(statistics) for name, statistics in model.updates.items()},
        "profile": None if model.profile is None else _said(model.profile),
        "measured": None if model.profile is None else _measured(model.profile),
    }


def short(text: str) -> str:
    """`text`, cut where it is long."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def _said(profile: ProfileInUse) -> dict[str, Any]:
    efficiency = profile.efficiency
    return {
        "configuration": dict(efficiency.configuration),
        "qps": efficiency.qps,
        "power_watts": efficiency.power_watts,
        "estimated": efficiency.estimated,
        "power_budget_watts": profile.power_budget_watts,
    }


def _measured(profile: ProfileInUse) -> dict[str, Any]:
    """The tuple as serving has corrected it; all of it, with `at`, is null while it has not. `window`: the last load
    that told something; `over_budget_s`: since the first such load in a row drew more than the power budget.
    """
    now, window = profile.measured, profile.window
    load = None
    if window is not None:
        load = {
            "qps": window.qps,
            "seconds": window.seconds,
            "late": window.late / window.queries,
            "kept": window.kept,
            "power_watts": window.peak_watts,
            "estimated": window.power_estimated,
        }
    return {
        "qps": None if now is None else now.qps,
        "power_watts": None if now is None else now.power_watts,
        "estimated": None if now is None else now.estimated,
        "at": profile.measured_at,
        "window": load,
        "over_budget_s": profile.over_budget_s,
    }


def _tiers(model: HostedModel, state: TiersState) -> list[dict[str, Any]]:
    """Level 1 first. A tier in this process has no circuit: it is there, or the server is not."""
    guarded = {level.name: level for level in state.levels}
    tiers = []
    for name, kind in model.tier_kinds.items():
        tier = {"name": name, "kind": kind, **_guard(guarded.get(name))}
        tiers.append(tier | (_cache(state) if name == "cache" else _below(name, state)))
    return tiers


def _guard(level: TierState | None) -> dict[str, Any]:
    if level is None:
        return {
            "available": True,
            "circuit": None,
            "unavailable_s": None,
            "failures": 0,
            "fault": None,
            "fault_s": None,
            "damage": None,
            "damage_s": None,
            "damaged_s": None,
        }
    return {
        "available": level.available,
        "circuit": "closed" if level.available else "open",
        "unavailable_s": level.unavailable_s,
        "failures": level.failures,
        "fault": None if level.fault is None else short(level.fault),
        "fault_s": level.fault_age_s,
        "damage": None if level.damage is None else short(level.damage),
        "damage_s": level.damage_age_s,
        "damaged_s": level.damaged_s,
    }


def _cache(state: TiersState) -> dict[str, Any]:
    counts = state.counts
    asked = counts.cache_hits + counts.cache_misses
    return {
        "rows": state.cached_rows,
        "capacity_rows": state.cache_capacity_rows,
        "bytes": state.cache_bytes,
        "hits": counts.cache_hits,
        "misses": counts.cache_misses,
        "hit_rate": counts.cache_hits / asked if asked else None,
    }


def _below(name: str, state: TiersState) -> dict[str, Any]:
    """Of a tier below level 1. One elsewhere is not asked for its size: that is null."""
    counts, size = state.counts, state.sizes.get(name)
    return {
        "rows": None if size is None else size.rows,
        "bytes": None if size is None else size.memory_bytes,
        "hits": counts.volatile_hits if name == "volatile_db" else counts.persistent_hits,
    }


def _background(state: TiersState) -> dict[str, int]:
    return {"waiting": state.insertions_waiting, "dropped": state.insertions_dropped}


def _refresh(iterations: int, last: RefreshReport | None) -> dict[str, Any]:
    report = None
    if last is not None:
        report = {
            "rows": last.rows,
            "replaced": last.replaced,
            "dropped": last.dropped,
            "unreachable": last.unreachable,
            "seconds": last.seconds,
        }
    return {"iterations": iterations, "last": report}


def _updates(statistics: IngestionStatistics) -> dict[str, Any]:
    return {
        "messages": statistics.messages,
        "rows": statistics.rows,
        "deletes": statistics.deletes,
        "rows_per_s": statistics.rows_per_s,
        "lag_messages": statistics.lag_messages,
        "visible_s": {
            tier: {"p50": _number(summary.p50_s), "p99": _number(summary.p99_s)}
            for tier, summary in statistics.visible.items()
        },
        "gaps": statistics.gaps,
        "missing": statistics.missing,
        "last_gaps": [short(str(gap)) for gap in statistics.last_gaps[-_MOST_GAPS:]],
        "poison": statistics.poison,
        "last_poison": [short(told) for told in statistics.last_poison[-_MOST_GAPS:]],
        "refused": statistics.refused,
        "unheld": statistics.unheld,
        "duplicates": statistics.duplicates,
        "reordered": statistics.reordered,
        "passed_over": statistics.passed_over,
        "failures": statistics.failures,
        "failing": statistics.is_failing,
        "failing_s": statistics.failing_s,
        "left_out_s": statistics.left_out_s,
        "fault": None if statistics.last_error is None else short(statistics.last_error),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
