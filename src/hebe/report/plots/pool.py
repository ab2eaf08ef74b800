"""Plots of a pool of servers: what a budget buys, which type serves which query sizes. See `style`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.report.plots.legend import legend_below
from hebe.report.plots.style import INK, QUIET, SERIES, drawing, plain_ticks, to_svg
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
