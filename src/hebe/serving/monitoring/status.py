"""`GET /v2/status`: how the server, its models and their tiers are, for operators and `hebe status`.

    server      name, version, live, ready, reason (why it is not ready, where `degraded` names none), uptime_s
    degraded    what is not as it should be: model, what, reason, and since how many seconds (null: not known)
    models      one entry a model: queries, latency, memory, tiers, online updates, its configuration, and what its
                profile says beside what is measured (`model_status`)

It is an extension of ours to the Open Inference Protocol, which server metadata lists as `hebe_status`. A number that
there is not yet is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hebe._version import __version__
from hebe.serving.monitoring.model_status import model_status, short

if TYPE_CHECKING:
    from hebe.serving.hosting.model_host import ModelHost
    from hebe.serving.hosting.model_index import ModelIndexEntry
    from hebe.serving.statistics import Statistics

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
            add(tier["name"], f"rows that cannot be read are defaulted: {tier['damage']}", tier["damaged_s"])
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
