"""Where the names of a plot's series stand: below it, in as many columns as their widths leave room for."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

_LINES_WITHOUT_ROOM = 2
"""So many lines of names a plot's usual height has room for."""
_LINE_INCHES = 0.21
_BESIDE_NAME, _AROUND = 4.8, 0.8
"""In font sizes: a line's or patch's length, the gaps after it and between columns; what is left and right of all."""


def legend_below(canvas: Drawing, most_columns: int) -> None:
    """Name what the plot's axes have labels for, in at most so many columns and about as many names in each; where that
    takes many lines, the plot grows taller."""
    names = [name for axes in canvas.axes for name in axes.get_legend_handles_labels()[1]]
    if not names:
        return
    fewest_lines = math.ceil(len(names) / most_columns)
    widths = [_width(name) for name in names]
    room = canvas.get_figwidth() * 72.0
    columns = math.ceil(len(names) / fewest_lines)
    while columns > 1 and _needed(widths, columns) > room:
        columns -= 1
    lines = math.ceil(len(names) / columns)
    canvas.set_figheight(canvas.get_figheight() + _LINE_INCHES * max(lines - _LINES_WITHOUT_ROOM, 0))
    canvas.legend(loc="outside lower center", ncols=columns)


def _needed(widths: list[float], columns: int) -> float:
    """Points that names take in so many columns, dealt as matplotlib deals them."""
    size = float(mpl.rcParams["legend.fontsize"])
    dealt = np.array_split(np.array(widths), columns)
    return sum(float(each.max()) + _BESIDE_NAME * size for each in dealt) + _AROUND * size


def _width(name: str) -> float:
    """Points, in matplotlib's own font, which is wider than the fonts that pages take before it."""
    font = FontProperties(size=mpl.rcParams["legend.fontsize"])
    return float(TextPath((0, 0), name, prop=font).get_extents().width) if name.strip() else 0.0
