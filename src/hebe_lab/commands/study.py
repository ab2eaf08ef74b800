"""`hebe study`: reproduce a paper's tables and figures, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hebe.cli.terminal.output import JsonOption, foreign_lines_to_stderr, make_console, make_progress, print_json, show


def study(
    name: Annotated[str, typer.Argument(help="A study, 'all', or 'list' to list them.")] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats: under a minute, most studies.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every repeat and case, however long it takes.")] = False,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...", help="Which models to measure on this machine, for studies that let choose."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory of recorded data, in place of built-in figures or made-up rows, for studies that read some."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where figures/NAME.json and studies/NAME.html go.")] = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Reproduce a paper's tables and figures: its numbers beside ours, with the reasons where they differ.

    A study plans and simulates fleets that nobody here owns, with the very policies that the server runs. It prints
    its tables, writes OUT/figures/NAME.json (which `hebe figures` shows) and OUT/studies/NAME.html, one page to open
    in a browser. It needs neither torch nor a server, but for the studies that measure on this machine: those of HPS
    Hebe's own tiers, those of Hercules' single server its own workers, both with torch. Those of hours keep each model
    that they have measured: ended, the same command goes on.

    Example: hebe study list, then hebe study kairos-distribution --quick
    """
    from hebe_lab.description import description_table
    from hebe_lab.runner import keeping_parts, models_of, reads_data, run_study, study_descriptions
    from hebe_lab.study import StudyOptions

    console = make_console(as_json)
    known = study_descriptions()
    if name == "list":
        console.print(description_table(known) if known else "There are no studies.", crop=False)
        if as_json:
            print_json({"studies": known})
        return
    if name != "all" and name not in known:
        raise typer.BadParameter(f"no study {name}: there are {', '.join([*known, 'all'])}", param_hint="NAME")
    if quick and full:
        raise typer.BadParameter("choose one of them", param_hint="--quick, --full")
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"{data} is not a directory", param_hint="--data")
    chosen_models = () if models is None else _chosen_models(models, () if name == "all" else models_of(name))
    options = StudyOptions(quick, full, data, chosen_models)
    done: list[dict[str, Any]] = []
    for chosen in known if name == "all" else (name,):
        if data is not None and not reads_data(chosen):
            console.print(Text(f"{chosen} reads no data: it goes without --data.", "yellow"), soft_wrap=True)
        with make_progress() as progress, foreign_lines_to_stderr():
            run = run_study(chosen, keeping_parts(chosen, options, out, progress), progress)
        shown = run.document
        show(console, shown.blocks)
        figures, page = run.write(out)
        console.print(f"\nFigures: {figures}\nPictures and explanations: {page}", soft_wrap=True, markup=False)
        done.append({**shown.data, "file": str(figures), "page": str(page)})
    if as_json:
        print_json({"files": done})


def _chosen_models(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `--models`, as the study writes them, none twice."""
    if not known:
        raise typer.BadParameter("is for one study that measures models on this machine", param_hint="--models")
    by_name = {name.lower(): name for name in known}
    names = [piece.strip().lower() for piece in text.split(",")]
    if unknown := [name for name in names if name not in by_name]:
        raise typer.BadParameter(f"{unknown[0]!r}: choose of {', '.join(known)}", param_hint="--models")
    return tuple(dict.fromkeys(by_name[name] for name in names))
