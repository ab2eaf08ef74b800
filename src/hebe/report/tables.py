"""Tables for the terminal without lines, in which no name is broken and no number cut, and numbers as they show them.

Where a table is wider than the terminal, the columns that may fold go on below at their words, then columns are left
out, the most dispensable first, and a last line says so. Print it with `crop=False`: what is wider still runs on into
the terminal's next line, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text


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


_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column and what may become of it where there is not enough room.

    `right` aligns it to the right. `folds`: its text may go on below, never within a word. `spare`: it may be left
    out, the largest number first; 0: never.
    """

    heading: str = ""
    right: bool = False
    folds: bool = False
    spare: int = 0


class FittingTable:
    """Rows of cells under headings; a `str` is plain text, a `Text` may be styled. Empty columns are not shown."""

    def __init__(self, *columns: Column | str) -> None:
        self._columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self._rows: list[list[Text] | Text] = []

    def add_row(self, *cells: str | Text) -> None:
        """A row; raises `ValueError` unless there is a cell for each column."""
        if len(cells) != len(self._columns):
            raise ValueError(f"table row {cells}: {len(cells)} cells for {len(self._columns)} columns")
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def add_title(self, title: str) -> None:
        """A line of its own between rows, over those that follow."""
        self._rows.append(_whole(title, "dim italic"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich asks for: the table's lines, fitted to `options.max_width`."""
        headings = [Text(column.heading, style="bold") for column in self._columns]
        rows = [row for row in self._rows if isinstance(row, list)]
        shown = [i for i in range(len(self._columns)) if any(row[i] for row in rows)]
        cells = {i: [headings[i], *(row[i] for row in rows)] for i in shown}
        least = {i: max(_longest(cell, whole=not self._columns[i].folds) for cell in cells[i]) for i in shown}
        left_out = []
        while _total(least[i] for i in shown) > options.max_width:
            spare = max(shown, key=lambda i: self._columns[i].spare)
            if not self._columns[spare].spare:
                break
            shown.remove(spare)
            left_out.append(self._columns[spare].heading)
        widths = {i: max(_longest(cell, whole=True) for cell in cells[i]) for i in shown}
        while _total(widths.values()) > options.max_width:
            wide = max(shown, key=lambda i: (widths[i] > least[i], widths[i]))
            if widths[wide] == least[wide]:
                break
            widths[wide] -= 1
        if any(self._columns[i].heading for i in shown):
            yield from self._lines(console, headings, widths)
        for row in self._rows:
            if isinstance(row, Text):
                yield row
            else:
                yield from self._lines(console, row, widths)
        if left_out:
            yield _whole(f"(not enough room for: {', '.join(left_out)})", "dim")

    def _lines(self, console: Console, row: Sequence[Text], widths: dict[int, int]) -> Iterator[Text]:
        """The row's lines: one, or as many as its most folded cell has."""
        folded = {i: list(row[i].wrap(console, width)) if row[i] else [] for i, width in widths.items()}
        for number in range(max(map(len, folded.values()), default=0)):
            line = _whole()
            for at, (i, lines) in enumerate(folded.items()):
                part = lines[number].copy() if number < len(lines) else Text()
                part.rstrip()
                blank = " " * (widths[i] - part.cell_len)
                line.append(_GAP if at else "")
                line.append_text(Text.assemble(blank, part) if self._columns[i].right else Text.assemble(part, blank))
            line.rstrip()
            yield line


def _whole(text: str = "", style: str = "") -> Text:
    """A line that is printed as it is, however long."""
    return Text(text, style, no_wrap=True, overflow="ignore")


def _longest(cell: Text, whole: bool) -> int:
    """Cells that the longest line takes, or, where not `whole`, the longest word."""
    return max((Text(part).cell_len for part in (cell.plain.splitlines() if whole else cell.plain.split())), default=0)


def _total(widths: Iterable[int]) -> int:
    """Cells that columns of these widths take side by side."""
    every = list(widths)
    return sum(every) + len(_GAP) * (len(every) - 1)
