"""Tables for the terminal (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hebe.report.figures import Figure, FigureFile


def figure_table(files: Sequence[tuple[Path, FigureFile]]) -> Table:
    """One row a figure: name, value, spread, unit, target, met or missed, the paper's, the file it stands in."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", overflow="fold")
    for heading in ("value", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("unit", "target", "met"):
        table.add_column(heading, no_wrap=True)
    table.add_column("paper")
    table.add_column("file", overflow="fold")
    for path, file in files:
        for figure in file.figures:
            table.add_row(
                escape(figure.name),
                format_number(figure.value),
                _spread(figure),
                escape(figure.unit),
                figure.target or "",
                _met(figure),
                "" if figure.paper is None else escape(str(figure.paper)),
                Text(f"{path}{' (quick)' if file.quick else ''}", style="dim"),
            )
    return table


def format_number(value: float) -> str:
    """Four significant digits, with thousands separated: 0.9312, 3,330, 1.2e-05."""
    if value != 0 and not 1e-3 <= abs(value) < 1e15:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{format_number(figure.low)} to {format_number(figure.high)}"


def _met(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("met", style="green") if figure.met else Text("missed", style="bold red")
