"""Where the commands of `hebe plan` write to: options, and their check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.terminal.options import check_written
from hebe.cli.terminal.output import check_result_file

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
