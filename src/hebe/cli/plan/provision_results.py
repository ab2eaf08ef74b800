"""What `hebe plan provision` shows and writes: a document, and the plan file's content."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from hebe._version import __version__
from hebe.capacity.files.plan_content import relative_to_plan
from hebe.capacity.files.provisioning_plan import PLAN_KIND, PLAN_VERSION
from hebe.capacity.provision_planner import ProvisionPlanMade
from hebe.planning.provisioning.day import DayPlan
from hebe.planning.provisioning.program import Ints
from hebe.planning.provisioning.provisioning import FleetOptions, Objective
from hebe.report.document import Cell, Document, Heading, KeyNumber, KeyNumbers, Picture, Table, Text, Tone, notes
from hebe.report.plots.day import lines_over_day, stacked_over_day
from hebe.report.tables import format_number


def _data(made: ProvisionPlanMade) -> dict[str, Any]:
    """The plan's figures as plain data."""
    day = made.day
    return {
        "objective": str(day.objective),
        "interval_s": day.interval_s,
        "intervals": len(day.counts),
        **_figures(day),
        "gap": _proven_gap(day),
        "over_provision_rates": dict(zip(made.loads.models, made.rates.tolist(), strict=True)),
        "covered": dict(zip(made.loads.models, made.covered.tolist(), strict=True)),
        "remarks": list(made.remarks),
        "baselines": {
            name: {"error": other} if isinstance(other, str) else {**_figures(other), "saved": _saved(day, other)}
            for name, other in made.baselines.items()
        },
    }


def _figures(day: DayPlan) -> dict[str, Any]:
    power, servers, price = day.power_watts, day.servers, day.price_per_hour
    return {
        "power_watts": {"peak": float(power.max()), "mean": float(power.mean())},
        "servers": {"peak": int(servers.max()), "mean": float(servers.mean())},
        "price_per_hour": None if price is None else {"peak": float(price.max()), "mean": float(price.mean())},
        "energy_kwh": day.energy_kwh,
        "started": int(day.started.sum()),
        "late": int(day.late.sum()),
    }


def _proven_gap(day: DayPlan) -> float | None:
    """By which share the day may be above the least possible at most, if anything is proven."""
    return day.gap if day.gap is not None and math.isfinite(day.gap) else None


def _saved(day: DayPlan, other: DayPlan) -> dict[str, dict[str, float]]:
    power, capacity = day.power_saving_over(other), day.capacity_saving_over(other)
    return {
        "power_watts": {"peak": power.peak, "mean": power.mean},
        "servers": {"peak": capacity.peak, "mean": capacity.mean},
    }


def plan_content(made: ProvisionPlanMade, path: Path) -> dict[str, Any]:
    """The plan file at `path`: what to start when, in which configuration, and what is predicted of it."""
    day, options, late = made.day, made.day.options, made.day.late
    predicted = {
        **_figures(day),
        "gap": _proven_gap(day),
        "covered": dict(zip(made.loads.models, made.covered.tolist(), strict=True)),
    }
    content = {
        "kind": PLAN_KIND,
        "version": PLAN_VERSION,
        "written_by": f"hebe {__version__}",
        "objective": str(day.objective),
        "start": made.loads.start,
        "interval_s": day.interval_s,
        "set_up_s": day.set_up_s,
        "over_provision_rates": dict(zip(options.models, made.rates.tolist(), strict=True)),
        "made_from": {name: relative_to_plan(file, path) for name, file in made.request.files.items()},
        "predicted": predicted,
        "server": [
            {
                "server_type": kind,
                "available": int(options.available[at]),
                "price_per_hour": None if options.price_per_hour is None else float(options.price_per_hour[at]),
            }
            for at, kind in enumerate(options.server_types)
        ],
        "efficiency": [one.to_dict() for one in made.tuples],
        "interval": [
            {
                "start_s": at * day.interval_s,
                "load_qps": dict(zip(options.models, day.demand_qps[at].tolist(), strict=True)),
                "capacity_qps": dict(zip(options.models, day.capacity_qps[at].tolist(), strict=True)),
                "power_watts": float(day.power_watts[at]),
                "price_per_hour": None if day.price_per_hour is None else float(day.price_per_hour[at]),
                "servers": _servers(options, day.counts[at]),
                # of them, those that are set up only when the interval begins, since others serve on them until then
                "late": _without_empty(_servers(options, late[at])),
            }
            for at in range(len(day.counts))
        ],
    }
    written: dict[str, Any] = _without_none(content)
    return written


def _servers(options: FleetOptions, counts: Ints) -> dict[str, dict[str, int]]:
    """Servers by model and type, of counts `[models, types]`."""
    return {
        model: {kind: int(count) for kind, count in zip(options.server_types, of_model, strict=True) if count}
        for model, of_model in zip(options.models, counts, strict=True)
    }


def _without_empty(servers: dict[str, dict[str, int]]) -> dict[str, dict[str, int]] | None:
    return {model: of_model for model, of_model in servers.items() if of_model} or None


def _without_none(value: Any) -> Any:
    """TOML has no word for what is not known: it is left out."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def document(made: ProvisionPlanMade) -> Document:
    """The plan: key numbers, servers by type, power and price beside the baselines, load and capacity."""
    day = made.day
    hours = made.edges_s[-1] / 3600
    by_type = {kind: day.servers_by_type[:, at] for at, kind in enumerate(day.options.server_types)}
    power_kw = {name: other.power_watts / 1e3 for name, other in made.days.items()}
    prices = {name: other.price_per_hour for name, other in made.days.items() if other.price_per_hour is not None}
    loads = {model: day.demand_qps[:, at] for at, model in enumerate(day.options.models)}
    price = [Picture(lambda: lines_over_day(made.edges_s, prices, "price per hour", "Price"))]
    return Document(
        "Provisioning plan",
        [
            KeyNumbers(_key_numbers(made)),
            Heading("Servers"),
            Picture(
                lambda: stacked_over_day(made.edges_s, by_type, "servers", "Servers by type"),
                "How many servers of each type run in each interval.",
            ),
            _types(made),
            Heading("Power"),
            Picture(
                lambda: lines_over_day(made.edges_s, power_kw, "provisioned power (kW)", "Provisioned power"),
                "Priority-aware, greedy and oblivious are the schedulers that Hercules is compared with in its paper."
                if len(power_kw) > 1
                else "",
            ),
            _schedulers(made),
            *(price if day.price_per_hour is not None else []),
            Heading("Load"),
            Picture(
                lambda: stacked_over_day(made.edges_s, loads, "queries/s", "Load by model"),
                "At the start of each interval.",
            ),
            _models(made),
            *notes([_verdict(made), *_notes(made)]),
        ],
        f"{len(day.options.models)} models on {len(day.options.server_types)} server types, planned anew every "
        f"{format_number(day.interval_s)} s for {format_number(hours)} h.",
        f"hebe {__version__}; loads from {made.request.loads.name}, starting at {made.loads.start}",
        _data(made),
    )


def _types(made: ProvisionPlanMade) -> Table:
    """Server types that are used: how many there are and how many are wanted at most and on average."""
    day, by_type = made.day, made.day.servers_by_type
    rows: list[list[Cell]] = [
        [
            kind,
            int(day.options.available[at]),
            int(by_type[:, at].max()),
            _average(by_type[:, at]),
            _share((by_type[:, at] == day.options.available[at]).mean()) if day.options.available[at] else "",
        ]
        for at, kind in enumerate(day.options.server_types)
        if by_type[:, at].any()
    ]
    return Table(
        "",
        ["server type", "available", "most used", "mean used", "exhausted"],
        rows,
        caption="Exhausted: in which share of the intervals all servers of the type are taken.",
    )


def _models(made: ProvisionPlanMade) -> Table:
    day = made.day
    by_model = day.counts.sum(axis=2)
    rows: list[list[Cell]] = [
        [
            model,
            float(made.loads.qps[:, at].max()),
            float(made.rates[at]),
            int(by_model[:, at].max()),
            _average(by_model[:, at]),
            _share(made.covered[at]),
        ]
        for at, model in enumerate(day.options.models)
    ]
    return Table(
        "",
        ["model", "peak load (qps)", "over-provision", "most servers", "mean servers", "load covered"],
        rows,
        caption="Load covered: for which share of the time servers that are set up can serve the load.",
    )


def _schedulers(made: ProvisionPlanMade) -> Table:
    """The plan and the baselines: power, servers, price, servers started, and what the plan saves."""
    priced = made.day.price_per_hour is not None
    rows: list[list[Cell]] = []
    for name, day in made.days.items():
        saving = made.day.power_saving_over(day)
        row: list[Cell] = [name, float(day.power_watts.max()) / 1e3, float(day.power_watts.mean()) / 1e3]
        row += [int(day.servers.max()), _average(day.servers)]
        row += [float(day.price_per_hour.mean())] if day.price_per_hour is not None else []
        row += [int(day.started.sum()), int(day.late.sum())]
        row += ["", ""] if day is made.day else [_share(saving.peak), _share(saving.mean)]
        rows.append(row)
    columns = [
        "", "peak kW", "mean kW", "peak servers", "mean servers", *(["mean price/h"] if priced else []), "started",
        "late", "saved at peak", "saved on average",
    ]  # fmt: skip
    caption = (
        "Late: of those started, the ones that are set up only when their interval begins. Saved: of the provisioned"
        " power, at each one's peak and on average."
    )
    return Table("", columns, rows, caption=caption)


def _verdict(made: ProvisionPlanMade) -> Text:
    gap = _proven_gap(made.day)
    least = "power" if made.day.objective is Objective.POWER else "price"
    if gap is None:
        return Text(
            f"How far the mean {least}, set-ups included, is above the least possible is not proven: each interval"
            " alone could do for nothing."
        )
    return Text(f"The mean {least}, set-ups included, is at most {gap:.2%} above the least possible.")


def _notes(made: ProvisionPlanMade) -> list[Text]:
    """Why a baseline is missing, and what the plan rests on that was not measured."""
    told = [Text(f"{name}: {day}", Tone.WARNING) for name, day in made.baselines.items() if isinstance(day, str)]
    told += [Text(remark, Tone.WARNING) for remark in made.remarks]
    late = made.day.late
    if late.any():
        begins = int(late.any(axis=(1, 2)).sum())
        told.append(
            Text(
                f"{int(late.sum()):,} servers, in {begins:,} intervals, can only be set up when the interval begins,"
                f" since another model is served on them until then: they are {format_number(made.day.set_up_s)} s"
                " late. A load that the others do not carry meanwhile is not counted as covered.",
                Tone.WARNING,
            )
        )
    estimated = sum(one.estimated for one in made.tuples)
    if estimated:
        told.append(
            Text(f"{estimated} of {len(made.tuples)} efficiency tuples are estimated, not measured.", Tone.WARNING)
        )
    return told


def _average(servers: Ints) -> str:
    """Mean servers, of which thousandths mean nothing."""
    return f"{float(servers.mean()):,.1f}"


def _share(value: float | np.floating[Any]) -> str:
    return f"{100 * float(value):.1f}%"


def _key_numbers(made: ProvisionPlanMade) -> list[KeyNumber]:
    day = made.day
    shown = [
        KeyNumber("peak power", format_number(float(day.power_watts.max()) / 1e3), "kW"),
        KeyNumber("mean power", format_number(float(day.power_watts.mean()) / 1e3), "kW"),
        KeyNumber("servers at peak", format_number(int(day.servers.max()))),
    ]
    if day.price_per_hour is not None:
        shown.append(KeyNumber("mean price", format_number(float(day.price_per_hour.mean())), "per hour"))
    greedy = made.baselines.get("greedy")
    if isinstance(greedy, DayPlan):
        saving = day.power_saving_over(greedy)
        shown.append(KeyNumber("power saved over greedy", _share(saving.mean), "", f"at peak {_share(saving.peak)}"))
    worst = float(made.covered.min())
    shown.append(KeyNumber("load covered", _share(worst), "", "of all times, of the model that is covered least"))
    gap = _proven_gap(day)
    proven = ("unknown", "", "nothing is proven") if gap is None else (f"{gap:.2%}", "", "at most: proven")
    shown.append(KeyNumber("above the optimum", *proven))
    return shown
