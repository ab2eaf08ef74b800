"""Plots of how several models stand to their SLA targets. See `style`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hebe.report.plots.style import LIMIT, QUIET, SERIES, drawing, plain_ticks, to_svg

_WIDEST = 100.0
"""What is later than so many bounds is drawn there."""

_TICKS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def tail_against_bound(rows: Mapping[str, Sequence[float]], title: str = "Tail latency over its bound") -> str:
    """For each model the tail latency of each of its runs, as a share of the latency bound; at 1 is the bound.

    A dot a run, its mean in figures; the axis is logarithmic. Shares are more than 0 and may be infinite.
    """
    means = np.array([float(np.mean(shares)) for shares in rows.values()])
    drawn = [np.minimum(np.asarray(shares, dtype=np.float64), _WIDEST) for shares in rows.values()]
    every = np.concatenate([*drawn, np.ones(1)])
    with drawing(height=1.6 + 0.42 * max(len(rows), 1)) as (canvas, axes):
        axes.set_xscale("log")
        axes.axvline(1.0, color=LIMIT, linewidth=1.2, linestyle=(0, (4, 3)))
        for place, (mean, shares) in enumerate(zip(means.tolist(), drawn, strict=True)):
            colour = LIMIT if mean > 1 else SERIES[0]
            axes.plot(shares, np.full(len(shares), place), "o", color=colour, alpha=0.8)
            axes.annotate(
                f"{mean:.2f}", (float(shares.max()), place), xytext=(8, 0), textcoords="offset points", va="center",
                fontsize=9, color=QUIET,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        low, high = min(0.5, float(every.min()) * 0.8), max(1.5, float(every.max()) * 1.6)
        axes.set_xlim(low, high)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.minorticks_off()
        axes.set_xticks([at for at in _TICKS if low <= at <= high])
        plain_ticks(axes.xaxis, lambda share: f"{share:g}")
        axes.set_title(title)
        axes.set_xlabel("tail latency / bound")
        return to_svg(canvas, f"{title}: {', '.join(rows)}")
