"""What `hebe status` shows of a server's status document: what is wrong first, then a table for each kind of thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hebe.cli.model.tables import size_text
from hebe.report.configuration_words import configuration_words
from hebe.report.tables import Column, FittingTable, format_estimate, format_number
from hebe.server_configuration import from_dict

Json = Mapping[str, Any]


def status_tables(document: Json, url: str) -> RenderableType:
    """The whole document of the server at `url`; tables that would be empty are left out."""
    models: Sequence[Json] = document["models"]
    parts = [_heading(document["server"], url), *_wrong(document)]
    for title, table in (
        ("Models", _models(models)),
        ("Configurations", _configurations(models)),
        ("Tiers", _tiers(models)),
        ("Keys", _keys(models)),
        ("Online updates", _updates(models)),
    ):
        if table is not None:
            parts += [Text(), Text(title, "bold"), table]
    if document.get("models_left_out"):
        parts.append(Text(f"({document['models_left_out']} more models are not shown)", "dim"))
    return Group(*parts)


def duration_text(seconds: float) -> str:
    """A duration for people: 250 ms, 40 s, 12 min, 3 h 5 min, 4 d 2 h."""
    if seconds < 1:
        return f"{format_number(seconds * 1e3)} ms"
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def _heading(server: Json, url: str) -> Text:
    ready = Text("is ready", "bold green") if server["ready"] else Text("is NOT READY", "bold red")
    stopping = "" if server["live"] else ", stopping"
    up = f", up {duration_text(server['uptime_s'])}, version {server['version']}{stopping}"
    return _line(url, " ", ready, up)


def _wrong(document: Json) -> list[RenderableType]:
    degraded: Sequence[Json] = document["degraded"]
    if not degraded:
        if why := _not_ready(document):
            return [_line(Text("Not ready: ", "bold red"), why)]
        return [_line("Nothing is degraded.")]
    table = FittingTable("model", "what", Column("since", right=True), Column("why", folds=True))
    for found in degraded:
        since = "" if found["since_s"] is None else duration_text(found["since_s"])
        table.add_row(found["model"], Text(found["what"], "bold red"), since, found["reason"])
    return [Text(), Text("Degraded", "bold red"), table]


def _not_ready(document: Json) -> str:
    """Why a server is not ready that names no model as the reason; empty where it is ready."""
    server: Json = document["server"]
    if server["ready"]:
        return ""
    if not server["live"]:
        return "it is stopping"
    reason = server.get("reason")  # which an older server does not tell
    if reason or any("workers" in model for model in document["models"]):
        return str(reason or "it does not say why")
    return "no model is loaded"


def _models(models: Sequence[Json]) -> FittingTable | None:
    table = FittingTable(
        "model",
        Column("version", right=True),
        "state",
        Column("workers", right=True, spare=4),
        Column("queue", right=True),
        Column("batch", right=True, spare=5),
        Column("answered", right=True),
        Column("refused", right=True),
        Column("in SLA", right=True),
        Column("SLA", right=True, spare=3),
        *(Column(f"{percentile} ms", right=True, spare=2 * (percentile == "p95")) for percentile in _PERCENTILES),
        Column("tables", right=True, spare=6),
        Column("rows in", spare=7),
    )
    for model in models:
        if "workers" not in model:  # it is not in memory
            state = Text(model["state"].lower(), "bold red" if model["state"] == "UNAVAILABLE" else "")
            table.add_row(model["name"], str(model["version"]), state, *[""] * (9 + len(_PERCENTILES)))
            continue
        state = Text("ready", "green") if model["ready"] else Text("not ready", "bold red")
        latency_ms = model["latency_ms"]
        table.add_row(
            model["name"],
            str(model["version"]),
            state,
            str(model["workers"]),
            str(model["queue_depth"]),
            str(model["batch_size"]),
            f"{model['queries']['answered']:,}",
            f"{sum(model['queries']['refused'].values()):,}",
            _share(model["sla"]["attainment"]),
            f"p{model['sla']['percentile']:g} {model['sla']['latency_ms']:g} ms",
            *(_number(latency_ms[percentile]) for percentile in _PERCENTILES),
            size_text(model["table_memory_bytes"]),
            model["row_format"],
        )
    return table if models else None


_PERCENTILES = ("p50", "p95", "p99")


def _configurations(models: Sequence[Json]) -> FittingTable | None:
    """How the server is split for each model, and where that is from a profile, what it says beside what is measured.

    Threads are those of each worker. Power that is estimated has a `~` before it, and is red beyond the power budget.
    """
    table = FittingTable(
        "model",
        Column("configuration", folds=True),
        Column("threads each", right=True, spare=3),
        Column("profile qps", right=True),
        Column("measured qps", right=True),
        Column("profile W", right=True, spare=2),
        Column("measured W", right=True, spare=2),
        Column("budget W", right=True, spare=2),
        Column("last load", spare=1),
    )
    running = [model for model in models if model.get("configuration")]
    for model in running:
        said, measured = model["profile"], model["measured"]
        budget = None if said is None else said.get("power_budget_watts")  # which an older server does not tell
        table.add_row(
            model["name"],
            configuration_words(from_dict(model["configuration"])),
            str(model.get("threads", "")),
            *("" if told is None else _number(told["qps"]) for told in (said, measured)),
            *("" if told is None else _watts(told, budget) for told in (said, measured)),
            _number(budget),
            "" if measured is None or measured["window"] is None else _load(measured["window"], budget),
        )
    return table if running else None


def _watts(told: Json, budget_watts: float | None) -> Text:
    watts = told["power_watts"]
    if watts is None:
        return Text()
    over = budget_watts is not None and watts > budget_watts
    return Text(format_estimate(watts, estimated=told["estimated"]), "bold red" if over else "")


def _load(window: Json, budget_watts: float | None) -> Text:
    verdict = {True: "in SLA", False: "SLA missed", None: "at the SLA's edge"}[window["kept"]]
    load = Text(f"{format_number(window['qps'])} qps, {verdict}")
    watts = _watts(window, budget_watts)
    return Text.assemble(load, ", ", watts, " W") if watts else load


def _tiers(models: Sequence[Json]) -> FittingTable | None:
    table = FittingTable(
        "model",
        "tier",
        Column("kind", spare=5),
        "state",
        Column("rows", right=True),
        Column("of", right=True, spare=4),
        Column("memory", right=True, spare=3),
        Column("hits", right=True),
        Column("hit rate", right=True),
        Column("failures", right=True),
        Column("last failure", folds=True, spare=1),
    )
    count = 0
    for model in models:
        for tier in model.get("tiers", ()):
            count += 1
            is_cache = "capacity_rows" in tier
            rows, memory_bytes = tier.get("rows"), tier.get("bytes")  # older servers tell only the cache's
            failed = "" if tier["fault"] is None else f"{duration_text(tier['fault_s'])} ago: {tier['fault']}"
            table.add_row(
                model["name"],
                tier["name"],
                tier["kind"],
                Text("up", "green") if tier["available"] else Text("circuit open", "bold red"),
                "" if rows is None else f"{rows:,}",
                f"{tier['capacity_rows']:,}" if is_cache else "",
                "" if memory_bytes is None else size_text(memory_bytes),
                f"{tier['hits']:,}",
                _share(tier["hit_rate"]) if is_cache else "",
                f"{tier['failures']:,}" if tier["circuit"] is not None else "",
                failed,
            )
    return table if count else None


def _keys(models: Sequence[Json]) -> FittingTable | None:
    """How the keys of tiered models were answered, and what goes on behind."""
    table = FittingTable(
        "model",
        Column("keys", right=True),
        *(Column(answer, right=True) for answer in ("defaulted", "stale", "unknown")),
        Column("background", right=True, spare=1),
        Column("dropped", right=True, spare=2),
        Column("refreshes", right=True, spare=3),
        Column("the last one", folds=True, spare=4),
    )
    tiered = [model for model in models if model.get("tiers")]
    for model in tiered:
        keys, last = model["keys"], model["refresh"]["last"]
        told = ""
        if last is not None:
            missed = f", {last['unreachable']:,} not reached" if last["unreachable"] else ""
            told = f"{last['rows']:,} rows in {duration_text(last['seconds'])}{missed}"
        table.add_row(
            model["name"],
            f"{keys['total']:,}",
            *(_share(keys[answer] / keys["total"] if keys["total"] else None) for answer in _ANSWERS),
            str(model["background"]["waiting"]),
            f"{model['background']['dropped']:,}",
            f"{model['refresh']['iterations']:,}",
            told,
        )
    return table if tiered else None


_ANSWERS = ("defaulted", "stale", "unknown")


def _updates(models: Sequence[Json]) -> FittingTable | None:
    table = FittingTable(
        "model",
        "into",
        Column("rows", right=True),
        Column("deletes", right=True, spare=3),
        Column("rows/s", right=True),
        Column("lag", right=True),
        Column("last visible in", folds=True),
        Column("gaps", right=True),
        Column("missing", right=True, spare=2),
        Column("poison", right=True),
        Column("refused", right=True),
        Column("passed over", right=True),
        Column("duplicates", right=True, spare=4),
        Column("last fault", folds=True, spare=1),
    )
    count = 0
    for model in models:
        for ingestion, updates in model.get("updates", {}).items():
            count += 1
            table.add_row(
                model["name"],
                ingestion,
                f"{updates['rows']:,}",
                f"{updates['deletes']:,}" if updates["deletes"] else "",
                _number(updates["rows_per_s"]),
                Text("unknown", "bold red") if updates["lag_messages"] is None else f"{updates['lag_messages']:,}",
                _visible_last(updates["visible_s"]),
                Text(f"{updates['gaps']:,}", "bold red" if updates["gaps"] else ""),
                Text(f"{updates['missing']:,}" if updates["missing"] else "", "bold red"),
                Text(f"{updates['poison']:,}", "bold red" if updates["poison"] else ""),
                Text(f"{updates['refused']:,}" if updates["refused"] else "", "bold red"),
                f"{updates['passed_over']:,}" if updates.get("passed_over") else "",
                f"{updates['duplicates']:,}",
                updates["fault"] or "",
            )
    return table if count else None


def _visible_last(visible_s: Json) -> str:
    """Of the tiers that an ingestion writes to the slowest, and how long updates take to it."""
    known = {tier: told for tier, told in visible_s.items() if told["p50"] is not None and told["p99"] is not None}
    if not known:
        return ""
    tier = max(known, key=lambda each: known[each]["p99"])
    return f"{tier}: p50 {duration_text(known[tier]['p50'])}, p99 {duration_text(known[tier]['p99'])}"


def _share(share: float | None) -> str:
    if share is None:
        return ""
    return "0" if share == 0 else f"{share * 100:.3g}%"


def _number(value: float | None) -> str:
    return "" if value is None else format_number(value)


def _line(*parts: str | Text) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    for part in parts:
        line.append_text(Text(part) if isinstance(part, str) else part)
    return line
