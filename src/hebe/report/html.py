"""A document as one self-contained HTML page, which loads nothing from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hebe.report.atomic_write import write_whole
from hebe.report.document import Block, Commands, Document, Heading, KeyNumbers, Picture, Table, Text


def page(document: Document) -> str:
    """The page as HTML. All text is escaped; pictures, which are this package's SVG, are put in as they are."""
    environment = Environment(
        loader=PackageLoader("hebe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    blocks = [drawn for block in document.blocks if (drawn := _drawn(block)) is not None]
    return environment.get_template("page.html").render(document=document, blocks=blocks)


def write_page(document: Document, path: Path) -> Path:
    """Write the page (its directory is made if missing), replacing an older one at once or not at all."""
    write_whole(path, page(document))
    return path


def write_picture(document: Document, path: Path) -> None:
    """Write a document's first picture, an SVG, in the same way."""
    write_whole(path, document.pictures[0].draw())


def _drawn(block: Block) -> tuple[str, Any] | None:
    """The template's name for the kind of block, and what it shows of it; None for what is not on the page."""
    if isinstance(block, Heading):
        return "heading", block.text
    if isinstance(block, str):
        return "paragraph", Text(block)
    if isinstance(block, Text):
        return ("paragraph", block) if block.on_page else None
    if isinstance(block, KeyNumbers):
        return ("key_numbers", block.numbers) if block.numbers else None
    if isinstance(block, Picture):
        return "picture", (Markup(block.draw()), block.caption)
    if isinstance(block, Commands):
        return "commands", "\n".join(block.lines)
    return ("table", (block.laid_out(), block.texts(), _caption(block))) if block.rows else None


def _caption(table: Table) -> str:
    title = f"{table.title}." if table.title else ""
    return " ".join(filter(None, (title, table.note, table.caption)))
