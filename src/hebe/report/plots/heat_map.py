"""A matrix as coloured cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.patches import Rectangle

from hebe.report.plots.style import INK, SERIES, drawing, to_svg

_MOST_CELLS_A_SIDE = 32
"""Larger matrices are averaged over neighbours: labels and numbers could not be read, and the file would be large."""


def heat_map(
    values: npt.ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    caption: str = "",
    *,
    digits: int = 2,
    limits: tuple[float, float] | None = None,
) -> str:
    """One `<svg>`: the darker a cell, the larger its value; NaN stays empty.

    `values` is `[rows, columns]`; `caption` stands under the columns' names and says what the values are. `limits` are
    the values of the lightest and of the darkest colour, the least and the greatest value unless they are given.
    Raises ValueError where `values` has another shape than `[rows, columns]`.
    """
    cells = np.asarray(values, dtype=np.float64)
    if cells.shape != (len(rows), len(columns)):
        raise ValueError(f"heat map {title!r}: {cells.shape} values for {len(rows)} rows and {len(columns)} columns")
    cells, rows = _coarser(cells, list(rows))
    turned, columns = _coarser(cells.T, list(columns))
    cells = turned.T
    finite = cells[np.isfinite(cells)]
    least, most = limits or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    shade = np.clip((cells - least) / (most - least), 0.0, 1.0) if most > least else np.full_like(cells, 0.5)
    with drawing(width=2.2 + 0.62 * len(columns), height=1.6 + 0.42 * len(rows)) as (canvas, axes):
        for down in range(len(rows)):
            for across in range(len(columns)):
                if not np.isfinite(cells[down, across]):
                    continue
                # Never so strong that the number could not be read, by day or by night.
                corner, alpha = (across - 0.5, down - 0.5), 0.06 + 0.49 * shade[down, across]
                axes.add_patch(Rectangle(corner, 1, 1, facecolor=SERIES[0], alpha=alpha, linewidth=0))
                axes.text(
                    across, down, f"{cells[down, across]:.{digits}f}", ha="center", va="center", color=INK, fontsize=9
                )
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title(title)
        axes.set_xlabel(caption)
        return to_svg(canvas, f"{title}: {caption}" if caption else title)


def _coarser(cells: npt.NDArray[np.float64], names: list[str]) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Rows averaged in groups so that at most `_MOST_CELLS_A_SIDE` are left, named by the first and the last."""
    if len(names) <= _MOST_CELLS_A_SIDE:
        return cells, names
    groups = np.array_split(np.arange(len(names)), _MOST_CELLS_A_SIDE)
    averaged = np.stack([_mean(cells[group]) for group in groups])
    return averaged, [
        f"{names[group[0]]} … {names[group[-1]]}" if len(group) > 1 else names[group[0]] for group in groups
    ]


def _mean(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of what is finite in each column; NaN where nothing is."""
    known = np.isfinite(rows)
    count = known.sum(axis=0)
    total = np.where(known, rows, 0.0).sum(axis=0)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))
