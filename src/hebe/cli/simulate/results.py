"""What `hebe simulate` shows of a pool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hebe._version import __version__
from hebe.capacity.files.pool_plan import pool_words
from hebe.capacity.pool_simulation import Estimate, SimulationMade
from hebe.capacity.run_length import in_words
from hebe.report.document import Block, Document, Heading, KeyNumber, KeyNumbers, Picture, Table, Text, Tone
from hebe.report.plots.latency import latency_histogram, latency_tail
from hebe.report.plots.pool import utilisation_bars
from hebe.report.tables import Column, format_number

_PERCENTILES = (50.0, 95.0, 99.0, 99.9)


def document(made: SimulationMade) -> Document:
    """The runs: key numbers, all measures, the latency distribution, utilisation."""
    compared = [line for line in (_prediction(made), _shifted(made)) if line]
    blocks: list[Block] = [
        KeyNumbers(_key_numbers(made)),
        Heading("Measures"),
        Table("", ["", Column("value", right=True), Column("95% interval", right=True, spare=1)], _rows(made)),
        Text(_verdict(made), on_page=False),
        *(Text(line) for line in compared),
        *(Text(remark, Tone.WARNING) for remark in made.remarks),
    ]
    if made.runs:
        blocks += _pictures(made)
    return Document(
        "Simulation",
        blocks,
        _verdict(made),
        f"hebe {__version__}; service times from {made.times.named_files}; query sizes {made.stream.sizes}, seed"
        f" {made.request.seed}",
        _data(made),
    )


def _pictures(made: SimulationMade) -> list[Block]:
    at = (
        "at each run's largest rate"
        if made.capacity is not None
        else f"at {format_number(made.runs[0].rate_qps)} queries/s"
    )
    return [
        Heading("Latency"),
        Picture(partial(_histogram, made), f"All runs together, {at}."),
        Picture(partial(_tails, made), "Each run by itself: how far apart they lie is chance."),
        Heading("Utilisation"),
        Picture(
            partial(_utilisation, made),
            "The share of their time that the servers of each type work, until the last answer.",
        ),
    ]


def _histogram(made: SimulationMade) -> str:

    return latency_histogram(made.latency_ms, made.sla)


def _tails(made: SimulationMade) -> str:

    return latency_tail({f"run {number}": run.latency_s * 1e3 for number, run in enumerate(made.runs[:6], 1)}, made.sla)


def _utilisation(made: SimulationMade) -> str:

    used = zip(made.utilisation.items(), made.counts, strict=True)
    return utilisation_bars({f"{count} x {name}": share.value for (name, share), count in used})


def _data(made: SimulationMade) -> dict[str, Any]:
    """The results as plain data."""
    results: dict[str, Any] = {
        "model": made.times.model,
        "pool": dict(zip(made.times.table.types, made.counts, strict=True)),
        "policy": made.policy.to_dict(),
        "partitions": made.partitions,
        "sla_ms": made.sla.latency_ms,
        "percentile": made.sla.percentile,
        "sizes": made.stream.sizes,
        "arrivals": made.stream.arrivals,
        "queries": round(sum(made.queries) / len(made.queries)),
        "seeds": made.request.seeds,
        "seed": made.request.seed,
        "rate_qps": made.request.rate_qps,
        "find_qps": None if made.capacity is None else _plain(made.capacity),
    }
    if made.remarks:
        results["remarks"] = made.remarks
    if made.shift is not None:
        results["sizes_shifted"] = {"after_queries": made.shift.queries, "distance": made.shift.distance}
    if made.runs:
        results["latency_ms"] = {f"p{at:g}": _plain(made.percentile_ms(at)) for at in _percentiles(made)}
        results["attainment"] = _plain(made.attainment)
        results["throughput_qps"] = _plain(made.throughput_qps)
        results["utilisation"] = {name: share.value for name, share in made.utilisation.items()}
    return results


def _plain(value: Estimate) -> dict[str, float | None]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _percentiles(made: SimulationMade) -> list[float]:
    """The usual ones that a run has queries for, and the SLA's."""
    usual = [at for at in _PERCENTILES if min(made.queries) * (1 - at / 100) >= 1]
    return sorted({*usual, made.sla.percentile})


def _rows(made: SimulationMade) -> list[tuple[str, str, str]]:
    """Measure, value, 95% interval."""
    rows: list[tuple[str, str, str]] = []
    if made.capacity is not None:
        rows.append(
            ("latency-bounded throughput", f"{format_number(made.capacity.value)} queries/s", _interval(made.capacity))
        )
    else:
        rows.append(("arrival rate", f"{format_number(made.runs[0].rate_qps)} queries/s", ""))
    if not made.runs:
        return rows
    for at in _percentiles(made):
        value = made.percentile_ms(at)
        rows.append((f"latency p{at:g}", f"{format_number(value.value)} ms", _interval(value)))
    held = sum(run_ms <= made.sla.latency_ms for run_ms in made.percentile_ms(made.sla.percentile).by_run)
    rows.append((f"SLA p{made.sla.percentile:g} within {made.sla.latency_ms:g} ms", _held(held, len(made.runs)), ""))
    attainment = made.attainment
    rows.append(("SLA attainment", _share(attainment.value), _interval(attainment, _share)))
    rows.append(("answered", f"{format_number(made.throughput_qps.value)} queries/s", _interval(made.throughput_qps)))
    for (name, used), count in zip(made.utilisation.items(), made.counts, strict=True):
        rows.append((f"utilisation, {count} x {name}", _share(used.value), _interval(used, _share)))
    return rows


def _held(held: int, runs: int) -> str:
    return "met" if held == runs else "missed" if not held else f"met in {held} of {runs} runs"


def _share(value: float) -> str:
    return f"{value:.2%}"


def _interval(value: Estimate, words: Callable[[float], str] = format_number) -> str:
    """The 95% interval; nothing for a single run."""
    if value.low is None or value.high is None:
        return ""
    return f"{words(value.low)} to {words(value.high)}"


def _verdict(made: SimulationMade) -> str:
    runs = f"{made.request.seeds} run{'s' if made.request.seeds > 1 else ''} of {in_words(made.queries)} queries each"
    pool = pool_words(made.times.table.types, made.counts)
    dealt = f" in {made.partitions} partitions" if made.partitions > 1 else ""
    text = f"{made.times.model} on {pool}{dealt}, {made.policy.kind}, {made.stream.arrivals} arrivals, {runs}."
    if made.capacity is not None and not made.runs:
        text += f" No rate keeps p{made.sla.percentile:g} within {made.sla.latency_ms:g} ms."
    return text


def _prediction(made: SimulationMade) -> str:
    """What the plan predicted, for comparison: of its own model, pool and policy, for the queries and target of its
    own."""
    request = made.request
    if made.plan is None or made.capacity is None or request.pool is not None or request.service_times:
        return ""
    plan = made.plan
    asked = made.times.model, made.sla, made.stream.sizes, made.stream.arrivals, made.policy.kind, made.partitions
    partitions = made.partitions if plan.partitions is None else plan.partitions
    if asked != (plan.model, plan.sla, plan.sizes, "poisson", plan.policy.kind, partitions):
        return ""
    planned = plan.predicted.get("qps")
    return f"The plan predicted {format_number(float(planned))} queries/s." if isinstance(planned, int | float) else ""


def _shifted(made: SimulationMade) -> str:
    """That the queries are not what the plan was made for, if that shows."""
    if made.shift is None or made.plan is None:
        return ""
    return (
        f"Query sizes are {made.stream.sizes}, the plan was made for {made.plan.sizes}: noticed after"
        f" {made.shift.queries:,} queries, at a Kolmogorov-Smirnov distance of {made.shift.distance:.2f}. Plan anew"
        f" with hebe plan pool --sizes {made.stream.sizes}."
    )


def _key_numbers(made: SimulationMade) -> list[KeyNumber]:
    shown = []
    if made.capacity is not None:
        interval = _interval(made.capacity)
        note = f"95%: {interval}" if interval else ""
        shown.append(KeyNumber("latency-bounded throughput", format_number(made.capacity.value), "queries/s", note))
    if not made.runs:
        return shown
    if made.capacity is None:
        shown.append(KeyNumber("arrival rate", format_number(made.runs[0].rate_qps), "queries/s"))
    tail = made.percentile_ms(made.sla.percentile).value
    kept = tail <= made.sla.latency_ms if made.capacity is None else None
    bound = f"SLA: {made.sla.latency_ms:g} ms"
    shown.append(KeyNumber(f"latency p{made.sla.percentile:g}", format_number(tail), "ms", bound, kept))
    shown.append(KeyNumber("SLA attainment", _share(made.attainment.value)))
    busiest = max(made.utilisation.items(), key=lambda entry: entry[1].value)
    shown.append(KeyNumber("busiest server type", f"{busiest[1].value:.1%}", "", busiest[0]))
    return shown
