"""The demo's page: what was trained, what it can take, where the time goes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from hebe._version import __version__
from hebe.cli.demo.result import DemoResult, LoadedRun
from hebe.cli.load.results import load_caption, probe_table, without_answer
from hebe.cli.terminal.host_watch import denied_words
from hebe.report.document import Block, Cell, Commands, Document, Heading, KeyNumber, KeyNumbers, Picture, Table
from hebe.report.measured_on import current_commit, describe_machine
from hebe.report.plots.latency import (
    grouped_bars,
    latency_histogram,
    latency_tail,
    throughput_against_latency,
    time_per_stage,
)
from hebe.report.tables import Column, format_number


def document(result: DemoResult, next_commands: list[str]) -> Document:
    """All of it, for the page."""
    spec, training = result.spec, result.training
    blocks: list[Block] = [KeyNumbers(_key_numbers(result)), *_throughput(result)]
    if result.runs:
        blocks += [*_latency(result), *_stages(result)]
    return Document(
        "A ranking model, trained and served here",
        [*blocks, *_predictions(result), Heading("What to type next"), Commands(next_commands)],
        f"{spec.name}: a {spec.architecture.upper()} with {len(spec.tables)} embedding tables of "
        f"{max(table.rows for table in spec.tables):,} rows, trained on {training.rows:,} rows of {_data(result)}, "
        "then served by hebe serve while queries came as a Poisson process with production query sizes.",
        _footer(result),
        result.to_dict(),
    )


def runs_table(result: DemoResult) -> Table:
    """The runs at several loads: rate, latencies, and where the time goes."""
    rows: list[list[Cell]] = []
    for run in result.runs:
        measured = [run.report.requested_qps, run.report.throughput_items, *percentiles_ms(run)]
        rows.append(
            [
                f"{run.share:.0%}",
                *(format_number(_round3(value)) for value in measured),
                f"{run.report.latencies.sla_attainment:.2%}",
                run.report.latencies.refused.total(),
                *(_round3(run.stages_ms[stage]) if stage in run.stages_ms else None for stage in _STAGES),
            ]
        )
    refused = Column("refused", right=True, spare=1)
    columns: list[Column | str] = ["load", "queries/s", "items/s", "p50", "p95", "p99", "in SLA", refused, *_STAGES]
    return Table("", columns, rows, "Latency, and mean time in each stage, in milliseconds.")


_STAGES = ("queue", "sparse", "dense")


def percentiles_ms(run: LoadedRun) -> tuple[float, float, float]:
    """p50, p95, p99 of a run in milliseconds."""
    summary = run.report.latencies.summary()
    return summary.p50_s * 1e3, summary.p95_s * 1e3, summary.p99_s * 1e3


def _data(result: DemoResult) -> str:
    return "made-up click data of Criteo's form" if result.generated else result.data


def _key_numbers(result: DemoResult) -> list[KeyNumber]:
    sla = f"p{result.sla.percentile:g} within {result.sla.latency_ms:g} ms"
    shown = []
    if result.crossing is not None:
        crossing = result.crossing
        why = "the search ran out of time" if result.search_cut_short else "95%"
        interval = f"{format_number(_round3(crossing.low_qps))} to {format_number(_round3(crossing.high_qps))} ({why})"
        rate = crossing.qps or result.lowest_qps
        value = f"{'' if crossing.qps else 'below '}{format_number(_round3(rate))}"
        shown.append(KeyNumber("latency-bounded throughput", value, "queries/s", f"{sla}; {interval}"))
    if result.runs:
        run = result.runs[-1]
        items = format_number(_round3(run.report.throughput_items))
        shown.append(KeyNumber("items scored", items, "items/s", f"at {run.share:.0%} of that rate"))
        middle = result.runs[len(result.runs) // 2]
        p50, _, p99 = percentiles_ms(middle)
        label = f"median latency at {middle.share:.0%}"
        shown.append(KeyNumber(label, format_number(_round3(p50)), "ms", f"p99 {format_number(_round3(p99))} ms"))
    if result.auc_agrees is None:
        shown.append(KeyNumber("AUC over HTTP", "-", "", "the held-out rows have labels of one kind only"))
    else:
        note = "equal to the offline AUC" if result.auc_agrees else f"offline it is {result.training.auc:.6f}"
        shown.append(KeyNumber("AUC over HTTP", f"{result.http_auc:.4f}", "", note, result.auc_agrees))
    return shown


def _throughput(result: DemoResult) -> list[Block]:
    crossing = result.crossing
    band = (
        "between the largest rate that held and the next" if result.search_cut_short else "the 95% confidence interval"
    )
    curve = Picture(
        lambda: throughput_against_latency(
            result.load_points(),
            result.sla,
            None if crossing is None else crossing.qps or None,
            None if crossing is None else (crossing.low_qps, crossing.high_qps),
        ),
        load_caption(result.sla, "a run of its own at one arrival rate, or the median of such at nearly the same")
        + f" The band is {band}.",
    )
    blocks: list[Block] = [Heading("How much it takes"), curve, probe_table(result.probes, result.sla)]
    if result.limits:
        blocks.append(
            f"The load generator shares this machine with the server, and near this rate it was itself a limit: "
            f"{'; '.join(result.limits)}. With a machine of its own it may find more."
        )
    blocks += [f"A remark on the search: {remark}." for remark in result.remarks]
    if warning := denied_words(result.denied_share):
        blocks.append(warning)
    return blocks


def _latency(result: DemoResult) -> list[Block]:
    busiest = result.runs[-1]
    return [
        Heading("Latency"),
        Picture(
            lambda: latency_histogram(
                busiest.report.latencies, result.sla, f"Latency at {busiest.share:.0%} of the throughput found"
            ),
            f"{busiest.report.latencies.answers:,} answers over {busiest.report.duration_s:.0f} s."
            + without_answer(busiest.report),
        ),
        Picture(
            lambda: latency_tail({run.name: run.report.latencies_of_all_ms() for run in result.runs}, result.sla),
            "All queries by percentile, at several loads: where those without an answer begin, a line leaves the plot.",
        ),
        runs_table(result),
    ]


def _stages(result: DemoResult) -> list[Block]:
    stages = {run.name: run.stages_ms for run in result.runs if run.stages_ms}
    return [
        Heading("Where the time goes"),
        Picture(
            lambda: time_per_stage(stages, title="Mean time per query"),
            "By the server's own metrics (hebe_stage_seconds): receiving, decoding and waiting for a worker (queue), "
            "looking up and pooling embedding rows (sparse), the towers (dense). A query that was split counts the time"
            " of all its parts.",
        ),
    ]


def _predictions(result: DemoResult) -> list[Block]:
    training = result.training
    rows: list[list[Cell]] = []
    if result.auc_agrees is not None:
        difference = abs(result.http_auc - training.auc)
        rows.append(["AUC offline", f"{training.auc:.8f}"])
        rows.append(["AUC over HTTP", f"{result.http_auc:.8f}"])
        rows.append(["difference", f"{difference:.1e}" if difference else "0"])
    rows.append(["log-loss of the held-out rows", f"{training.log_loss:.4f}"])
    rows.append(["log-loss while training", f"{training.loss:.4f}"])
    rows.append(["training", f"{training.seconds:.1f} s"])
    return [
        Heading("What it predicts"),
        f"The last {training.held_out_rows:,} rows were held out. Their AUC was computed twice: by the model in plain "
        f"PyTorch right after training, and from the scores that the server answered over HTTP, row for row.",
        Picture(
            lambda: grouped_bars(result.calibration(), "clicks per 100 rows", "Predicted and seen"),
            "The held-out rows in ten groups by rising score, as the server scored them: bars of equal height side by "
            "side mean good calibration, and bars that rise a good ranking.",
        ),
        Table("", ["", Column("value", right=True)], rows),
    ]


def _footer(result: DemoResult) -> str:
    machine = describe_machine()
    steps = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in result.seconds.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {int(machine['memory_bytes']) / 2**30:.0f} GiB, "
        f"{machine['kernel']}; server and load generator shared it.\n"
        f"Hebe {__version__} at {current_commit()}, torch {machine['torch']}, Python {machine['python']}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC.\n{steps}."
    )


def _round3(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) else value
