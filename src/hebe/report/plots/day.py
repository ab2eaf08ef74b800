"""Plots over the intervals of a day: what is there, stacked, and several plans beside each other. See `style`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from hebe.report.plots.style import LIMIT, SERIES, drawing, legend_below, plain_ticks, to_svg
from hebe.report.tables import format_number

_MOST_LAYERS = 2 * len(SERIES)
"""More cannot be told apart: the six colours, and the same paler."""
_OTHERS = "others"
_MOST_IN_A_LINE = 6
_DASHES: tuple[object, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
"""Of lines in the same colour."""


def stacked_over_day(edges_s: npt.ArrayLike, layers: Mapping[str, npt.ArrayLike], unit: str, title: str) -> str:
    """Layers on top of each other, each constant within an interval; of very many, the least ones are joined.

    `edges_s` `[intervals + 1]`, seconds from the day's start; each layer `[intervals]`, at least 0.
    """
    edges_h = np.asarray(edges_s, dtype=np.float64) / 3600.0
    drawn = _fewest({name: np.asarray(values, dtype=np.float64) for name, values in layers.items()})
    with drawing(height=4.2) as (canvas, axes):
        floor = np.zeros(len(edges_h))
        for number, (name, values) in enumerate(drawn.items()):
            top = floor + _to_edges(values)
            shade = 0.85 if number < len(SERIES) else 0.4
            axes.fill_between(
                edges_h, floor, top, step="post", color=SERIES[number % len(SERIES)], alpha=shade, linewidth=0,
                label=name,
            )  # fmt: skip
            floor = top
        _day_axes(axes, edges_h, unit, title)
        legend_below(canvas, _MOST_IN_A_LINE)
        return to_svg(canvas, f"{title}: {', '.join(drawn)}")


def lines_over_day(
    edges_s: npt.ArrayLike,
    lines: Mapping[str, npt.ArrayLike],
    unit: str,
    title: str,
    *,
    limits: Mapping[str, float] | None = None,
    text: Callable[[float], str] = format_number,
) -> str:
    """One line for each series, constant within an interval; the first one is drawn on top. Shapes as for a stack; nan:
    there is nothing to draw. `limits` are levels across the day by name; `text` writes the values at the axis."""
    edges_h = np.asarray(edges_s, dtype=np.float64) / 3600.0
    with drawing(height=4.2) as (canvas, axes):
        for number, (name, values) in enumerate(lines.items()):
            heights = _to_edges(np.asarray(values, dtype=np.float64))
            colour, dash = SERIES[number % len(SERIES)], _DASHES[number // len(SERIES) % len(_DASHES)]
            order = 3 - 0.1 * number
            axes.step(edges_h, heights, where="post", color=colour, linestyle=dash, label=name, zorder=order)
        for name, level in (limits or {}).items():
            axes.axhline(level, color=LIMIT, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                name, (0.01, level), xycoords=("axes fraction", "data"), xytext=(0, -4), textcoords="offset points",
                va="top", fontsize=9, color=LIMIT,
            )  # fmt: skip
        _day_axes(axes, edges_h, unit, title, text)
        legend_below(canvas, _MOST_IN_A_LINE)
        return to_svg(canvas, f"{title}: {', '.join(lines)}")


def _to_edges(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """One value an edge, as steps are drawn: the last interval's value once more at its end."""
    return np.append(values, values[-1:])


def _fewest(layers: dict[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
    """The layers with anything in them, in their order; if they are too many, the smallest are summed."""
    present = {name: values for name, values in layers.items() if values.any()}
    if len(present) <= _MOST_LAYERS:
        return present
    by_size: Sequence[str] = sorted(present, key=lambda name: -float(present[name].sum()))
    kept = set(by_size[: _MOST_LAYERS - 1])
    drawn = {name: values for name, values in present.items() if name in kept}
    drawn[_OTHERS] = np.sum([present[name] for name in by_size[_MOST_LAYERS - 1 :]], axis=0)
    return drawn


def _day_axes(
    axes: Axes,
    edges_h: npt.NDArray[np.float64],
    unit: str,
    title: str,
    text: Callable[[float], str] = format_number,
) -> None:
    span_h = float(edges_h[-1] - edges_h[0])
    for step in (0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0):
        if span_h / step <= 9:
            axes.xaxis.set_major_locator(MultipleLocator(step))
            break
    axes.set_xlim(edges_h[0], edges_h[-1])
    axes.set_ylim(bottom=0)
    plain_ticks(axes.xaxis, format_number)
    plain_ticks(axes.yaxis, text)
    axes.set_xlabel("hours from the start")
    axes.set_ylabel(unit)
    axes.set_title(title)
