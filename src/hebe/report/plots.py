"""Plots as SVG text: each function takes numbers and returns one `<svg>` element (see `plot_style`).

Latencies are milliseconds, rates are queries per second. Samples are one-dimensional; what is not finite is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from hebe.report.plot_style import INK, LIMIT, QUIET, SERIES, drawing, name_places, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.spec import SlaTarget

_TAIL_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One arrival rate and the tail latency that was measured under it."""

    rate_qps: float
    tail_latency_ms: float


def latency_histogram(latency_ms: npt.ArrayLike, sla: SlaTarget | None = None, title: str = "Latency") -> str:
    """How often each latency occurred (logarithmic axis), with p50, p95, p99 and p99.9 marked."""
    samples = _finite(latency_ms)
    with drawing() as (canvas, axes):
        if not _empty(axes, samples):
            low, high = _log_range(samples, sla)
            axes.hist(
                samples, bins=np.geomspace(low, high, 80).tolist(), color=SERIES[0], alpha=0.6, histtype="stepfilled"
            )
            axes.set_xscale("log")
            axes.set_xlim(low, high)
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)))
            axes.margins(y=0.22)
            for step, percentile in enumerate((50.0, 95.0, 99.0, 99.9)):
                value = float(np.percentile(samples, percentile))
                axes.axvline(value, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
                axes.annotate(
                    f"{_percentile_name(percentile)} {format_number(_round3(value))}",
                    (value, 1.0 - 0.065 * step),
                    xycoords=("data", "axes fraction"),
                    xytext=(4, -2),
                    textcoords="offset points",
                    va="top",
                    fontsize=9,
                )
            _mark_sla(axes, sla, vertical=True)
            plain_ticks(axes.xaxis, format_number)
            plain_ticks(axes.yaxis, format_number)
        axes.set_title(title)
        axes.set_xlabel("latency (ms)")
        axes.set_ylabel("queries")
        return to_svg(canvas, f"{title}: histogram of {samples.size} latencies")


def latency_tail(
    latency_ms: Mapping[str, npt.ArrayLike], sla: SlaTarget | None = None, title: str = "Latency by percentile"
) -> str:
    """Latency of each percentile, the axis stretched towards the tail (p50, p90, p99, p99.9 evenly apart).

    One line a series, each as far as its samples reach: p99.9 needs a thousand.
    """
    series = {name: np.sort(_finite(samples)) for name, samples in latency_ms.items()}
    longest = max((samples.size for samples in series.values()), default=0)
    with drawing() as (canvas, axes):
        if not _empty(axes, *series.values()):
            # the share of queries that are slower, falling; the last sample alone is not a percentile
            for name, samples in series.items():
                slower = 1.0 - np.arange(samples.size) / samples.size
                step = _thin(samples.size)
                axes.plot(slower[step], samples[step], label=name)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlim(1.0, 1.0 / max(longest, 10))
            marks = [mark for mark in _TAIL_PERCENTILES if 100.0 - mark >= 100.0 / max(longest, 10)]
            axes.set_xticks([1.0 - mark / 100.0 for mark in marks], [_percentile_name(mark) for mark in marks])
            axes.xaxis.set_minor_locator(NullLocator())
            _log_latency_axis(axes, sla)
            _mark_sla(axes, sla, vertical=False)
            if len(series) > 1:
                axes.legend()
        axes.set_title(title)
        axes.set_xlabel("percentile of queries")
        axes.set_ylabel("latency (ms)")
        return to_svg(canvas, f"{title}: {', '.join(series)}")


def throughput_against_latency(
    series: Mapping[str, Sequence[LoadPoint]],
    sla: SlaTarget,
    bound_qps: float | None = None,
    bound_interval_qps: tuple[float, float] | None = None,
    title: str = "Tail latency against arrival rate",
) -> str:
    """Tail latency (at the SLA's percentile) over arrival rate, one line a series, with the SLA line.

    `bound_qps` marks the latency-bounded throughput, `bound_interval_qps` its confidence interval.
    """
    percentile = _percentile_name(sla.percentile)
    everything = np.array([p.tail_latency_ms for points in series.values() for p in points])
    with drawing() as (canvas, axes):
        if not _empty(axes, everything[np.isfinite(everything)]):
            for name, points in series.items():
                ordered = sorted((p for p in points if np.isfinite(p.tail_latency_ms)), key=lambda p: p.rate_qps)
                axes.plot([p.rate_qps for p in ordered], [p.tail_latency_ms for p in ordered], marker="o", label=name)
            axes.set_yscale("log")
            axes.set_xlim(left=0)
            _log_latency_axis(axes, sla)
            plain_ticks(axes.xaxis, format_number)
            _mark_sla(axes, sla, vertical=False)
            if bound_qps is not None:
                if bound_interval_qps is not None:
                    axes.axvspan(*bound_interval_qps, color=SERIES[2], alpha=0.18, linewidth=0)
                axes.axvline(bound_qps, color=SERIES[2], linewidth=1.4)
                right_half = bound_qps > 0.5 * axes.get_xlim()[1]
                axes.annotate(
                    f"{format_number(_round3(bound_qps))} queries/s within the SLA",
                    (bound_qps, 0.03),
                    xycoords=("data", "axes fraction"),
                    xytext=(-6 if right_half else 6, 0),
                    textcoords="offset points",
                    ha="right" if right_half else "left",
                    fontsize=9,
                )
            if len(series) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9))
        axes.set_title(title)
        axes.set_xlabel("arrival rate (queries/s)")
        axes.set_ylabel(f"{percentile} latency (ms)")
        return to_svg(canvas, f"{title}: {', '.join(series)}")


def time_per_stage(rows: Mapping[str, Mapping[str, float]], unit: str = "ms", title: str = "Time per stage") -> str:
    """Stacked bars: for each row ("p50", "p95", or a model) the time of each stage ("queue", "sparse", "dense")."""
    stages = list(dict.fromkeys(stage for row in rows.values() for stage in row))
    with drawing(height=1.5 + 0.45 * max(len(rows), 1) + 0.25 * (len(stages) > 4)) as (canvas, axes):
        if not _empty(axes, np.arange(len(rows) * len(stages))):
            places = np.arange(len(rows))
            start = np.zeros(len(rows))
            for number, stage in enumerate(stages):
                width = np.array([row.get(stage, 0.0) for row in rows.values()])
                axes.barh(places, width, left=start, height=0.58, color=SERIES[number % len(SERIES)], label=stage)
                start += width
            for place, total in zip(places, start, strict=True):
                axes.annotate(
                    format_number(_round3(float(total))), (total, place), xytext=(5, 0),
                    textcoords="offset points", va="center", fontsize=9,
                )  # fmt: skip
            axes.set_yticks(places, list(rows))
            axes.invert_yaxis()
            axes.margins(x=0.1)
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
            plain_ticks(axes.xaxis, format_number)
            canvas.legend(loc="outside lower center", ncols=len(stages) if len(stages) < 5 else 3)
        axes.set_title(title)
        axes.set_xlabel(f"time ({unit})")
        return to_svg(canvas, f"{title}: {', '.join(stages)} for {', '.join(rows)}")


def grouped_bars(groups: Mapping[str, Mapping[str, float]], unit: str, title: str) -> str:
    """Bars side by side: for each group (a concurrency) one bar a series (a server); absent values stay absent."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    with drawing() as (canvas, axes):
        if not _empty(axes, np.arange(len(groups) * len(names))):
            width = 0.8 / len(names)
            for number, name in enumerate(names):
                present = [(at, group[name]) for at, group in enumerate(groups.values()) if name in group]
                places = [at - 0.4 + (number + 0.5) * width for at, _ in present]
                heights = [height for _, height in present]
                axes.bar(places, heights, 0.92 * width, color=SERIES[number % len(SERIES)], label=name)
                for place, height in zip(places, heights, strict=True):
                    axes.annotate(
                        format_number(_round3(height)), (place, height), xytext=(0, 3),
                        textcoords="offset points", ha="center", fontsize=8, color=QUIET,
                    )  # fmt: skip
            name_places(axes, list(groups))
            plain_ticks(axes.yaxis, format_number)
            canvas.legend(loc="outside lower center", ncols=len(names) if len(names) < 4 else 2)
        axes.set_title(title)
        axes.set_ylabel(unit)
        return to_svg(canvas, f"{title}: {', '.join(names)} for {', '.join(groups)}")


def _finite(samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64).ravel()
    return values[np.isfinite(values)]


def _empty(axes: Axes, *samples: npt.NDArray[np.generic]) -> bool:
    """Whether there is nothing to draw; says so in the plot."""
    if any(values.size for values in samples):
        return False
    axes.text(0.5, 0.5, "nothing measured", ha="center", va="center", color=QUIET, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    return True


def _thin(size: int) -> npt.NDArray[np.int64]:
    """Indices of at most some hundreds of samples out of `size` sorted ones, denser towards the tail."""
    if size <= 800:
        return np.arange(size)
    from_the_end = np.unique(np.geomspace(1, size, 800).astype(np.int64))
    return size - from_the_end[::-1]


def _log_range(samples: npt.NDArray[np.float64], sla: SlaTarget | None) -> tuple[float, float]:
    """From just under the smallest sample to the largest, or the SLA if that is near, and room for a label."""
    smallest = max(float(samples.min()), 1e-6)
    largest = max(float(samples.max()), smallest)
    if sla is not None and sla.latency_ms < 20 * largest:
        largest = max(largest, sla.latency_ms)
    smallest *= 0.9
    return smallest, largest * max(largest / smallest, 2.0) ** 0.17


def _log_latency_axis(axes: Axes, sla: SlaTarget | None) -> None:
    """A logarithmic latency axis on which the SLA, and its label above it, is always in sight."""
    low, high = axes.get_ylim()
    if sla is not None:
        low, high = min(low, sla.latency_ms / 1.5), max(high, sla.latency_ms * 1.7)
        axes.set_ylim(low, high)
    # within a decade or two, powers of ten alone leave an axis nearly without labels
    few = high / max(low, 1e-12) < 300
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())
    plain_ticks(axes.yaxis, format_number)


def _mark_sla(axes: Axes, sla: SlaTarget | None, *, vertical: bool) -> None:
    if sla is None:
        return
    text = f"SLA: {_percentile_name(sla.percentile)} ≤ {format_number(sla.latency_ms)} ms"
    if vertical:
        low, high = axes.get_xlim()
        if low <= sla.latency_ms <= high:
            axes.axvline(sla.latency_ms, color=LIMIT, linewidth=1.4)
            axes.annotate(
                text, (sla.latency_ms, 0.5), xycoords=("data", "axes fraction"), xytext=(-4, 0),
                textcoords="offset points", rotation=90, ha="right", va="center", fontsize=9, color=LIMIT,
            )  # fmt: skip
        return
    axes.axhline(sla.latency_ms, color=LIMIT, linewidth=1.4)
    axes.annotate(
        text, (0.01, sla.latency_ms), xycoords=("axes fraction", "data"), xytext=(0, 4),
        textcoords="offset points", fontsize=9, color=LIMIT,
    )  # fmt: skip


def _percentile_name(percentile: float) -> str:
    return f"p{percentile:g}"


def _round3(value: float) -> float:
    """Three significant digits: what a label in a plot can carry."""
    return float(f"{value:.3g}")
