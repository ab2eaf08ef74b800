"""What `hebe simulate` shows of a plan of `hebe plan colocate`: tables, plain data, a page with pictures."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

import hebe
from hebe.capacity.colocation_simulation import ColocationSimulated, ModelPart, ModelSimulated
from hebe.capacity.files.colocation_plan import workers_words
from hebe.capacity.pool_simulation import Estimate
from hebe.capacity.run_length import in_words
from hebe.report.fitting_table import Column, FittingTable
from hebe.report.html import KeyNumber, Page
from hebe.report.plots import latency_tail
from hebe.report.pool_plots import utilisation_bars
from hebe.report.sla_plots import tail_against_bound
from hebe.report.tables import format_number
from hebe.simulation.query_stream import arrival_process
from hebe.workload.arrivals import arrival_remarks

_MOST_DRAWN, _MOST_TAILS = 30, 4
"""Models in a picture, and those with one of their own."""

_FITTING = (0.85, 1.5)
"""How far service times stretch alone, where they go with the throughput: what was measured also waited for more than
workers, and queues are estimated."""

Rows = tuple[list[str], list[list[str]]]


def summary(made: ColocationSimulated) -> dict[str, Any]:
    """The results as plain data."""
    request = made.request
    return {
        "kind": "colocation",
        "plan": str(request.plan),
        "servers": made.plan.servers,
        "load_factor": request.load_factor,
        "arrivals": request.arrivals,
        "seeds": request.seeds,
        "seed": request.seed,
        "all_held": made.all_held,
        "models": [_model(model) for model in made.models],
        "groups": [
            {
                "servers": group.servers,
                "tenants": [_tenant(model, part) for model, part in _of_group(made, number)],
            }
            for number, group in enumerate(made.plan.groups, 1)
        ],
    }


def _model(model: ModelSimulated) -> dict[str, Any]:
    return {
        "model": model.model,
        "sla_ms": model.known.sla.latency_ms,
        "percentile": model.known.sla.percentile,
        "sizes": model.known.sizes,
        "policy": model.case.policy.to_dict(),
        "queries": round(sum(model.queries) / len(model.queries)),
        "demand_qps": model.demand_qps,
        "load_qps": model.load_qps,
        "capacity_qps": model.capacity_qps,
        "tail_ms": _plain(model.tail_ms),
        "attainment": _plain(model.attainment),
        "throughput_qps": _plain(model.throughput_qps),
        "runs_held": model.held,
        "alone": {"workers": model.alone.workers, "qps": model.alone.qps, "stretch": model.stretch_alone},
    }


def _tenant(model: ModelSimulated, part: ModelPart) -> dict[str, Any]:
    tenant = part.tenant
    return {
        "model": tenant.model,
        "workers": tenant.workers,
        "cores_per_worker": tenant.cores_per_worker,
        "cache_ways": tenant.cache_ways,
        "predicted_qps": tenant.qps,
        "slowdown": part.slowdown,
        "utilisation": _plain(model.utilisation[part.group]),
    }


def _plain(value: Estimate) -> dict[str, float | None]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _of_group(made: ColocationSimulated, number: int) -> list[tuple[ModelSimulated, ModelPart]]:
    """The models that are served on a group's servers."""
    return [(model, part) for model in made.models for part in model.parts if part.group == number]


def tables(made: ColocationSimulated) -> list[RenderableType]:
    """For the terminal: models, then what runs on the servers."""
    shown: list[RenderableType] = []
    for words, (headings, rows) in (({0}, _model_rows(made)), ({0, 2}, _group_rows(made))):
        table = FittingTable(
            *(Column(name, right=at not in words, folds=at in words) for at, name in enumerate(headings))
        )
        for row in rows:
            table.add_row(Text(row[0], "bold"), *row[1:])
        shown += [table, Text()]
    notes = [Text(told, "yellow") for told in _notes(made)]
    return [*shown, Text(_verdict(made), "" if made.all_held else "yellow"), *notes, Text(_runs(made))]


def _notes(made: ColocationSimulated) -> list[str]:
    """What the figures do not show: of service times, whether they fit the profiles, and of the arrivals."""
    notes = [told for model in made.models for told in (*model.known.times.remarks, _unfit(model)) if told]
    return [*notes, *arrival_remarks(arrival_process(made.request.arrivals))]


def _model_rows(made: ColocationSimulated) -> Rows:
    rows = []
    for model in made.models:
        sla = model.known.sla
        rows.append(
            [
                model.model,
                format_number(model.load_qps),
                f"{model.load_qps / model.capacity_qps:.0%}",
                f"p{sla.percentile:g} {format_number(sla.latency_ms)} ms",
                f"{format_number(model.tail_ms.value)} ms",
                f"{model.attainment.value:.2%}",
                _held(model),
            ]
        )
    return ["model", "queries/s", "of plan", "SLA", "tail latency", "in time", "SLA met"], rows


def _held(model: ModelSimulated) -> str:
    if model.held in (0, len(model.runs)):
        return "met" if model.held else "missed"
    return f"{model.held} of {len(model.runs)}"


def _group_rows(made: ColocationSimulated) -> Rows:
    rows = []
    for number, group in enumerate(made.plan.groups, 1):
        for model, part in _of_group(made, number):
            tenant = part.tenant
            rows.append(
                [
                    str(number),
                    format_number(group.servers),
                    model.model,
                    f"{workers_words(tenant)} / {tenant.cache_ways}",
                    format_number(tenant.qps),
                    f"{part.slowdown:.2f}",
                    f"{model.utilisation[number].value:.0%}",
                ]
            )
    return ["group", "servers", "model", "workers / ways", "predicted qps", "slowdown", "busy"], rows


def _missing(made: ColocationSimulated) -> list[ModelSimulated]:
    return [model for model in made.models if model.held < len(model.runs)]


def _verdict(made: ColocationSimulated) -> str:
    """Whether the plan holds."""
    load = "the planned demand" if made.request.load_factor == 1 else f"{made.request.load_factor:g} x the demand"
    if made.all_held:
        every = "all models keep" if len(made.models) > 1 else f"{made.models[0].model} keeps"
        return f"At {load}, {every} the SLA target on {made.plan.servers:,} servers."
    missing = ", ".join(model.model for model in _missing(made))
    advice = ": plan with a larger --over-provision" if not any(map(_unfit, made.models)) else ""
    return f"At {load}, the SLA target is not kept by {missing}{advice}."


def _unfit(model: ModelSimulated) -> str:
    """That the service times cannot be those that the plan's throughputs were measured with, if that shows."""
    stretch = model.stretch_alone
    if _FITTING[0] <= stretch <= _FITTING[1]:
        return ""
    workers = f"{model.alone.workers} worker{'s' if model.alone.workers > 1 else ''}"
    sla = model.known.profiled_sla
    at_sla = "this SLA" if sla is None else f"p{sla.percentile:g} within {sla.latency_ms:g} ms, as profiled,"
    measured = f"the {format_number(model.alone.qps)} queries/s that {workers} alone served by its scalability profile"
    if stretch < 1:
        return (
            f"{model.model}: {measured} cannot be with these service times, at {at_sla} and these query sizes, only"
            f" with {stretch:.2f} x the service times: see which of them is not as it was measured."
        )
    return (
        f"{model.model}: {measured} could be with {stretch:.2f} x these service times, at {at_sla} and these"
        " query sizes: if one of them is not as it was measured, the plan is not as good as it seems here."
    )


def _runs(made: ColocationSimulated) -> str:
    request, queries = made.request, [sent for model in made.models for sent in model.queries]
    runs = f"{request.seeds} run{'s' if request.seeds > 1 else ''} of {in_words(queries)} queries for each model"
    policies = ", ".join(dict.fromkeys(model.case.policy.kind for model in made.models))
    return f"{runs}, {request.arrivals} arrivals, {policies}. Slowdown: predicted, over the times measured alone."


def page(made: ColocationSimulated) -> Page:
    """The page, not yet written: the verdict, models against their targets, how busy their workers are."""
    files = dict.fromkeys(model.known.times.named_files for model in made.models)
    drawn = Page(
        "Co-location plan, simulated",
        _verdict(made),
        f"hebe {hebe.__version__}; plan {made.request.plan}; service times from {', '.join(files)}; seed"
        f" {made.request.seed}",
    )
    nearest = sorted(made.models, key=lambda model: -model.tail_ms.value / model.known.sla.latency_ms)
    least = min(made.models, key=lambda model: model.attainment.value)
    kept = len(made.models) - len(_missing(made))
    drawn.key_numbers(
        [
            KeyNumber("models in their SLA", f"{kept} of {len(made.models)}", "", "in every run", made.all_held),
            KeyNumber("least SLA attainment", f"{least.attainment.value:.2%}", "", least.model),
            KeyNumber("servers", format_number(made.plan.servers)),
            KeyNumber("load", format_number(made.request.load_factor), "x the demand"),
        ]
    )
    for told in _notes(made):
        drawn.paragraph(told)
    drawn.paragraph(_runs(made))
    drawn.heading("Models")
    drawn.table(
        *_model_rows(made), "Of plan: the load over what the plan predicts that the servers can do. Means of all runs."
    )
    drawn.plot(
        tail_against_bound(
            {
                model.model: [tail_ms / model.known.sla.latency_ms for tail_ms in model.tail_ms.by_run]
                for model in nearest[:_MOST_DRAWN]
            }
        ),
        "The latency at the SLA's percentile over its bound, a dot a run; at most 1 is in time.",
    )
    drawn.heading("Servers")
    drawn.table(
        *_group_rows(made),
        "What runs on how many servers, the queries/s predicted of one, and how much longer a query takes than alone.",
    )
    busy = {
        f"{model.model}, group {part.group}": model.utilisation[part.group].value
        for model in made.models
        for part in model.parts
    }
    busiest = sorted(busy.items(), key=lambda entry: -entry[1])[:_MOST_DRAWN]
    drawn.plot(
        utilisation_bars(dict(busiest)),
        "The share of their time that a model's workers work on a group's servers, until the last answer.",
    )
    drawn.heading("Latency")
    for model in nearest[:_MOST_TAILS]:
        series = {f"run {number}": run.latency_s * 1e3 for number, run in enumerate(model.runs[:6], 1)}
        drawn.plot(
            latency_tail(series, model.known.sla, f"{model.model}: latency by percentile"),
            f"{model.model} at {format_number(model.load_qps)} queries/s.",
        )
    if len(nearest) > _MOST_TAILS:
        drawn.paragraph(f"The {_MOST_TAILS} models nearest to their bounds, or beyond them, of {len(nearest)}.")
    return drawn
