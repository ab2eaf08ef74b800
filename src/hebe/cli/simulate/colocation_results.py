"""What `hebe simulate` shows of a plan of `hebe plan colocate`."""

from __future__ import annotations

from functools import partial
from typing import Any

from hebe._version import __version__
from hebe.capacity.colocation_simulation import ColocationSimulated, ModelPart, ModelSimulated
from hebe.capacity.files.colocation_plan import workers_words
from hebe.capacity.pool_simulation import Estimate
from hebe.capacity.run_length import in_words
from hebe.report.document import Block, Cell, Document, Heading, KeyNumber, KeyNumbers, Picture, Table, Text, Tone
from hebe.report.plots.latency import latency_tail
from hebe.report.plots.pool import tail_against_bound, utilisation_bars
from hebe.report.tables import format_number
from hebe.simulation.fleet.query_stream import arrival_process
from hebe.workload.arrivals import arrival_remarks

_MOST_DRAWN, _MOST_TAILS = 30, 4
"""Models in a picture, and those with one of their own."""

_FITTING = (0.85, 1.5)
"""How far service times stretch alone, where they go with the throughput: what was measured also waited for more than
workers, and queues are estimated."""


def _data(made: ColocationSimulated) -> dict[str, Any]:
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


def _notes(made: ColocationSimulated) -> list[str]:
    """What the figures do not show: of service times, whether they fit the profiles, and of the arrivals."""
    told = [line for model in made.models for line in (*model.known.times.remarks, _unfit(model)) if line]
    return [*told, *arrival_remarks(arrival_process(made.request.arrivals))]


def _models(made: ColocationSimulated) -> Table:
    rows: list[list[Cell]] = []
    for model in made.models:
        sla = model.known.sla
        rows.append(
            [
                model.model,
                model.load_qps,
                f"{model.load_qps / model.capacity_qps:.0%}",
                f"p{sla.percentile:g} {format_number(sla.latency_ms)} ms",
                f"{format_number(model.tail_ms.value)} ms",
                f"{model.attainment.value:.2%}",
                _held(model),
            ]
        )
    columns = ["model", "queries/s", "of plan", "SLA", "tail latency", "in time", "SLA met"]
    caption = "Of plan: the load over what the plan predicts that the servers can do. Means of all runs."
    return Table("", columns, rows, caption=caption)


def _held(model: ModelSimulated) -> str:
    if model.held in (0, len(model.runs)):
        return "met" if model.held else "missed"
    return f"{model.held} of {len(model.runs)}"


def _groups(made: ColocationSimulated) -> Table:
    rows: list[list[Cell]] = []
    for number, group in enumerate(made.plan.groups, 1):
        for model, part in _of_group(made, number):
            tenant = part.tenant
            rows.append(
                [
                    str(number),
                    group.servers,
                    model.model,
                    f"{workers_words(tenant)} / {tenant.cache_ways}",
                    tenant.qps,
                    f"{part.slowdown:.2f}",
                    f"{model.utilisation[number].value:.0%}",
                ]
            )
    columns = ["group", "servers", "model", "workers / ways", "predicted qps", "slowdown", "busy"]
    caption = (
        "What runs on how many servers, the queries/s predicted of one, and how much longer a query takes than alone."
    )
    return Table("", columns, rows, caption=caption)


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


def document(made: ColocationSimulated) -> Document:
    """The runs: models against their targets, what runs on the servers and how busy it is, and the verdict."""
    files = dict.fromkeys(model.known.times.named_files for model in made.models)
    nearest = sorted(made.models, key=lambda model: -model.tail_ms.value / model.known.sla.latency_ms)
    least = min(made.models, key=lambda model: model.attainment.value)
    kept = len(made.models) - len(_missing(made))
    blocks: list[Block] = [
        KeyNumbers(
            [
                KeyNumber("models in their SLA", f"{kept} of {len(made.models)}", "", "in every run", made.all_held),
                KeyNumber("least SLA attainment", f"{least.attainment.value:.2%}", "", least.model),
                KeyNumber("servers", format_number(made.plan.servers)),
                KeyNumber("load", format_number(made.request.load_factor), "x the demand"),
            ]
        ),
        Heading("Models"),
        _models(made),
        Picture(
            partial(_tails_over_bounds, nearest[:_MOST_DRAWN]),
            "The latency at the SLA's percentile over its bound, a dot a run; at most 1 is in time.",
        ),
        Heading("Servers"),
        _groups(made),
        Picture(
            partial(_busiest, made),
            "The share of their time that a model's workers work on a group's servers, until the last answer.",
        ),
        Heading("Latency"),
        *(
            Picture(partial(_tail, model), f"{model.model} at {format_number(model.load_qps)} queries/s.")
            for model in nearest[:_MOST_TAILS]
        ),
    ]
    if len(nearest) > _MOST_TAILS:
        blocks.append(f"The {_MOST_TAILS} models nearest to their bounds, or beyond them, of {len(nearest)}.")
    verdict = _verdict(made)
    return Document(
        "Co-location plan, simulated",
        [
            *blocks,
            Heading("Notes"),
            Text(verdict, Tone.PLAIN if made.all_held else Tone.WARNING, on_page=False),
            *(Text(note, Tone.WARNING) for note in _notes(made)),
            Text(_runs(made)),
        ],
        verdict,
        f"hebe {__version__}; plan {made.request.plan}; service times from {', '.join(files)}; seed"
        f" {made.request.seed}",
        _data(made),
    )


def _tails_over_bounds(models: list[ModelSimulated]) -> str:

    return tail_against_bound(
        {model.model: [tail_ms / model.known.sla.latency_ms for tail_ms in model.tail_ms.by_run] for model in models}
    )


def _busiest(made: ColocationSimulated) -> str:

    busy = {
        f"{model.model}, group {part.group}": model.utilisation[part.group].value
        for model in made.models
        for part in model.parts
    }
    return utilisation_bars(dict(sorted(busy.items(), key=lambda entry: -entry[1])[:_MOST_DRAWN]))


def _tail(model: ModelSimulated) -> str:

    series = {f"run {number}": run.latency_s * 1e3 for number, run in enumerate(model.runs[:6], 1)}
    return latency_tail(series, model.known.sla, f"{model.model}: latency by percentile")
