"""Blocks on the terminal: tables and texts, in reading order. Print each part with `crop=False`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text as Styled

from hebe.report.document import Block, Table, Text, Tone
from hebe.report.tables import FittingTable

_STYLES = {
    Tone.PLAIN: "",
    Tone.QUIET: "dim",
    Tone.GOOD: "bold green",
    Tone.WARNING: "yellow",
    Tone.BAD: "bold red",
}


def on_terminal(blocks: Sequence[Block]) -> Iterator[RenderableType]:
    """What to print: tables stand between blank lines, texts one below the other."""
    after_text = True  # nothing stands above yet
    for number, block in enumerate(_shown(blocks)):
        is_text = isinstance(block, Text)
        if number and not (is_text and after_text):
            yield Styled()
        after_text = is_text
        if isinstance(block, Text):
            yield Styled(block.text, _STYLES[block.tone])
        else:
            yield _table(block)


def _shown(blocks: Sequence[Block]) -> Iterator[Text | Table]:
    for block in blocks:
        if isinstance(block, Text) or (isinstance(block, Table) and block.rows):
            yield block


def _table(table: Table) -> RenderableType:
    """Title, rows and note; what names a row, the first cell where words stand, is bold."""
    columns = table.laid_out()
    shown = FittingTable(*columns)
    for row in table.texts():
        cells = [Styled(cell.text, _STYLES[cell.tone]) for cell in row]
        if not columns[0].right and row[0].tone is Tone.PLAIN:
            cells[0].stylize("bold")
        shown.add_row(*cells)
    title = [Styled(table.title, "bold", no_wrap=True, overflow="ignore")] if table.title else []
    return Group(*title, shown, *([Styled(table.note, "dim")] if table.note else []))
