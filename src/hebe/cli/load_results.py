"""What `hebe load` shows at the end: tables, and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.pass_curve import CONFIDENCE
from hebe.load_generator.qps_search import LatencyBoundedThroughput, Probe
from hebe.report.fitting_table import Column, FittingTable
from hebe.report.html import KeyNumber, Page
from hebe.report.plots import LoadPoint, latency_histogram, latency_tail, throughput_against_latency
from hebe.report.tables import format_number
from hebe.report.whole_file import write_whole
from hebe.spec import SlaTarget

_PERCENTILES = {50.0: 3, 95.0: 2, 99.0: 2, 99.9: 4}
"""Of latencies, beside that of the SLA; and in what order a narrow terminal goes without them, the largest first."""


def run_table(report: LoadReport) -> RenderableType:
    """One run."""
    table = FittingTable("", Column(folds=True))
    for name, value in _run_rows(report):
        table.add_row(Text(name, "bold"), value)
    return Group(table, *_run_remarks(report))


def search_table(found: LatencyBoundedThroughput) -> RenderableType:
    """All probes of a search, and its result."""
    table = FittingTable(*_probe_columns(found.sla))
    for probe in found.probes:
        table.add_row(*_probe_cells(probe, found.sla))
    return Group(table, Text(""), _result(found), *_at_best(found), *_search_remarks(found))


def probes_on(page: Page, probes: Sequence[Probe], sla: SlaTarget) -> None:
    """Put the table of a search's probes on a page."""
    columns = _probe_columns(sla)
    page.table(
        [column.heading for column in columns],
        [[str(cell) for cell in _probe_cells(probe, sla)] for probe in probes],
        "The probes in the order in which they were made. Latencies here are those of the answers alone.",
        [column.right for column in columns],
    )


def load_caption(sla: SlaTarget, what: str) -> str:
    """What to say under `throughput_against_latency`; `what` each point is."""
    return (
        f"Each point is {what}: the latency within which {sla.percentile:g}% of all its queries were answered, counted"
        " from when they were due. Refused and failed queries were never answered: where they are too many, the point"
        " is a triangle at the upper edge."
    )


def plot_run(report: LoadReport, model: str, path: Path) -> None:
    """An HTML page with the distribution and the tail of one run's latencies, or an SVG of the tail."""
    tail = latency_tail({"all": report.latencies_of_all_ms()}, report.sla)
    if path.suffix == ".svg":
        write_whole(path, tail)
        return
    page = Page(
        f"Load on {model}",
        f"Open loop, {format_number(report.requested_qps)} queries/s for {format_number(report.duration_s)} s.",
    )
    page.key_numbers(
        [
            KeyNumber("answered", format_number(report.throughput_qps), "queries/s"),
            _tail_number(report),
        ]
    )
    without = without_answer(report)
    page.plot(latency_histogram(report.latencies, report.sla), f"Latency counts from when a query was due.{without}")
    page.plot(tail, "Of all queries: where those without an answer begin, the line leaves the plot." if without else "")
    page.table(("figure", "value"), [(name, str(value)) for name, value in _run_rows(report)])
    for remark in _run_remarks(report):
        page.paragraph(str(remark))
    page.write(path)


def plot_search(found: LatencyBoundedThroughput, model: str, path: Path) -> None:
    """An HTML page with tail latency against rate and the latencies next to the result, or an SVG of the former."""
    points = [LoadPoint(probe.rate_qps, probe.report.tail_latency_of_all_ms, probe.passed) for probe in found.probes]
    crossing = found.crossing
    bound = None if crossing is None else crossing.qps or None
    interval = None if crossing is None else (crossing.low_qps, crossing.high_qps)
    curve = throughput_against_latency(points, found.sla, bound, interval)
    if path.suffix == ".svg":
        write_whole(path, curve)
        return
    page = Page(f"Load on {model}", str(_result(found)))
    if crossing is not None:
        note = f"{format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}"
        number = format_number(crossing.qps) if crossing.qps else f"below {format_number(found.lowest_qps)}"
        page.key_numbers([KeyNumber("latency-bounded throughput", number, "queries/s", note)])
    ends = "One that misses the SLA ends as soon as that is certain."
    page.plot(curve, f"{load_caption(found.sla, 'one probe')} {ends}")
    best = _best(found)
    if best is not None:
        title = f"Latency at {format_number(best.rate_qps)} queries/s"
        page.plot(latency_histogram(best.report.latencies, found.sla, title), without_answer(best.report).strip())
    probes_on(page, found.probes, found.sla)
    for remark in _search_remarks(found):
        page.paragraph(str(remark))
    page.write(path)


def _percentiles(sla: SlaTarget) -> list[float]:
    return sorted({*_PERCENTILES, sla.percentile})


def _probe_columns(sla: SlaTarget) -> list[Column]:
    latencies = [
        Column(f"p{each:g} ms", right=True, spare=0 if each == sla.percentile else _PERCENTILES[each])
        for each in _percentiles(sla)
    ]
    return [
        Column("probe"),
        Column("queries/s", right=True),
        Column("arrived/s", right=True, spare=5),
        Column("answered/s", right=True, spare=1),
        *latencies,
        *(Column(heading, right=True) for heading in ("in SLA", "refused", "failed")),
        Column("SLA"),
    ]


def _probe_cells(probe: Probe, sla: SlaTarget) -> list[str | Text]:
    latencies = probe.report.latencies
    return [
        probe.phase.value,
        format_number(probe.rate_qps),
        _number(probe.report.achieved_qps),
        _number(probe.report.throughput_qps),
        *(_number(latencies.percentile_s(each) * 1e3) for each in _percentiles(sla)),
        _share(latencies.sla_attainment),
        str(latencies.refused.total()),
        str(latencies.failed.total()),
        _met(probe.passed),
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


def _run_rows(report: LoadReport) -> list[tuple[str, str | Text]]:
    latencies, sla = report.latencies, report.sla
    summary, lag = latencies.summary(), report.lag.summary()
    rows: list[tuple[str, str | Text]] = [
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
        share = f"{_share(latencies.sla_attainment)} of arrivals in {format_number(sla.latency_ms)} ms, "
        rows.append((_tail_name(sla), Text.assemble(share, _met(report.sla_met))))
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
        return Text(f"Interrupted before there was an estimate ({sla}).", style="yellow")
    if crossing.capped:
        return Text(f"At least {format_number(crossing.qps)} queries/s with {sla}: no higher rate was tried.")
    if crossing.qps == 0:
        lowest, more = format_number(found.lowest_qps), "no lower rate was tried: give a longer --duration"
        if _best(found) is None:
            return Text(f"{sla} is not kept at {lowest} queries/s or more; {more}", style="bold red")
        return Text(f"Latency-bounded throughput below about {lowest} queries/s with {sla}; {more}", style="bold red")
    early = "; interrupted" if found.interrupted else ""
    return Text.assemble(
        "Latency-bounded throughput ",
        (f"{format_number(crossing.qps)} queries/s", "bold green"),
        f" ({CONFIDENCE:.0%} interval {format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}{early})"
        f" with {sla}",
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
    first = [Text(told[0].upper() + told[1:], style="bold red")] if told else []
    others = tuple(filter(None, (*report.remarks, report.left_queue)))
    return [*first, *_remarks(report.bottlenecks, report.messages, others)]


def _search_remarks(found: LatencyBoundedThroughput) -> list[Text]:
    messages = {kind: text for probe in found.probes for kind, text in probe.report.messages.items()}
    return _remarks(found.bottlenecks, messages, found.remarks)


def _remarks(bottlenecks: tuple[str, ...], messages: dict[str, str], others: tuple[str, ...]) -> list[Text]:
    remarks = [Text.assemble((f"{kind}: ", "dim"), text[:300]) for kind, text in messages.items() if text]
    if bottlenecks:
        remarks.append(Text("The load generator was itself a bottleneck: " + "; ".join(bottlenecks), style="yellow"))
    remarks += [Text(remark, style="yellow") for remark in others]
    return remarks


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{count:,} ({kind})" for kind, count in counted.items()) or "0"


def _told_after(late_s: float) -> str:
    return f", told within {format_number(late_s * 1e3)} ms (p99)" if math.isfinite(late_s) else ""


def _met(met: bool | None) -> Text:
    if met is None:
        return Text("")
    return Text("met", style="green") if met else Text("missed", style="bold red")


def _tail_name(sla: SlaTarget | None) -> str:
    return "p95" if sla is None else f"SLA p{sla.percentile:g}"


def _number(value: float) -> str:
    return format_number(value) if math.isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{np.floor(value * 1000) / 10:.1f}%" if math.isfinite(value) else "-"
