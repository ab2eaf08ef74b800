"""What `hebe load` shows at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe
from hebe.load_generator.search.rate_search import CONFIDENCE
from hebe.report.document import Block, Cell, Document, KeyNumber, KeyNumbers, Picture, Table, Text, Tone, verdict
from hebe.report.tables import Column, format_number
from hebe.spec import SlaTarget

_PERCENTILES = {50.0: 3, 95.0: 2, 99.0: 2, 99.9: 4}
"""Of latencies, beside that of the SLA; and in what order a narrow terminal goes without them, the largest first."""


def run_document(report: LoadReport, model: str) -> Document:
    """One run: the tail and the distribution of its latencies, its figures, and remarks."""
    without = without_answer(report)
    return Document(
        f"Load on {model}",
        [
            KeyNumbers(
                [KeyNumber("answered", format_number(report.throughput_qps), "queries/s"), _tail_number(report)]
            ),
            Picture(
                partial(_tail, report),
                "Of all queries: where those without an answer begin, the line leaves the plot." if without else "",
            ),
            Picture(partial(_histogram, report), f"Latency counts from when a query was due.{without}"),
            Table("", ["", ""], _run_rows(report)),
            *_run_remarks(report),
        ],
        f"Open loop, {format_number(report.requested_qps)} queries/s for {format_number(report.duration_s)} s.",
        data={"run": report.to_dict()},
    )


def search_document(found: LatencyBoundedThroughput, model: str) -> Document:
    """A search: tail latency against rate, the latencies next to the result, all probes, the result, and remarks."""
    blocks: list[Block] = []
    if (crossing := found.crossing) is not None:
        note = f"{format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}"
        number = format_number(crossing.qps) if crossing.qps else f"below {format_number(found.lowest_qps)}"
        blocks.append(KeyNumbers([KeyNumber("latency-bounded throughput", number, "queries/s", note)]))
    ends = "One that misses the SLA ends as soon as that is certain."
    blocks.append(Picture(partial(_curve, found), f"{load_caption(found.sla, 'one probe')} {ends}"))
    if (best := _best(found)) is not None:
        title = f"Latency at {format_number(best.rate_qps)} queries/s"
        blocks.append(Picture(partial(_histogram, best.report, title), without_answer(best.report).strip()))
    result = _result(found)
    blocks += [
        probe_table(found.probes, found.sla),
        replace(result, on_page=False),
        *_at_best(found),
        *_search_remarks(found),
    ]
    return Document(f"Load on {model}", blocks, result.text, data={"find_qps": found.to_dict()})


def _tail(report: LoadReport) -> str:
    from hebe.report.plots.latency import latency_tail

    return latency_tail({"all": report.latencies_of_all_ms()}, report.sla)


def _histogram(report: LoadReport, title: str = "Latency") -> str:
    from hebe.report.plots.latency import latency_histogram

    return latency_histogram(report.latencies, report.sla, title)


def _curve(found: LatencyBoundedThroughput) -> str:
    from hebe.report.plots.latency import LoadPoint, throughput_against_latency

    points = [LoadPoint(probe.rate_qps, probe.report.tail_latency_of_all_ms, probe.passed) for probe in found.probes]
    crossing = found.crossing
    bound = None if crossing is None else crossing.qps or None
    interval = None if crossing is None else (crossing.low_qps, crossing.high_qps)
    return throughput_against_latency(points, found.sla, bound, interval)


def probe_table(probes: Sequence[Probe], sla: SlaTarget) -> Table:
    """The probes of a search."""
    return Table(
        "",
        _probe_columns(sla),
        [_probe_cells(probe, sla) for probe in probes],
        caption="The probes in the order in which they were made. Latencies here are those of the answers alone.",
    )


def load_caption(sla: SlaTarget, what: str) -> str:
    """What to say under `throughput_against_latency`; `what` each point is."""
    return (
        f"Each point is {what}: the latency within which {sla.percentile:g}% of all its queries were answered, counted"
        " from when they were due. Refused and failed queries were never answered: where they are too many, the point"
        " is a triangle at the upper edge."
    )


def _percentiles(sla: SlaTarget) -> list[float]:
    return sorted({*_PERCENTILES, sla.percentile})


def _probe_columns(sla: SlaTarget) -> list[Column | str]:
    latencies = [
        Column(f"p{each:g} ms", right=True, spare=0 if each == sla.percentile else _PERCENTILES[each])
        for each in _percentiles(sla)
    ]
    return [
        "probe", "queries/s", Column("arrived/s", right=True, spare=5), Column("answered/s", right=True, spare=1),
        *latencies, "in SLA", "refused", "failed", "SLA",
    ]  # fmt: skip


def _probe_cells(probe: Probe, sla: SlaTarget) -> list[Cell]:
    latencies = probe.report.latencies
    return [
        probe.phase.value,
        probe.rate_qps,
        _number(probe.report.achieved_qps),
        _number(probe.report.throughput_qps),
        *(_number(latencies.percentile_s(each) * 1e3) for each in _percentiles(sla)),
        _share(latencies.sla_attainment),
        latencies.refused.total(),
        latencies.failed.total(),
        verdict(probe.passed),
    ]


def without_answer(report: LoadReport) -> str:
    """A sentence on the queries that a histogram does not have, if there are any."""
    arrivals, answers = report.latencies.arrivals, report.latencies.answers
    return f" {arrivals - answers:,} of {arrivals:,} queries had no answer: they are not in it." * (answers < arrivals)


def _tail_number(report: LoadReport) -> KeyNumber:
    """The tail latency of the answers, and what share of all queries was in time, by which the SLA is met or not."""
    sla, share = report.sla, _share(report.latencies.sla_attainment)
    note = "" if sla is None else f"{share} of arrivals in {format_number(sla.latency_ms)} ms"
    return KeyNumber(_tail_name(sla), _number(report.tail_latency_ms), "ms", note, report.sla_met)


def _run_rows(report: LoadReport) -> list[tuple[str, Cell]]:
    latencies, sla = report.latencies, report.sla
    summary, lag = latencies.summary(), report.lag.summary()
    rows: list[tuple[str, Cell]] = [
        (
            "arrivals",
            f"{latencies.arrivals:,} in {format_number(report.duration_s)} s, {_number(report.achieved_qps)}/s",
        ),
        ("answered", f"{_number(report.throughput_qps)} queries/s, {_number(report.throughput_items)} items/s"),
    ]
    for name, seconds in (
        ("mean", summary.mean_s), ("p50", summary.p50_s), ("p95", summary.p95_s),
        ("p99", summary.p99_s), ("p99.9", summary.p999_s), ("largest", summary.largest_s),
    ):  # fmt: skip
        rows.append((f"latency {name}", f"{_number(seconds * 1e3)} ms"))
    if sla is not None:
        met = verdict(report.sla_met)
        share = f"{_share(latencies.sla_attainment)} of arrivals in {format_number(sla.latency_ms)} ms, {met.text}"
        rows.append((_tail_name(sla), Text(share, met.tone)))
    rows += [
        ("refused", _counts(latencies.refused) + _told_after(report.refusals.percentile_s(99))),
        ("failed", _counts(latencies.failed)),
        ("sent late", f"p50 {_number(lag.p50_s * 1e3)} ms, p99 {_number(lag.p99_s * 1e3)} ms"),
        ("generator", f"{_share(report.cpu_share)} of a core, {report.connections} connections"),
    ]
    if report.cut_short:
        rows.append(("ended early", report.cut_short))
    return rows


def _result(found: LatencyBoundedThroughput) -> Text:
    sla = f"p{found.sla.percentile:g} within {format_number(found.sla.latency_ms)} ms"
    crossing = found.crossing
    if crossing is None:
        return Text(f"Interrupted before there was an estimate ({sla}).", Tone.WARNING)
    if crossing.capped:
        return Text(f"At least {format_number(crossing.qps)} queries/s with {sla}: no higher rate was tried.")
    if crossing.qps == 0:
        lowest, more = format_number(found.lowest_qps), "no lower rate was tried: give a longer --duration"
        if _best(found) is None:
            return Text(f"{sla} is not kept at {lowest} queries/s or more; {more}", Tone.BAD)
        return Text(f"Latency-bounded throughput below about {lowest} queries/s with {sla}; {more}", Tone.BAD)
    early = "; interrupted" if found.interrupted else ""
    return Text(
        f"Latency-bounded throughput {format_number(crossing.qps)} queries/s ({CONFIDENCE:.0%} interval"
        f" {format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}{early}) with {sla}",
        Tone.GOOD,
    )


def _best(found: LatencyBoundedThroughput) -> Probe | None:
    """The probe of the highest rate that held."""
    passed = [probe for probe in found.probes if probe.passed]
    return max(passed, key=lambda probe: probe.rate_qps, default=None)


def _at_best(found: LatencyBoundedThroughput) -> list[Text]:
    """What a narrow terminal may have no columns for, of the probe that it is mostly asked of."""
    best = _best(found)
    if best is None:
        return []
    latencies = best.report.latencies
    told = [f"p{each:g} {_number(latencies.percentile_s(each) * 1e3)}" for each in _percentiles(found.sla)]
    return [
        Text(
            f"At {format_number(best.rate_qps)} queries/s, the highest rate that held:"
            f" {_number(best.report.throughput_qps)} answered/s, {', '.join(told)} ms"
        )
    ]


def _run_remarks(report: LoadReport) -> list[Text]:
    told = report.failures_told
    first = [Text(told[0].upper() + told[1:], Tone.BAD)] if told else []
    others = tuple(filter(None, (*report.remarks, report.left_queue)))
    return [*first, *_remarks(report.bottlenecks, report.messages, others)]


def _search_remarks(found: LatencyBoundedThroughput) -> list[Text]:
    messages = {kind: text for probe in found.probes for kind, text in probe.report.messages.items()}
    return _remarks(found.bottlenecks, messages, found.remarks)


def _remarks(bottlenecks: tuple[str, ...], messages: dict[str, str], others: tuple[str, ...]) -> list[Text]:
    remarks = [Text(f"{kind}: {text[:300]}", Tone.QUIET) for kind, text in messages.items() if text]
    if bottlenecks:
        remarks.append(Text("The load generator was itself a bottleneck: " + "; ".join(bottlenecks), Tone.WARNING))
    remarks += [Text(remark, Tone.WARNING) for remark in others]
    return remarks


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{count:,} ({kind})" for kind, count in counted.items()) or "0"


def _told_after(late_s: float) -> str:
    return f", told within {format_number(late_s * 1e3)} ms (p99)" if math.isfinite(late_s) else ""


def _tail_name(sla: SlaTarget | None) -> str:
    return "p95" if sla is None else f"SLA p{sla.percentile:g}"


def _number(value: float) -> str:
    return format_number(value) if math.isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{np.floor(value * 1000) / 10:.1f}%" if math.isfinite(value) else "-"
