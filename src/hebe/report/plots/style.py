"""How every plot looks, by day and by night: one SVG whose colours follow the reader's colour scheme.

matplotlib knows fixed colours only. So plots are drawn in stand-in colours, one for each role, and the finished SVG has
them replaced by CSS variables that it defines itself. It needs nothing from the page around it.

The names of a plot's series stand below it, in as many columns as their widths leave room for.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullFormatter

INK = "#010101"
QUIET = "#020202"
GRID = "#030303"
LIMIT = "#040404"
SERIES = ("#050505", "#060606", "#070707", "#080808", "#090909", "#0a0a0a")

_ROLES = {
    INK: ("ink", "#1f2328", "#e6e8eb"),
    QUIET: ("quiet", "#656d76", "#9aa4ae"),
    GRID: ("grid", "#e3e6ea", "#30363d"),
    LIMIT: ("limit", "#b3261e", "#ff8a80"),
    SERIES[0]: ("series-1", "#2f6fb3", "#79b0ea"),
    SERIES[1]: ("series-2", "#c8641b", "#f0a15e"),
    SERIES[2]: ("series-3", "#2d8659", "#6fc79b"),
    SERIES[3]: ("series-4", "#7d55a8", "#bd9fe3"),
    SERIES[4]: ("series-5", "#8a6d1d", "#d9bd62"),
    SERIES[5]: ("series-6", "#55606b", "#a3aeb9"),
}
_STAND_IN_PATTERN = re.compile(rf"(?:{'|'.join(_ROLES)})\b")

_STYLE: dict[Any, Any] = {
    "figure.dpi": 72,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.titley": 1.0,  # else every layout asks how high the ticks above the axes reach: there are none
    "axes.labelsize": 11,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "axes.prop_cycle": cycler(color=SERIES),
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hebe",
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


@contextmanager
def drawing(width: float = 7.2, height: float = 3.8) -> Iterator[tuple[Drawing, Axes]]:
    """An empty plot of `width` x `height` inches in the shared style."""
    # constrained layout warns where nothing fits; such a plot is still better than none, so sizes are generous.
    with mpl.rc_context(_STYLE):
        canvas = Drawing(figsize=(width, height), layout="constrained")
        yield canvas, canvas.add_subplot()


def to_svg(canvas: Drawing, description: str) -> str:
    """The drawing as one `<svg>` element to put into a page or a file; `description` is its text alternative."""
    buffer = io.StringIO()
    writer: Any = FigureCanvasSVG(canvas)
    # `savefig` would draw all of it once more, unseen, to have it laid out.
    layout: Any = canvas.get_layout_engine()
    layout.execute(canvas)
    canvas.set_layout_engine("none")
    writer.print_svg(buffer, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = _STAND_IN_PATTERN.sub(lambda match: f"var(--{_ROLES[match[0]][0]})", svg)
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    opening, rest = svg.split(">", 1)
    label = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return f'{opening} class="plot" role="img" aria-label="{label}">\n<style>{_colour_rules()}</style>{rest}'


def plain_ticks(axis: Any, text: Callable[[float], str]) -> None:
    """Label an axis' major ticks by `text`, and no minor ones (a logarithmic axis writes powers of ten else)."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())


def name_places(axes: Axes, names: Sequence[str]) -> None:
    """Name the places 0, 1, ... along the horizontal axis, where bars stand."""
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")


def _colour_rules() -> str:
    day = "".join(f"--{name}:{light};" for name, light, _ in _ROLES.values())
    night = "".join(f"--{name}:{dark};" for name, _, dark in _ROLES.values())
    font = 'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif!important'
    return f"svg.plot{{{day}}}svg.plot text{{{font}}}@media(prefers-color-scheme:dark){{svg.plot{{{night}}}}}"


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
