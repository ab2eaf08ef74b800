"""`GET /v2/status`: how the server, its models and their tiers are, for operators and `hebe status`.

    server      name, version, live, ready, reason (why it is not ready, where `degraded` names none), uptime_s
    degraded    what is not as it should be: model, what, reason, and since how many seconds (null: not known)
    models      one entry a model: queries, latency, memory, tiers, online updates, its configuration, and what its
                profile says beside what is measured (`model_status`)

It is an extension of ours to the Open Inference Protocol, which server metadata lists as `hebe_status`. A number that
there is not yet is null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hebe._version import __version__
from hebe.server_configuration import to_dict

if TYPE_CHECKING:
    from hebe.runtime.tier_state import IngestionStatistics, RefreshReport, TiersState, TierState
    from hebe.serving.hosting.hosted_model import HostedModel
    from hebe.serving.hosting.model_host import ModelHost
    from hebe.serving.hosting.model_index import ModelIndexEntry
    from hebe.serving.hosting.profile_in_use import ProfileInUse
    from hebe.serving.statistics import ModelStatistics, Statistics

MOST_MODELS = 256
"""Models that one document tells of; the first by name."""
DAMAGE_TOLD_S = 3600.0
"""Damage counts for so long after it was last met: whoever has put the rows back need not start the server anew."""


class ServerStatus:
    """Makes the document for `host`, whose queries are counted in `statistics`; it has been up since this was made."""

    def __init__(self, host: ModelHost, statistics: Statistics) -> None:
        self._host = host
        self._statistics = statistics
        self._started_s = host.clock()

    def document(self) -> dict[str, Any]:
        """The status now, of JSON types."""
        host = self._host
        entries = {entry.name: entry for entry in host.entries}
        hosted = {model.spec.name: model for model in host.hosted}
        names = sorted(entries.keys() | hosted.keys())
        models: list[dict[str, Any]] = []
        degraded: list[dict[str, Any]] = []
        for name in names[:MOST_MODELS]:
            entry, model = entries.get(name), hosted.get(name)
            reason = short(entry.reason) if entry is not None else ""
            if model is not None:
                counted = self._statistics.of(name, model.version, model.sla_s)
                status = model_status(model, counted)
                degraded += _degraded(status, reason, self._since_s(entry))
            else:
                assert entry is not None
                status = {"name": name, "version": entry.version, "state": entry.state, "ready": False}
                if host.wants(name):
                    why = reason or "it is being loaded"
                    degraded.append({"model": name, "what": "model", "reason": why, "since_s": self._since_s(entry)})
            models.append({**status, "reason": reason or status.get("reason", "")})
        return {
            "server": {
                "name": "hebe",
                "version": __version__,
                "live": host.live,
                "ready": host.live and host.ready,
                "reason": self._not_ready(names),
                "uptime_s": round(host.clock() - self._started_s, 3),
            },
            "degraded": degraded,
            "models": models,
            "models_left_out": len(names) - len(models),
        }

    def _not_ready(self, names: Sequence[str]) -> str:
        """Why it is not ready, where that is no model's fault; of these models."""
        if not self._host.live:
            return "it is stopping"
        return "" if any(map(self._host.wants, names)) else "no model is loaded"

    def _since_s(self, entry: ModelIndexEntry | None) -> float | None:
        """For how many seconds a model has been as its entry says; None where that is not known."""
        if entry is None or entry.since_s is None:
            return None
        return round(max(self._host.clock() - entry.since_s, 0.0), 3)


def _degraded(status: dict[str, Any], load_failure: str, failed_since_s: float | None) -> list[dict[str, Any]]:
    """What is wrong with a model in memory; `load_failure` is why another version could not replace it, or its cache
    not be refreshed, if so, and that is `failed_since_s` seconds ago.
    """
    name, found = status["name"], []

    def add(what: str, reason: str, since_s: float | None = None) -> None:
        since_s = None if since_s is None else round(since_s, 3)
        found.append({"model": name, "what": what, "reason": reason, "since_s": since_s})

    if not status["ready"]:
        add("model", status["reason"], status["not_ready_s"])
    for tier in status["tiers"]:
        if not tier["available"]:
            add(tier["name"], tier["fault"] or "it does not answer", tier["unavailable_s"])
        elif tier["damage"] is not None and tier["damage_s"] < DAMAGE_TOLD_S:
            add(tier["name"], f"some of its rows are damaged: {tier['damage']}", tier["damaged_s"])
    if status["lost_log"] is not None:
        advice = "rows that have no newer update are stale; load rows that training has exported since"
        lost = f"{status['lost_log']}: {advice}"
        add("updates", lost)
    for ingestion, updates in status["updates"].items():
        if updates["failing"]:
            add(f"updates of {ingestion}", updates["fault"] or "they are not applied", updates["failing_s"])
        if left_out := _left_out(updates):
            add(f"updates of {ingestion}", left_out, updates["left_out_s"])
    if over := _over_budget(status):
        add("power", over, status["measured"]["over_budget_s"])
    if load_failure:
        add("load", load_failure, failed_since_s)
    return found


def _left_out(updates: dict[str, Any]) -> str:
    """That rows are not as their trainer sent them; empty where all are. Counted until the model is loaded anew."""
    told = []
    if updates["missing"]:
        told.append(f"messages missing from the log: {updates['missing']}, of which last {updates['last_gaps'][-1]}")
    if updates["poison"]:
        told.append(f"messages put aside: {updates['poison']}, of which last {updates['last_poison'][-1]}")
    if updates["refused"]:
        told.append(f"keys whose rows found no place: {updates['refused']}")
    return "; ".join(told)


def _over_budget(status: dict[str, Any]) -> str:
    """That the last load that told something drew more than the profile's power budget; empty where it did not."""
    budget = None if status["profile"] is None else status["profile"]["power_budget_watts"]
    window = None if status["measured"] is None else status["measured"]["window"]
    if budget is None or window is None or window["power_watts"] is None or window["power_watts"] <= budget:
        return ""
    estimated = " (estimated)" if window["estimated"] else ""
    drew = f"its last load drew {window['power_watts']:.4g} W{estimated}"
    return f"{drew}: more than the power budget of {budget:.4g} W that it was profiled for"


MOST_CHARACTERS = 400
"""Of a fault's text."""

_MOST_GAPS = 5


def model_status(model: HostedModel, counted: ModelStatistics) -> dict[str, Any]:
    """The status of a model in memory, whose queries `counted` has counted. Latencies are of all of them, read off its
    histogram; `reason` says why it is not ready, `not_ready_s` for how long, where that is known. `threads`: of each of
    its workers. Of the keys of the last seconds' answers the share `recently_defaulted` got a default vector.
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
            "cut_by_deadline": counted.keys.cut,
            "stale": counted.keys.stale,
            "unknown": counted.keys.unknown,
            "recently_defaulted": model.defaulted_share,
        },
        "table_memory_bytes": model.table_memory_bytes,
        "row_format": model.row_format,
        "tiers": [] if state is None else _tiers(model, state),
        "lost_log": None if state is None or state.lost_log is None else short(state.lost_log),
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
