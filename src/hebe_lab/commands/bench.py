"""`hebe bench`: run benchmarks and write their figures."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from hebe.cli.main import explain
from hebe.cli.terminal.output import (
    JsonOption,
    debugging,
    foreign_lines_to_stderr,
    make_console,
    make_progress,
    print_error,
    print_json,
    show,
)


def bench(
    name: Annotated[str | None, typer.Argument(help="A benchmark, or 'all'; without one, list them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="About a minute, fewer repeats.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Directory of recorded measurements, for a benchmark that reads some.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Measure this part of a benchmark alone; its figures go to NAME-PART.json.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where NAME.json goes.")] = Path("out/figures"),
    as_json: JsonOption = False,
) -> None:
    """Run a benchmark on this machine, print its figures and write them to OUT/NAME.json.

    One of several parts has a file for each, OUT/NAME-PART.json, as soon as that is measured. A part that fails is
    told, the others are measured nevertheless, and the exit code is 1; so it is where a file cannot be written. With
    --json the object has `error` then, and all that was measured: `file` is null of what is in no file.

    Example: hebe bench sparse --quick
    """
    from hebe_lab.bench.runner import benchmark_descriptions, benchmark_parts, run_benchmark
    from hebe_lab.description import description_table

    console = make_console(as_json)
    known = benchmark_descriptions()
    if name is None:
        console.print(description_table(known), crop=False)
        if as_json:
            print_json({"benchmarks": known})
        return
    if name != "all" and name not in known:
        raise typer.BadParameter(f"no benchmark {name}: there are {', '.join(known)}, all", param_hint="NAME")
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"{data} is not a directory", param_hint="--data")
    if only is not None:
        parts = benchmark_parts(name) if name != "all" else ()
        if only not in parts:
            known_parts = f"its parts: {', '.join(parts)}" if parts else "it has no parts"
            raise typer.BadParameter(f"benchmark {name} has no part {only}: {known_parts}", param_hint="--only")
    names = known if name == "all" else (name,)
    runs = [(chosen, part) for chosen in names for part in ([only] if only else benchmark_parts(chosen) or [None])]
    measured: list[dict[str, Any]] = []
    faults: list[str] = []
    for chosen, part in runs:
        try:
            with make_progress() as progress, foreign_lines_to_stderr():
                file = run_benchmark(chosen, quick, progress, data, part)
        except Exception as fault:
            if debugging():
                traceback.print_exc()
            faults.append(f"{chosen}{f', part {part}' if part else ''}: {_why(fault)}")
            print_error(faults[-1])
            continue
        show(console, [file.table(file.path(out))])
        path: Path | None = None
        try:
            path = file.write(out)  # after they were shown: the disk may be full
        except OSError as fault:
            faults.append(f"the figures of {file.name} are in no file: {_why(fault)}")
            print_error(faults[-1])
        measured.append({**file.to_dict(), "file": path})
    if as_json:
        print_json({"files": measured, **({"error": "; ".join(faults)} if faults else {})})
    if faults:
        raise typer.Exit(1)


def _why(fault: Exception) -> str:
    """A benchmark says itself what it lacks, by a plain RuntimeError."""
    return explain(fault) or (str(fault) if type(fault) is RuntimeError else f"{type(fault).__name__}: {fault}")
