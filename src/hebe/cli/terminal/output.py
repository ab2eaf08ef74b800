"""What commands print and write: the one place for the console, the JSON line, progress bars, error lines and files.

With `--json`, stdout carries nothing but one JSON object as its last line; all that is meant for people goes to stderr.
Without it, results go to stdout. Progress bars always go to stderr.

Whether a file of results can be written is checked before anything is measured, and a picture that fails costs no
result.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, is_dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from hebe.capacity.progress import OnProgress
    from hebe.capacity.progress import Progress as StageProgress
    from hebe.report.document import Block, Document

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""
TERMINATED = (128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Those after a request to end, or once the terminal has gone."""

_NO_TERMINAL_COLUMNS = 1 << 16
_objects_printed = 0

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout, all else to stderr.")
]
"""The type of every command's `as_json` parameter: `as_json: JsonOption = False`."""


def make_console(as_json: bool = False) -> Console:
    """Where results for people go: stdout, or stderr when stdout is kept for JSON.

    What is not a terminal has no width (unless COLUMNS says so): a file or another program gets whole lines. Markup
    is read: print paths and other people's words with `markup=False`, or `escape` them. No word becomes a picture.
    """
    console = Console(stderr=as_json, highlight=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = _NO_TERMINAL_COLUMNS
    return console


def make_progress(*, transient: bool = True) -> Progress:
    """A progress bar on stderr: description, bar, count, elapsed and remaining time; silent if not a terminal."""
    console = Console(stderr=True, highlight=False, emoji=False)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


_WORTH_TELLING = 2_500_000
"""Queries of all runs of a stage from which on they take minutes."""


def stage_bars(progress: Progress) -> OnProgress:
    """What draws a bar for each stage that `hebe.capacity` reports. Of very many queries it says so before, since where
    no progress is shown nothing else would."""
    tasks: dict[str, TaskID] = {}

    def show(step: StageProgress) -> None:
        if step.stage not in tasks:
            if step.queries is not None and step.queries >= _WORTH_TELLING:
                progress.console.print(
                    f"{step.stage}: about {step.queries:,} queries in all runs; --queries takes fewer",
                    soft_wrap=True,
                    markup=False,
                )
            tasks[step.stage] = progress.add_task(step.stage, total=step.total)
        progress.update(tasks[step.stage], completed=step.done, total=step.total)

    return show


@contextmanager
def foreign_lines_to_stderr() -> Iterator[None]:
    """What others' code prints goes to stderr, also what C libraries, and children, write on file descriptor 1: HiGHS
    prints now and then."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what they wrote may wait in the C library's buffer
        os.dup2(kept, 1)
        os.close(kept)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout. Dataclasses, paths, sets and NumPy values become plain ones.

    A number that is not finite becomes null, since JSON has no word for it.
    """
    global _objects_printed
    _objects_printed += 1
    sys.stdout.write(json.dumps(plain(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def show(console: Console, blocks: Sequence[Block]) -> None:
    """Print what the terminal shows of the blocks of a document."""
    from hebe.report.terminal import on_terminal

    for part in on_terminal(blocks):
        console.print(part, crop=False)


def hand_over(
    document: Document,
    page: Path | None,
    *,
    as_json: bool,
    plan: tuple[Path, Mapping[str, Any]] | None = None,
) -> None:
    """Print a document; write `plan`, a file and its content as TOML, and the page, if any; with `as_json` print the
    document's data with the files' names.

    What took long to work out is thus seen, even if the files cannot be written. Raises OSError where they cannot.
    """
    console = make_console(as_json)
    show(console, document.blocks)
    files: dict[str, Path | None] = {}
    if plan is not None:
        import tomli_w

        from hebe.report.atomic_write import write_whole

        file, content = plan
        write_whole(file, tomli_w.dumps(content))
        files["plan"] = file
    files["page"] = page
    if page is not None:
        from hebe.report.html import write_page

        write_page(document, page)
    for name, path in files.items():
        if path is not None:
            console.print(f"{name.capitalize()}: {path}", soft_wrap=True, markup=False)
    if as_json:
        print_json({**document.data, **files})


def objects_printed() -> int:
    """How many `print_json` has begun to print."""
    return _objects_printed


def print_error(message: str) -> None:
    """One line on stderr that says what was wrong."""
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(message)}")


def debugging() -> bool:
    """Whether tracebacks are wanted (`--debug`)."""
    return os.environ.get("HEBE_DEBUG", "0") not in ("", "0")


def drop_unwritten() -> None:
    """Where stdout or stderr takes no more, forget what is left for it: the interpreter would fail to write it at its
    end, and exit with 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def plain(value: Any) -> Any:
    """`value` as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_result_file(option: str, path: Path) -> None:
    """Wrong usage where nothing can be written there, which one wants to know before the run and not after."""
    from hebe.report.atomic_write import check_writable

    try:
        check_writable(path)
    except OSError as fault:
        raise typer.BadParameter(
            f"{path}: nothing can be written to {fault.filename} ({fault.strerror})", param_hint=option
        ) from None


def draw_result(path: Path | None, draw: Callable[[Path], None]) -> str:
    """Draw a picture, if any; returns why that failed: what was measured is worth more than its picture."""
    if path is None:
        return ""
    try:
        draw(path)
    except Exception as fault:
        if debugging():
            raise
        return f"{path}: {getattr(fault, 'strerror', None) or str(fault) or type(fault).__name__}"
    return ""
