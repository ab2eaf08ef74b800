"""Plots as SVG text: each function takes numbers and returns one `<svg>` element (see `style`).

Latencies are milliseconds, rates are queries per second. Samples are one-dimensional; that of a query without an answer
is not finite, and is not drawn. Percentiles are nearest-rank, as those of tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from hebe.latency import LatencyRecorder, nearest_rank
from hebe.report.plots.style import INK, LIMIT, QUIET, SERIES, drawing, name_places, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.spec import SlaTarget

_TAIL_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One arrival rate and the tail latency of all queries that was measured under it: infinite where it lies among
    those that had no answer. `passed`: the SLA was met."""

    rate_qps: float
    tail_latency_ms: float
    passed: bool


def latency_histogram(
    latencies: npt.ArrayLike | LatencyRecorder, sla: SlaTarget | None = None, title: str = "Latency"
) -> str:
    """How often each latency occurred (logarithmic axis), with p50, p95, p99 and p99.9 marked.

    These are the recorder's own, of the answers; of samples those of all, so one that lies among queries without an
    answer is not marked.
    """
    everything = _ascending(latencies.samples_s() * 1e3 if isinstance(latencies, LatencyRecorder) else latencies)
    samples = _finite(everything)
    answers = latencies.answers if isinstance(latencies, LatencyRecorder) else samples.size

    def percentile_ms(percentile: float) -> float:
        if isinstance(latencies, LatencyRecorder):
            return latencies.percentile_s(percentile) * 1e3
        return float(everything[nearest_rank(percentile, everything.size) - 1])

    with drawing() as (canvas, axes):
        if not _empty(axes, samples):
            low, high = _log_range(samples, sla)
            axes.hist(
                samples,
                bins=np.geomspace(low, high, 80).tolist(),
                weights=np.full(samples.size, answers / samples.size),  # a recorder's stand for more answers than one
                color=SERIES[0],
                alpha=0.6,
                histtype="stepfilled",
            )
            axes.set_xscale("log")
            axes.set_xlim(low, high)
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)))
            axes.margins(y=0.28)
            _mark_latencies(axes, {at: percentile_ms(at) for at in (50.0, 95.0, 99.0, 99.9)}, sla)
            plain_ticks(axes.xaxis, format_number)
            plain_ticks(axes.yaxis, format_number)
        axes.set_title(title)
        axes.set_xlabel("latency (ms)")
        axes.set_ylabel("queries")
        return to_svg(canvas, f"{title}: histogram of {answers} latencies")


def latency_tail(
    latency_ms: Mapping[str, npt.ArrayLike], sla: SlaTarget | None = None, title: str = "Latency by percentile"
) -> str:
    """Latency of each percentile, the axis stretched towards the tail (p50, p90, p99, p99.9 evenly apart).

    One line a series, each as far as its samples reach: p99.9 needs a thousand. It leaves the plot upwards where
    queries had no answer, and so crosses the SLA where it does for all of them.
    """
    series = {name: _ascending(samples) for name, samples in latency_ms.items()}
    longest = max((samples.size for samples in series.values()), default=0)
    with drawing() as (canvas, axes):
        if not _empty(axes, *(_finite(samples) for samples in series.values())):
            # the share of queries that are slower, falling; each latency is that of the percentiles up to its rank
            for name, samples in series.items():
                slower = 1.0 - np.arange(samples.size) / samples.size
                step = _thin(samples.size)
                heights = np.where(np.isfinite(samples[step]), samples[step], np.nan)
                axes.plot(slower[step], heights, label=name, drawstyle="steps-post")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlim(1.0, 1.0 / max(longest, 10))
            marks = [mark for mark in _TAIL_PERCENTILES if 100.0 - mark >= 100.0 / max(longest, 10)]
            axes.set_xticks([1.0 - mark / 100.0 for mark in marks], [_percentile_name(mark) for mark in marks])
            axes.xaxis.set_minor_locator(NullLocator())
            _log_latency_axis(axes, sla)
            for line in axes.get_lines():
                heights = np.asarray(line.get_ydata())
                line.set_ydata(np.where(np.isnan(heights), 10 * axes.get_ylim()[1], heights))
            if sla is not None:
                axes.axhline(sla.latency_ms, color=LIMIT, linewidth=1.4)
                axes.annotate(
                    _sla_words(sla), (0.01, sla.latency_ms), xycoords=("axes fraction", "data"), xytext=(0, 4),
                    textcoords="offset points", fontsize=9, color=LIMIT,
                )  # fmt: skip
            if len(series) > 1:
                axes.legend()
        axes.set_title(title)
        axes.set_xlabel("percentile of queries")
        axes.set_ylabel("latency (ms)")
        return to_svg(canvas, f"{title}: {', '.join(series)}")


def throughput_against_latency(
    points: Sequence[LoadPoint],
    sla: SlaTarget,
    bound_qps: float | None = None,
    bound_interval_qps: tuple[float, float] | None = None,
    title: str = "Tail latency against arrival rate",
) -> str:
    """Tail latency (at the SLA's percentile) of all queries over arrival rate, with the SLA line.

    Points that missed the SLA are hollow; those whose tail latency is infinite stand at the upper edge. `bound_qps`
    marks the latency-bounded throughput, `bound_interval_qps` its confidence interval.
    """
    percentile = _percentile_name(sla.percentile)
    ordered = sorted((point for point in points if not math.isnan(point.tail_latency_ms)), key=lambda p: p.rate_qps)
    with drawing(height=4.3) as (canvas, axes):
        rates = np.array([point.rate_qps for point in ordered])
        if not _empty(axes, rates):
            latency_ms = np.array([point.tail_latency_ms for point in ordered])
            passed, beyond = np.array([point.passed for point in ordered]), np.isinf(latency_ms)
            # the line is interrupted where a point has no place on it
            axes.plot(rates, np.where(beyond, np.nan, latency_ms), color=SERIES[0], linewidth=1.2, alpha=0.45)
            met, missed, unanswered = passed & ~beyond, ~passed & ~beyond, beyond
            _mark_points(axes, rates[met], latency_ms[met], SERIES[0], "o", "SLA met", filled=True)
            _mark_points(axes, rates[missed], latency_ms[missed], LIMIT, "o", "SLA missed")
            axes.set_yscale("log")
            axes.set_xlim(0, 1.04 * max(rates.max(), bound_qps or 0.0, *(bound_interval_qps or ())))
            if beyond.all():
                axes.set_ylim(sla.latency_ms / 10, sla.latency_ms * 1.7)
            _log_latency_axis(axes, sla)
            low, top = axes.get_ylim()
            low, top = low * (low / top) ** 0.04, top * (top / low) ** (0.08 if unanswered.any() else 0.0)
            axes.set_ylim(low, top)
            if unanswered.any():
                edge = top * (low / top) ** 0.03
                label = f"SLA missed: {percentile} among queries without an answer"
                _mark_points(axes, rates[unanswered], np.full(unanswered.sum(), edge), LIMIT, "^", label)
            plain_ticks(axes.xaxis, format_number)
            axes.axhline(sla.latency_ms, color=LIMIT, linewidth=1.4, label=_sla_words(sla))
            if bound_qps is not None:
                label = f"{format_number(_round3(bound_qps))} queries/s within the SLA"
                axes.axvline(bound_qps, color=SERIES[2], linewidth=1.4, label=label)
                if bound_interval_qps is not None:
                    axes.axvspan(*bound_interval_qps, color=SERIES[2], alpha=0.18, linewidth=0)
            canvas.legend(loc="outside lower center", ncols=2)
        axes.set_title(title)
        axes.set_xlabel("arrival rate (queries/s)")
        axes.set_ylabel(f"{percentile} latency of all queries (ms)")
        return to_svg(canvas, f"{title}: {len(ordered)} measurements, {sum(p.passed for p in ordered)} within the SLA")


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


def _ascending(samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Sorted; what is not finite had no answer, and stands last as infinite."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    return np.sort(np.where(np.isfinite(values), values, np.inf))


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
    """From just under the smallest sample to the largest, or the SLA if that is near, and room for a label of it."""
    smallest = max(float(samples.min()), 1e-6)
    largest = max(float(samples.max()), smallest)
    room = 0.17
    if sla is not None and largest < 2 * sla.latency_ms < 40 * largest:
        largest, room = max(largest, sla.latency_ms), 0.3
    smallest *= 0.9
    return smallest, largest * max(largest / smallest, 2.0) ** room


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


def _mark_points(
    axes: Axes,
    rates: npt.NDArray[np.float64],
    latency_ms: npt.NDArray[np.float64],
    color: str,
    marker: str,
    label: str,
    *,
    filled: bool = False,
) -> None:
    """Points of one kind, with an entry in the legend if there are any."""
    if rates.size:
        axes.plot(
            rates, latency_ms, linestyle="none", marker=marker, color=color, markeredgewidth=1.4,
            markerfacecolor=color if filled else "none", label=label,
        )  # fmt: skip


def _mark_latencies(axes: Axes, percentiles_ms: Mapping[float, float], sla: SlaTarget | None) -> None:
    """Upright lines at the percentiles, and at the SLA where it is in sight, each with its label to the right.

    The labels descend with the latencies and each line ends at its own, so that none crosses a label.
    """
    low, high = axes.get_xlim()
    marks = [  # a latency of 0 has no place on a logarithmic axis
        (max(value, low), f"{_percentile_name(at)} {format_number(_round3(value))}", INK)
        for at, value in percentiles_ms.items()
        if math.isfinite(value)
    ]
    if sla is not None and low <= sla.latency_ms <= high:
        marks.append((sla.latency_ms, _sla_words(sla), LIMIT))
    for step, (value, text, color) in enumerate(sorted(marks)):
        top = 1.0 - 0.06 * step
        line = {"linewidth": 1.4} if color == LIMIT else {"linewidth": 0.9, "linestyle": (0, (2, 2))}
        axes.axvline(value, ymax=top, color=color, **line)
        axes.annotate(
            text, (value, top), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points",
            va="top", fontsize=9, color=color,
        )  # fmt: skip


def _sla_words(sla: SlaTarget) -> str:
    return f"SLA: {_percentile_name(sla.percentile)} ≤ {format_number(sla.latency_ms)} ms"


def _percentile_name(percentile: float) -> str:
    return f"p{percentile:g}"


def _round3(value: float) -> float:
    """Three significant digits: what a label in a plot can carry."""
    return float(f"{value:.3g}")
