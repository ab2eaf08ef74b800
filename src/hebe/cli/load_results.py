"""What `hebe load` shows at the end: tables, and plots."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.pass_curve import CONFIDENCE
from hebe.load_generator.qps_search import LatencyBoundedThroughput
from hebe.report.fitting_table import Column, FittingTable
from hebe.report.html import KeyNumber, Page
from hebe.report.plots import LoadPoint, latency_histogram, latency_tail, throughput_against_latency
from hebe.report.tables import format_number
from hebe.report.whole_file import write_whole
from hebe.spec import SlaTarget


def run_table(report: LoadReport) -> RenderableType:
    """One run."""
    table = FittingTable("", Column(folds=True))
    for name, value in _run_rows(report):
        table.add_row(Text(name, "bold"), value)
    return Group(table, *_remarks(report.bottlenecks, report.messages, report.remarks))


def search_table(found: LatencyBoundedThroughput) -> RenderableType:
    """All probes of a search, and its result."""
    table = FittingTable(
        "probe",
        Column("queries/s", right=True),
        Column("arrived/s", right=True, spare=3),
        Column("p50 ms", right=True, spare=1),
        Column(f"p{found.sla.percentile:g} ms", right=True),
        Column("p99.9 ms", right=True, spare=2),
        *(Column(heading, right=True) for heading in ("in SLA", "refused", "failed")),
        "SLA",
    )
    for probe in found.probes:
        latencies = probe.report.latencies
        table.add_row(
            probe.phase.value,
            format_number(probe.rate_qps),
            _number(probe.report.achieved_qps),
            _number(latencies.percentile_s(50) * 1e3),
            _number(probe.report.tail_latency_ms),
            _number(latencies.percentile_s(99.9) * 1e3),
            _share(latencies.sla_attainment),
            str(latencies.refused.total()),
            str(latencies.failed.total()),
            _met(probe.passed),
        )
    messages = {kind: text for probe in found.probes for kind, text in probe.report.messages.items()}
    return Group(table, Text(""), _result(found), *_remarks(found.bottlenecks, messages, found.remarks))


def plot_run(report: LoadReport, model: str, path: Path) -> None:
    """An HTML page with the distribution and the tail of one run's latencies, or an SVG of the tail."""
    samples_ms = report.latencies.samples_s() * 1e3
    tail = latency_tail({"all": samples_ms}, report.sla)
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
            KeyNumber(_tail_name(report.sla), _number(report.tail_latency_ms), "ms", good=report.sla_met),
        ]
    )
    page.plot(latency_histogram(samples_ms, report.sla), "Latency counts from when a query was due.")
    page.plot(tail)
    page.table(("figure", "value"), [(name, str(value)) for name, value in _run_rows(report)])
    page.write(path)


def plot_search(found: LatencyBoundedThroughput, model: str, path: Path) -> None:
    """An HTML page with tail latency against rate and the latencies next to the result, or an SVG of the former."""
    points = [LoadPoint(probe.rate_qps, probe.report.tail_latency_ms) for probe in found.probes]
    crossing = found.crossing
    bound = None if crossing is None else crossing.qps
    interval = None if crossing is None else (crossing.low_qps, crossing.high_qps)
    curve = throughput_against_latency({model: points}, found.sla, bound, interval)
    if path.suffix == ".svg":
        write_whole(path, curve)
        return
    page = Page(f"Load on {model}", str(_result(found)))
    if crossing is not None:
        note = f"{format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}"
        page.key_numbers([KeyNumber("latency-bounded throughput", format_number(crossing.qps), "queries/s", note)])
    page.plot(curve, "Each point is one probe. One that misses the SLA ends as soon as that is certain.")
    passed = [probe for probe in found.probes if probe.passed]
    if passed:
        best = max(passed, key=lambda probe: probe.rate_qps)
        title = f"Latency at {format_number(best.rate_qps)} queries/s"
        page.plot(latency_histogram(best.report.latencies.samples_s() * 1e3, found.sla, title))
    page.write(path)


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
        return Text(f"No rate keeps {sla}.", style="bold red")
    early = "; interrupted" if found.interrupted else ""
    return Text.assemble(
        "Latency-bounded throughput ",
        (f"{format_number(crossing.qps)} queries/s", "bold green"),
        f" ({CONFIDENCE:.0%} interval {format_number(crossing.low_qps)} to {format_number(crossing.high_qps)}{early})"
        f" with {sla}",
    )


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
