"""Lines over iterations or batch sizes, for the studies of HPS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from hebe.report.plots.style import drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe_lab.studies.hps.setting import Values

_MEDIAN_OF = 9


def lines(
    series: Mapping[str, tuple[Sequence[float] | Values, Sequence[float] | Values]],
    x_label: str,
    y_label: str,
    title: str,
    *,
    marked: bool = False,
    logarithmic: bool = False,
) -> str:
    """One line of (x, y) a series, six at most, over a logarithmic x axis.

    The y axis begins at 0 unless it is `logarithmic`. `marked`: a mark and a tick at each x.
    """
    with drawing(height=4.2) as (canvas, axes):
        for name, (x, y) in series.items():
            axes.plot(x, y, label=name, marker="o" if marked else None)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
        if marked:
            axes.set_xticks(sorted({float(value) for x, _ in series.values() for value in x}))
        axes.xaxis.set_minor_locator(NullLocator())
        plain_ticks(axes.xaxis, format_number)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        plain_ticks(axes.yaxis, format_number)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(title)
        canvas.legend(loc="outside lower center", ncols=2 if len(series) == 4 else 3)
        return to_svg(canvas, f"{title}: {', '.join(series)}")


def running_median(values: Values) -> Values:
    """The median of each value and those around it: a busy machine's outliers hide the course."""
    reach = _MEDIAN_OF // 2
    padded = np.pad(values, reach, mode="edge")
    median: Values = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_OF), axis=1)
    return median
