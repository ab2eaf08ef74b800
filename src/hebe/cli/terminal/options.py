"""Options that several commands have, and checks of what options are given.

Among them are those that say how models are brought into memory, for the commands that run models (`load_options`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from hebe.embeddings.memory.table_memory import RowFormat
    from hebe.runtime.loaded_model import LoadOptions

Kind = TypeVar("Kind")

MEASURE, QUERIES = "What to measure", "Queries"
"""Headings in the help of commands that send or simulate queries."""

SIZE_FORMS = (
    "Query sizes: production, mlperf, fixed:ITEMS, normal:MEAN:DEVIATION, lognormal[:MU:SIGMA],"
    " quantiles:ITEMS,ITEMS,..."
)
"""Help of `--sizes`; the forms are those of `hebe.workload.forms`, which help does not wait for."""

RateOption = Annotated[
    float | None, typer.Option(rich_help_panel=MEASURE, metavar="QPS", help="Mean arrival rate, queries/s.")
]
FindQpsOption = Annotated[
    bool, typer.Option("--find-qps", rich_help_panel=MEASURE, help="Search the largest rate at which the SLA holds.")
]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        rich_help_panel=QUERIES,
        help="poisson, constant, burst[:FACTOR:BURST_S:PERIOD_S], or trace:FILE[:SPEED], a CSV of time and rate.",
    ),
]
QuerySeedOption = Annotated[int, typer.Option(rich_help_panel=QUERIES, help="The same seed sends the same queries.")]

NewKeysOption = Annotated[
    bool,
    typer.Option(
        "--new-keys",
        help="Features that would refuse keys above their table's last row look them up: online updates may add such "
        "rows. A key that no tier has gets the table's default vector, and answers tell how many were unknown.",
    ),
]

KERNEL_CACHE_VARIABLE = "HEBE_KERNEL_CACHE"

KernelCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--kernel-cache",
        envvar=KERNEL_CACHE_VARIABLE,
        metavar="DIR",
        help="Where compiled kernels are kept; made if missing (default: beside Hebe's sources, or in ~/.cache/hebe).",
    ),
]

ROW_FORMATS = "How rows in memory are stored: fp32, fp16 or int8 (with a scale a row)."
"""Help of `--row-format`."""


def use_kernel_cache(directory: Path | None) -> None:
    """Have this process, and those that it starts, keep kernels in `directory`, unless that is None. Wrong usage if it
    is no directory and cannot become one. One that cannot be written may hold kernels all the same.
    """
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{directory}: {error.strerror}", param_hint="--kernel-cache") from None
    os.environ[KERNEL_CACHE_VARIABLE] = str(directory.absolute())


def parse_row_format(text: str) -> RowFormat:
    """The value of `--row-format`. Wrong usage unless there is such a format."""
    from hebe.embeddings.memory.table_memory import RowFormat

    if text not in list(RowFormat):
        raise typer.BadParameter(f"{text!r}: choose {', '.join(RowFormat)}", param_hint="--row-format")
    return RowFormat(text)


def parse_bytes(text: str, hint: str) -> int:
    """A number of bytes written as 4096, 64K, 800M or 12G (powers of 1024). Wrong usage otherwise."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    body = text.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (body[:-1], body[-1]) if body[-1:] in units and body[-1:] else (body, "")
    try:
        size_bytes = int(float(number) * units[unit])
    except (ValueError, OverflowError):  # the latter of infinity
        raise typer.BadParameter(f"{text!r}: write bytes as 4096, 64K, 800M or 12G", param_hint=hint) from None
    if size_bytes < 1:
        raise typer.BadParameter(f"{text!r}: must be at least 1 byte", param_hint=hint)
    return size_bytes


def parse_form(option: str, parse: Callable[[str], Kind], form: str) -> Kind:
    """What the form names, by one of the functions of `hebe.workload.forms`. Wrong usage unless there is such a form;
    raises `RecordingError` for a file that it names and that cannot be read."""
    from hebe.capacity.errors import check_form

    with naming_parameters({option: option}):
        return check_form(option, parse, form)


def naming_options(message: str, context: typer.Context, others: Mapping[str, str]) -> str:
    """What a library says of its fields, with the names of the command's options for them.

    Fields are called as the options' parameters are; `others` are fields that are not, and what to write for them.
    """
    params = context.command.params
    written = {each.name: each.opts[0] for each in params if each.opts[0].startswith("--")} | dict(others)

    def named(found: re.Match[str]) -> str:
        # A word such as "percentile" is a field only where the message begins with it and its value.
        begins = found.start() == 0 and message.startswith((" is ", " '", ":"), found.end())
        return written.get(found[0], found[0]) if begins or "_" in found[0] else found[0]

    return re.sub(r"(?<![\w./-])\w+(?![\w./-])", named, message)


class OptionError(ValueError):
    """What an option asks for does not fit what files hold, or other options."""


@contextmanager
def naming_parameters(options: Mapping[str, str]) -> Iterator[None]:
    """What `hebe.capacity` says of its parameters is said of the command's `options`: wrong usage of one that is wrong
    by itself, and the same error in other words where files are read."""
    from hebe.capacity.errors import ArgumentError
    from hebe.planning.error import MessageError

    try:
        yield
    except ArgumentError as fault:
        raise typer.BadParameter(fault.reason(options), param_hint=options.get(str(fault.field))) from None
    except MessageError as fault:
        if fault.field is None:
            raise
        raise OptionError(fault.message_with(options)) from fault


def check_rate_or_search(rate: float | None, find_qps: bool) -> None:
    """Wrong usage unless one of `--rate` and `--find-qps` is given."""
    if (rate is None) != find_qps:
        raise typer.BadParameter("give either --rate QPS or --find-qps", param_hint="--rate")


def check_at_least(option: str, value: float, *, least: float | None = None, more_than: float | None = None) -> None:
    """Wrong usage unless the option's value is finite, and at least or more than a limit."""
    from hebe.capacity import errors

    with naming_parameters({option: option}):
        errors.check_at_least(option, value, least=least, more_than=more_than)


def check_percentile(percentile: float) -> None:
    """Wrong usage unless it lies between 0 and 100."""
    from hebe.capacity import errors

    with naming_parameters({"--percentile": "--percentile"}):
        errors.check_percentile("--percentile", percentile)


def check_written(written: dict[str, Path], read: list[Path]) -> None:
    """Wrong usage if one file is to be written twice, or is read."""
    known = {path.resolve(): "is read: write to another file" for path in read}
    for option, path in written.items():
        if path.resolve() in known:
            raise typer.BadParameter(f"{path} {known[path.resolve()]}", param_hint=option)
        known[path.resolve()] = f"is written by {option} too"


RUNNING = "How models run"
"""Heading in the help."""

GraphOption = Annotated[
    str,
    typer.Option(
        rich_help_panel=RUNNING,
        help="How the DenseNet runs: scripted, eager (op by op), or compiled (takes a C++ compiler and half a minute).",
    ),
]
TableMemoryOption = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=RUNNING,
        metavar="BYTES",
        help="Most memory for embedding rows, such as 800M or 12G; the rest is read from --persistent-dir. Not "
        "beside a --hierarchy that has tiers.",
    ),
]
PersistentDirOption = Annotated[
    Path | None, typer.Option(rich_help_panel=RUNNING, help="Where rows beyond --table-memory are kept (RocksDB).")
]
HierarchyOption = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=RUNNING,
        help="TOML file that describes the tiers of the tables, and where online updates come from.",
    ),
]
RowFormatOption = Annotated[str, typer.Option(rich_help_panel=RUNNING, help=ROW_FORMATS)]


def load_options(
    graph: str,
    table_memory: str | None,
    persistent_dir: Path | None,
    hierarchy: Path | None,
    row_format: str,
    *,
    verify: bool = False,
) -> LoadOptions:
    """What these options ask for. Wrong usage if they cannot be; raises `ConfigError` for a wrong file."""
    from hebe.embeddings.config.hierarchy_config import HierarchyConfig
    from hebe.runtime.executors.dense_graph import GraphMode
    from hebe.runtime.loaded_model import LoadOptions

    if graph not in list(GraphMode):
        raise typer.BadParameter(f"{graph!r}: choose {', '.join(GraphMode)}", param_hint="--graph")
    if (table_memory is None) != (persistent_dir is None):
        raise typer.BadParameter("--table-memory and --persistent-dir belong together", param_hint="--table-memory")
    config = None if hierarchy is None else HierarchyConfig.from_toml(hierarchy)
    if table_memory is not None and config is not None and config.is_tiered:
        raise typer.BadParameter(
            f"{hierarchy} has tiers, through which all tables are read: leave --table-memory and --persistent-dir out, "
            "and give level 1 its size there (cache_bytes, cache_fraction)",
            param_hint="--table-memory",
        )
    return LoadOptions(
        GraphMode(graph),
        None if table_memory is None else parse_bytes(table_memory, "--table-memory"),
        persistent_dir,
        verify,
        parse_row_format(row_format),
        config,
    )
