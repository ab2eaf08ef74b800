"""Plots of a pool of servers and of its SLA targets: what a budget buys, which type serves which query sizes, how busy
types are, and how far the latencies of several models are from their bounds. See `style`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.report.plots.style import INK, LIMIT, QUIET, SERIES, drawing, legend_below, plain_ticks, to_svg
from hebe.report.tables import format_number

_DASHES: tuple[object, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def cost_frontier(
    lines: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    points: Mapping[str, tuple[float, float]],
    budget_per_hour: float,
    title: str = "Throughput against price",
    *,
    sampled: Collection[str] = (),
) -> str:
    """The most that budgets buy, and single pools as points (price per hour, queries/s).

    Each of `lines` has budgets per hour and queries/s, alike in length. It holds until the next budget; of those that
    are `sampled` nothing is known between them: each is a mark, joined by straight lines.
    """
    last = max((float(np.max(budgets)) for budgets, _ in lines.values() if np.size(budgets)), default=0.0)
    last = max(last, budget_per_hour)
    with drawing(height=4.4) as (canvas, axes):
        for number, (name, (budgets, qps)) in enumerate(lines.items()):
            style: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "linestyle": _DASHES[number % len(_DASHES)]}
            x, y = np.asarray(budgets, dtype=np.float64), np.asarray(qps, dtype=np.float64)
            if name in sampled:
                axes.plot(x, y, marker=".", linewidth=1.0, label=name, **style)
            else:
                axes.step(np.append(x, last), np.append(y, y[-1:]), where="post", label=name, **style)
        for number, (name, (price, qps)) in enumerate(points.items(), len(lines)):
            axes.plot([price], [qps], "o", color=SERIES[number % len(SERIES)], markersize=8, label=name)
        axes.axvline(budget_per_hour, color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            f"budget {format_number(budget_per_hour)}", (budget_per_hour, 0.03), xycoords=("data", "axes fraction"),
            xytext=(5, 0), textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        plain_ticks(axes.xaxis, format_number)
        plain_ticks(axes.yaxis, format_number)
        axes.set_title(title)
        axes.set_xlabel("price per hour")
        axes.set_ylabel("queries/s")
        legend_below(canvas, 2)
        return to_svg(canvas, f"{title}: {', '.join([*lines, *points])}")


def shares_by_size(
    edges: Sequence[int], shares: Mapping[str, npt.ArrayLike], title: str = "Who serves which query sizes"
) -> str:
    """Stacked to one: of the queries from `edges[i]` to below `edges[i + 1]` items, the share that each server type
    serves, `[sizes]`; nan where there are no such queries."""
    with drawing(height=3.8) as (canvas, axes):
        floor = np.zeros(len(edges) - 1)
        for number, (name, values) in enumerate(shares.items()):
            top = floor + np.nan_to_num(np.asarray(values, dtype=np.float64))
            axes.stairs(
                top, edges, baseline=floor, fill=True, color=SERIES[number % len(SERIES)], alpha=0.85, linewidth=0,
                label=name,
            )  # fmt: skip
            floor = top
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, 1)
        axes.grid(visible=False)
        plain_ticks(axes.xaxis, format_number)
        plain_ticks(axes.yaxis, lambda share: f"{share:.0%}")
        axes.set_title(title)
        axes.set_xlabel("query size (items)")
        axes.set_ylabel("share of their items")
        legend_below(canvas, 4)
        return to_svg(canvas, f"{title}: {', '.join(shares)}")


def utilisation_bars(rows: Mapping[str, float], title: str = "Utilisation") -> str:
    """For each server type, the share of their time that its servers work, in 0..1."""
    with drawing(height=1.4 + 0.42 * max(len(rows), 1)) as (canvas, axes):
        places = np.arange(len(rows))
        shares = np.array(list(rows.values()))
        axes.barh(places, np.ones(len(rows)), height=0.58, color=QUIET, alpha=0.15)
        axes.barh(places, shares, height=0.58, color=SERIES[0])
        for place, share in zip(places.tolist(), shares.tolist(), strict=True):
            axes.annotate(
                f"{share:.1%}", (share, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
            )
        axes.set_yticks(places, list(rows))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        plain_ticks(axes.xaxis, lambda share: f"{share:.0%}")
        axes.set_title(title)
        return to_svg(canvas, f"{title}: {', '.join(rows)}")


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
