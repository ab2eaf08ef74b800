"""What the commands of `hebe plan` end in: a plan file, a page, tables, a JSON line. The options that say where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hebe.cli.options import check_written
from hebe.cli.output import make_console, print_json
from hebe.cli.result_files import check_result_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hebe.report.html import Page

RESULT = "Result"
"""Heading in their help."""

PlanOption = Annotated[
    Path, typer.Option(rich_help_panel=RESULT, help="The plan file, TOML; an older one is replaced.")
]
PageOption = Annotated[
    Path | None, typer.Option(rich_help_panel=RESULT, help="The page, HTML (default: beside the plan file).")
]


def checked_page(plan: Path, page: Path | None, read: list[Path]) -> Path:
    """Where the page goes. Wrong usage where it or the plan cannot be written, or is one of the files that are read,
    which one wants to know before the search."""
    check_result_file("--plan", plan)
    page = plan.with_suffix(".html") if page is None else page
    check_result_file("--page", page)
    check_written({"--plan": plan, "--page": page}, read)
    return page


def hand_over(
    plan: Path,
    page: Path,
    *,
    content: Mapping[str, Any],
    drawn: Page,
    tables: Iterable[RenderableType],
    summary: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print the tables, write `content` to the plan file and what is `drawn` to the page; with `--json` print the
    `summary`. What took long to work out is thus seen, even if the files cannot be written."""
    import tomli_w

    from hebe.report.whole_file import write_whole

    console = make_console(as_json)
    for table in tables:
        console.print(table, crop=False)
    write_whole(plan, tomli_w.dumps(content))
    drawn.write(page)
    console.print(f"Plan: {plan}\nPage: {page}", soft_wrap=True, markup=False)
    if as_json:
        print_json({**summary, "plan": plan, "page": page})
