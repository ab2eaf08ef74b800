"""What `hebe simulate` shows of a plan of `hebe plan provision`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from hebe._version import __version__
from hebe.capacity.provisioning_simulation import DayMade
from hebe.report.document import (
    Block,
    Cell,
    Document,
    Heading,
    KeyNumber,
    KeyNumbers,
    Picture,
    Table,
    Text,
    Tone,
    notes,
)
from hebe.report.plots.day import lines_over_day
from hebe.report.tables import Column, format_number
from hebe.simulation.fleet.query_stream import arrival_process
from hebe.workload.arrivals import arrival_remarks

_MOST_MISSED = 10
"""Intervals that miss their SLA target and are shown; `--json` has them all."""
_LEAST_SLAS = 20
"""A sample should last so many times the SLA: overload by a twentieth then shows, as a queue of one SLA."""


def _data(made: DayMade) -> dict[str, Any]:
    """The results as plain data; null where there is no load, no server, or not enough answers."""
    plan, request = made.plan, made.request
    attainment, tail_ms, missed, used = made.attainment, made.tail_ms, made.missed, made.utilisation
    servers = plan.counts.sum(axis=1)
    return {
        "kind": "provisioning",
        "load_factor": request.load_factor,
        "policy": made.policy.to_dict(),
        "arrivals": request.arrivals,
        "queries": made.queries,
        "queries_sent": made.queries_sent,
        "seeds": request.seeds,
        "seed": request.seed,
        "interval_s": plan.interval_s,
        "intervals": len(plan.counts),
        "intervals_met": float(1 - missed.sum() / np.count_nonzero(made.load_qps)),
        "models": {
            name: {
                "sla_ms": model.sla.latency_ms,
                "percentile": model.sla.percentile,
                "sizes": model.sizes,
                "attainment": {
                    "mean": float(made.mean_attainment[at]),
                    "least": _least(attainment[:, at]),
                    "by_interval": attainment[:, at],
                },
                "tail_ms": tail_ms[:, at],
                "intervals_missed": int(missed[:, at].sum()),
                "load_qps": made.load_qps[:, at],
                "capacity_qps": plan.capacity_qps[:, at],
            }
            for at, (name, model) in enumerate(made.models.items())
        },
        "server_types": {
            kind: {"servers": servers[:, at], "utilisation": used[:, at], "mean_utilisation": _mean_used(made, at)}
            for at, kind in enumerate(plan.server_types)
            if servers[:, at].any()
        },
        "missed": [
            {
                "start_s": interval * plan.interval_s,
                "model": plan.models[model],
                "load_qps": float(made.load_qps[interval, model]),
                "capacity_qps": float(plan.capacity_qps[interval, model]),
                "attainment": float(attainment[interval, model]),
                "tail_ms": float(tail_ms[interval, model]),
                "late_servers": _late(made, interval, model),
            }
            for interval, model in np.argwhere(missed).tolist()
        ],
    }


def document(made: DayMade) -> Document:
    """The day: models and attainment, server types and utilisation, what misses its SLA target, the verdict."""
    plan, verdict = made.plan, _verdict(made)
    blocks: list[Block] = [
        KeyNumbers(_key_numbers(made)),
        Heading("Models"),
        Picture(
            partial(_attainment, made),
            "The share of a model's queries that are answered within its bound, in each interval. An interval that is"
            " below the dashed line, the percentile of its SLA target, misses it.",
        ),
        _models(made),
        Heading("Servers"),
        Picture(
            partial(_utilisation, made),
            "The share of their time that the servers of a type work, those of all models together.",
        ),
        _types(made),
    ]
    if made.missed.any():
        blocks += [Heading("Intervals that miss their SLA target"), _missed(made)]
    return Document(
        "Simulation of a provisioning plan",
        [
            *blocks,
            Text(verdict, on_page=False),
            *notes([Text(note, Tone.WARNING) for note in _notes(made)]),
        ],
        verdict,
        f"hebe {__version__}; {plan.path.name}, starting at {plan.start}; service times from {_files(made)}; seed"
        f" {made.request.seed}",
        _data(made),
    )


def _attainment(made: DayMade) -> str:

    percentiles = sorted({model.sla.percentile for model in made.models.values()})
    return lines_over_day(
        made.plan.edges_s,
        {name: made.attainment[:, at] for at, name in enumerate(made.models)},
        "queries in time",
        "SLA attainment",
        limits={f"p{percentile:g}": percentile / 100 for percentile in percentiles},
        text=lambda share: f"{share:.0%}",
    )


def _utilisation(made: DayMade) -> str:

    servers = made.plan.counts.sum(axis=1)
    used = {kind: made.utilisation[:, at] for at, kind in enumerate(made.plan.server_types) if servers[:, at].any()}
    return lines_over_day(
        made.plan.edges_s, used, "utilisation", "Utilisation by server type", text=lambda share: f"{share:.0%}"
    )


def _models(made: DayMade) -> Table:
    load, attainment, missed = made.load_qps, made.attainment, made.missed
    rows: list[list[Cell]] = []
    for at, (name, model) in enumerate(made.models.items()):
        loaded = int(np.count_nonzero(load[:, at]))
        tail_ms = made.tail_ms[:, at]
        rows.append(
            [
                name,
                f"p{model.sla.percentile:g} in {model.sla.latency_ms:g} ms",
                float(load[:, at].max()),
                _share(float(made.mean_attainment[at])),
                _share(_least(attainment[:, at])),
                _milliseconds(float(tail_ms[~np.isnan(tail_ms)].max())) if loaded else "",
                f"{int(missed[:, at].sum()):,} of {loaded:,}",
                format_number(float(_load_share(made)[:, at].max())) if loaded else "",
            ]
        )
    columns: list[Column | str] = [
        "model", "SLA", Column("peak qps", right=True, spare=1), "in time", "least", "worst tail", "missed",
        Column("load/capacity", right=True, spare=2),
    ]  # fmt: skip
    return Table("", columns, rows)


def _types(made: DayMade) -> Table:
    servers = made.plan.counts.sum(axis=1)
    rows: list[list[Cell]] = [
        [
            kind,
            int(servers[:, at].max()),
            f"{float(servers[:, at].mean()):,.1f}",
            _share(_mean_used(made, at)),
            _share(float(np.nanmax(made.utilisation[:, at]))),
        ]
        for at, kind in enumerate(made.plan.server_types)
        if servers[:, at].any()
    ]
    return Table("", ["server type", "most servers", "mean servers", "mean utilisation", "most"], rows)


def _missed(made: DayMade) -> Table:
    """The worst intervals of all models."""
    plan, attainment = made.plan, made.attainment
    places = sorted(np.argwhere(made.missed).tolist(), key=lambda place: float(attainment[place[0], place[1]]))
    rows: list[list[Cell]] = [
        [
            _clock(interval * plan.interval_s),
            plan.models[model],
            float(made.load_qps[interval, model]),
            float(plan.capacity_qps[interval, model]),
            format_number(float(_load_share(made)[interval, model])),
            _share(float(attainment[interval, model])),
            _milliseconds(float(made.tail_ms[interval, model])),
            f"{late:,}" if (late := _late(made, interval, model)) else "",
        ]
        for interval, model in places[:_MOST_MISSED]
    ]
    columns: list[Column | str] = [
        "missed at", "model", "load", "capacity", "load/capacity", "in time", "tail",
        Column("late servers", right=True, spare=1),
    ]  # fmt: skip
    caption = "The worst first, at hours and minutes from the start. The load is what was simulated."
    return Table("", columns, rows, caption=caption)


def _verdict(made: DayMade) -> str:
    missed, loaded = int(made.missed.sum()), int(np.count_nonzero(made.load_qps))
    times = "" if made.request.load_factor == 1 else f" times {made.request.load_factor:g}"
    runs = "" if made.request.seeds == 1 else f", {made.request.seeds} times"
    whole = "" if arrival_process(made.request.arrivals).period_s is None else ", or whole periods of them,"
    return (
        f"The SLA target is met in {loaded - missed:,} of {loaded:,} intervals of a model ({1 - missed / loaded:.1%})."
        f" Planned load{times}, {made.policy.kind}, {made.request.arrivals} arrivals, {made.queries:,} queries{whole}"
        f" for each model in each of {len(made.plan.counts):,} intervals{runs}."
    )


def _notes(made: DayMade) -> list[str]:
    """What the figures do not show."""
    told = [remark for model in made.models.values() for remark in model.times.remarks]
    told += arrival_remarks(arrival_process(made.request.arrivals))
    more = int(made.missed.sum()) - _MOST_MISSED
    if more > 0:
        told.append(f"{more:,} more intervals miss their SLA target: --json has all of them.")
    short = made.sampled_slas
    if (short < _LEAST_SLAS).any():
        at = int(short.argmin())
        wanted = math.ceil(made.queries * _LEAST_SLAS / float(short[at]) / 1000) * 1000
        lasting = format_number(float(short[at]))
        told.append(
            f"At the peak {made.queries:,} queries of {made.plan.models[at]} last {lasting} times its SLA, so that a"
            f" slight overload does not show: for {_LEAST_SLAS} times give --queries {wanted}."
        )
    if made.plan.late.any():
        told.append(
            f"{int(made.plan.late.sum()):,} servers are late: they join {format_number(made.plan.set_up_s)} s after"
            " their interval begins, and what waits for them until then counts."
        )
    return told


def _key_numbers(made: DayMade) -> list[KeyNumber]:
    missed, loaded = int(made.missed.sum()), int(np.count_nonzero(made.load_qps))
    load = made.load_qps.sum(axis=0)
    overall = float(np.nansum(made.mean_attainment * load) / load.sum())
    worst = int(np.nanargmin(made.mean_attainment))
    shown = [
        KeyNumber(
            "intervals that meet the SLA target", f"{1 - missed / loaded:.1%}", "", f"{missed:,} missed", not missed
        ),
        KeyNumber("queries in time", f"{overall:.2%}"),
        KeyNumber("worst model", _share(float(made.mean_attainment[worst])), "", made.plan.models[worst]),
    ]
    used = {
        kind: _mean_used(made, at) for at, kind in enumerate(made.plan.server_types) if made.plan.counts[:, :, at].any()
    }
    if used:
        busiest = max(used, key=lambda kind: used[kind])
        shown.append(KeyNumber("busiest server type", f"{used[busiest]:.1%}", "", busiest))
    return shown


def _late(made: DayMade, interval: int, model: int) -> int:
    """How many servers of a model are not set up when an interval begins."""
    return sum(int(servers.sum()) for _, servers in made.plan.joining(interval, model))


def _load_share(made: DayMade) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Load over capacity, `[intervals, models]`; infinite without servers."""
    capacity = made.plan.capacity_qps
    none = np.where(made.load_qps > 0, np.inf, 0.0)
    return np.asarray(np.divide(made.load_qps, capacity, out=none, where=capacity > 0))


def _mean_used(made: DayMade, kind: int) -> float:
    """Utilisation of a type over the day, each server counting alike."""
    servers = made.plan.counts.sum(axis=1)[:, kind]
    return float(np.nansum(made.utilisation[:, kind] * servers) / servers.sum())


def _least(attainment: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    known = attainment[~np.isnan(attainment)]
    return float(known.min()) if known.size else math.nan


def _files(made: DayMade) -> str:
    return next(iter(made.models.values())).times.named_files


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2%}"


def _milliseconds(value: float) -> str:
    return f"{format_number(value)} ms" if math.isfinite(value) else "not answered"


def _clock(seconds: float) -> str:
    """Hours and minutes, and seconds where there are some, since the day's start."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:02}:{rest // 60:02}" + (f":{rest % 60:02}" if rest % 60 else "")
