"""One self-contained HTML page: text, key numbers, plots, tables, commands. It loads nothing from anywhere.

page = Page("Demo", "A small DLRM, served on this machine.")
page.key_numbers([KeyNumber("latency-bounded throughput", "412", "queries/s")])
page.heading("Latency")
page.plot(latency_tail({"all": latency_ms}), "Latency counts from the scheduled arrival.")
page.write(Path("out/demo/index.html"))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hebe.report.whole_file import write_whole


@dataclass(frozen=True, slots=True)
class KeyNumber:
    """One number that the page leads with; `good` colours it (None: neither good nor bad)."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    good: bool | None = None


class Page:
    """A page, block after block in the order of the calls. All text is escaped; plots are this package's SVG."""

    def __init__(self, title: str, lede: str = "", footer: str = "") -> None:
        self.title = title
        self.lede = lede
        self.footer = footer
        self._blocks: list[tuple[str, Any]] = []

    def heading(self, text: str) -> None:
        """Start a section."""
        self._blocks.append(("heading", text))

    def paragraph(self, text: str) -> None:
        """A paragraph of plain text."""
        self._blocks.append(("paragraph", text))

    def key_numbers(self, numbers: Iterable[KeyNumber]) -> None:
        """A row of large numbers."""
        self._blocks.append(("key_numbers", list(numbers)))

    def plot(self, svg: str, caption: str = "") -> None:
        """An SVG from `hebe.report.plots`, which is put in as it is, and a caption."""
        self._blocks.append(("plot", (Markup(svg), caption)))

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[object]],
        caption: str = "",
        right: Sequence[bool] | None = None,
    ) -> None:
        """A table. Columns stand to the right where `right` says so, by default where cells begin with a digit.

        Raises ValueError for a row with more or fewer cells than there are headings.
        """
        cells = [[str(cell) for cell in row] for row in rows]
        for row in cells:
            if len(row) != len(headings):
                raise ValueError(f"table row {row}: {len(row)} cells under {len(headings)} headings")
        if right is None:
            right = [
                bool(cells) and all(not row[column] or row[column].lstrip("-+<>≤≥ ")[:1].isdigit() for row in cells)
                for column in range(len(headings))
            ]
        self._blocks.append(("table", (list(headings), cells, list(right), caption)))

    def commands(self, lines: Iterable[str]) -> None:
        """Commands to type, one a line."""
        self._blocks.append(("commands", "\n".join(lines)))

    def render(self) -> str:
        """The page as HTML."""
        environment = Environment(
            loader=PackageLoader("hebe.report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("page.html").render(
            title=self.title, lede=self.lede, footer=self.footer, blocks=self._blocks
        )

    def write(self, path: Path) -> Path:
        """Write the page (its directory is made if missing), replacing an older one at once or not at all."""
        write_whole(path, self.render())
        return path
