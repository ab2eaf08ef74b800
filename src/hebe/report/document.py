"""A result as blocks, written once: shown on the terminal, as a page and, its data, as JSON.

document = Document(
    "Pool plan",
    [
        KeyNumbers([KeyNumber("price", "1.2", "per hour")]),
        Heading("Servers"),
        Picture(partial(draw_servers, plan), "How many of each type."),
        Table("", ["server type", Column("servers", right=True)], [["gpu", 2], ["cpu", 10]]),
        Text("Not simulated.", Tone.WARNING),
    ],
    data={"price_per_hour": 1.2},
)

`hebe.report.terminal` shows its tables and texts, `hebe.report.html` all of it but what only the terminal needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from hebe.report.tables import Column, format_number


class DocumentError(ValueError):
    """A block that is not well formed; the message names it."""


class Tone(StrEnum):
    """How a text or a table's cell stands out."""

    PLAIN = ""
    QUIET = "quiet"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Heading:
    """Starts a section of the page. The terminal shows none: its tables stand close together."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, or a cell of a table. `on_page` is False for what the page says elsewhere, as in its lede."""

    text: str
    tone: Tone = Tone.PLAIN
    on_page: bool = True


@dataclass(frozen=True, slots=True)
class KeyNumber:
    """One number that the page leads with; `good` colours it (None: neither good nor bad)."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """A row of large numbers on the page; the terminal has them in its tables."""

    numbers: Sequence[KeyNumber]


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to type, one a line, on the page."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Picture:
    """One `<svg>` element of this package's plots, or what draws it, which is called for a page only; and its caption.

    Raises `DocumentError` for what is no such element.
    """

    svg: str | Callable[[], str]
    caption: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.svg, str):
            _check_svg(self.svg)

    def draw(self) -> str:
        """The element."""
        if isinstance(self.svg, str):
            return self.svg
        drawn = self.svg()
        _check_svg(drawn)
        return drawn


Cell = str | float | Text | None
"""A text, a number (shown with four digits; give a text to show it otherwise), or None for what is not known."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under `columns`. `note` says what a reader must know; `caption` explains more where there is room, on the
    page.

    A column that is a plain `str` stands to the right where its cells begin with digits, else it folds. A table without
    rows is not shown. Raises `DocumentError` for a row of another length and for a number that is not finite.
    """

    title: str
    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        names = self.headings
        for row in self.rows:
            if len(row) != len(names):
                raise DocumentError(f"table {self.title!r}, row {row!r}: {len(row)} cells, {len(names)} columns")
            for name, cell in zip(names, row, strict=True):
                if not _is_known(cell):
                    raise DocumentError(f"table {self.title!r}, {name}: {cell!r} in {row!r}: None is what is not known")

    @property
    def headings(self) -> list[str]:
        """The names of the columns."""
        return [column if isinstance(column, str) else column.heading for column in self.columns]

    def laid_out(self) -> list[Column]:
        """The columns, with alignment and folding also where only a name was given."""
        return [
            column if isinstance(column, Column) else _column_of(column, [row[at] for row in self.rows])
            for at, column in enumerate(self.columns)
        ]

    def texts(self) -> list[list[Text]]:
        """The rows as they are shown."""
        return [[_shown(cell) for cell in row] for row in self.rows]


Block = Heading | Text | str | KeyNumbers | Table | Picture | Commands
"""What a document is made of; a plain `str` is a paragraph of explanation for the page."""


@dataclass(frozen=True, slots=True)
class Document:
    """A result: its page's `title`, `lede` and `footer`, its `blocks` in reading order, and `data`, what `--json`
    prints of it."""

    title: str
    blocks: Sequence[Block]
    lede: str = ""
    footer: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> list[Picture]:
        """The pictures, in reading order."""
        return [block for block in self.blocks if isinstance(block, Picture)]


def notes(texts: Sequence[Text]) -> list[Block]:
    """The texts as the last section, if there are any."""
    return [Heading("Notes"), *texts] if texts else []


def verdict(met: bool | None) -> Text:
    """Whether a target was met, as a table's cell; empty where there is none."""
    if met is None:
        return Text("")
    return Text("met", Tone.GOOD) if met else Text("missed", Tone.BAD)


def _check_svg(svg: str) -> None:
    if not svg.lstrip().startswith("<svg"):
        raise DocumentError(f"picture {svg[:40]!r}: must be one <svg> element")


def _is_known(cell: object) -> bool:
    """False for a number that is none."""
    return not isinstance(cell, Real) or math.isfinite(cell)


def _column_of(heading: str, cells: Sequence[Cell]) -> Column:
    starts = [_shown(cell).text.lstrip(_BEFORE_DIGITS)[:1] for cell in cells]
    right = all(not start or start.isdigit() for start in starts)
    return Column(heading, right=right, folds=not right)


_BEFORE_DIGITS = "-+<>≤≥~( "


def _shown(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(_text(cell))


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Integral):
        return f"{int(cell):,}"
    return format_number(float(cell)) if isinstance(cell, Real) else str(cell)
