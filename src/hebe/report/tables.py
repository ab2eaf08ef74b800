"""Figures as tables for the terminal (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from hebe.report.figures import Figure, FigureFile
from hebe.report.fitting_table import Column, FittingTable


def figure_tables(files: Sequence[tuple[Path, FigureFile]]) -> Group:
    """For each file its path, then one row a figure: name, value, spread, unit, target, met or missed, the paper's."""
    parts: list[RenderableType] = []
    for path, file in files:
        table = FittingTable(
            "figure",
            Column("value", right=True),
            Column("spread", right=True, spare=2),
            "unit",
            "target",
            "met",
            Column("paper", folds=True, spare=1),
        )
        for figure in file.figures:
            table.add_row(
                figure.name,
                format_number(figure.value),
                _spread(figure),
                figure.unit,
                figure.target or "",
                _met(figure),
                "" if figure.paper is None else str(figure.paper),
            )
        heading = Text(f"{path}{' (quick)' if file.quick else ''}", "bold", no_wrap=True, overflow="ignore")
        parts += [*([Text()] if parts else []), heading, table]
    return Group(*parts)


def format_number(value: float) -> str:
    """Four significant digits, with thousands separated: 0.9312, 3,330, 1.2e-05."""
    if value != 0 and not 1e-3 <= abs(value) < 1e15:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_estimate(value: float, *, estimated: bool) -> str:
    """`format_number`, with a `~` before what is estimated."""
    return f"{'~' if estimated else ''}{format_number(value)}"


def _spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{format_number(figure.low)} to {format_number(figure.high)}"


def _met(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("met", style="green") if figure.met else Text("missed", style="bold red")
