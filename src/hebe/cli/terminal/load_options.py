"""Options that say how models are brought into memory, of the commands that run them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hebe.cli.terminal.options import ROW_FORMATS, parse_bytes, parse_row_format

if TYPE_CHECKING:
    from hebe.runtime.loaded_model import LoadOptions

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
