"""`hebe figures`: every measured figure beside its target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hebe.cli.terminal.output import JsonOption, make_console, print_error, print_json, show

if TYPE_CHECKING:
    from hebe.report.figures import FigureFile

DIRECTORIES = (Path("out/figures"), Path("docs/figures"))


def figures(
    directory: Annotated[
        Path | None, typer.Argument(help="Where to look; by default out/figures and docs/figures.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show all measured figures: value, spread, target, met or not, the paper's.

    The files are those that `hebe bench` and `hebe study` write. A figure of a quick run is marked, and
    one that was not measured is absent. What is no figure file is named on stderr, the others are shown nevertheless,
    and the exit code is 1.

    Example: hebe figures docs/figures --json
    """
    from hebe.report.figures import read_figures

    if directory is not None and not directory.is_dir():
        raise typer.BadParameter(f"{directory} is not a directory", param_hint="DIRECTORY")
    found: list[tuple[Path, FigureFile]] = []
    faults: list[str] = []
    for place in (directory,) if directory else DIRECTORIES:
        files, unreadable = read_figures(place)
        found += files
        faults += map(str, unreadable)
    console = make_console(as_json)
    if found:
        show(console, [file.table(path) for path, file in found])
    elif not faults:
        console.print("No figures yet: run `hebe bench NAME` or `hebe study NAME` first.")
    for fault in faults:
        print_error(fault)
    if as_json:
        rows = [
            {**figure.to_dict(), "met": figure.met, "quick": file.quick, "file": str(path)}
            for path, file in found
            for figure in file.figures
        ]
        print_json({"figures": rows, **({"error": "; ".join(faults)} if faults else {})})
    if faults:
        raise typer.Exit(1)
