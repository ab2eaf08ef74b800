"""`hebe store`: fill persistent stores, look at them, check them, and copy them while they serve."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hebe.cli.model.tables import byte_progress, size_text
from hebe.cli.terminal.options import ROW_FORMATS, parse_bytes, parse_row_format
from hebe.cli.terminal.output import JsonOption, make_console, make_progress, print_json
from hebe.report.tables import Column, FittingTable

if TYPE_CHECKING:
    from hebe.embeddings.rocksdb.store import RocksDbStore

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Fill persistent stores of embedding rows, look at them, check them, copy them and put them back.",
    epilog="Example: hebe store checkpoint stores/dlrm-rmc1/1 backups/monday",
)

StoreArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of the store: PERSISTENT_DIR/MODEL/VERSION of a server's.")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Put it in the place of a store that is there.")]


@app.command("load", epilog="Example: hebe store load models dlrm-rmc1 --persistent-dir stores")
def load(
    repository: Annotated[Path, typer.Argument(metavar="REPO", help="Directory of the model repository.")],
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A model that is stored there.")],
    persistent_dir: Annotated[
        Path, typer.Option("--persistent-dir", metavar="DIR", help="Where the server's stores are, or will be.")
    ],
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the newest.")] = None,
    table_memory: Annotated[
        str | None,
        typer.Option(
            "--table-memory", metavar="BYTES", help="Only the tables that a server with this bound reads from a store."
        ),
    ] = None,
    row_format: Annotated[str, typer.Option("--row-format", help=ROW_FORMATS)] = "fp32",
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model's tables into the store where a server will look for them, so that it starts at once.

    What is loaded already from the same files is left as it is, with its updates; tables that are missing are added.
    With --replace, a store that was loaded from other files goes, updates and all, when the new one is complete.
    """
    from hebe.embeddings.hierarchy import resident_shapes
    from hebe.embeddings.rocksdb.store import RocksDbStore
    from hebe.models.repository.repository import ModelRepository

    bound = None if table_memory is None else parse_bytes(table_memory, "--table-memory")
    stored = ModelRepository(repository).open(name, version)
    resident = {} if bound is None else resident_shapes(stored.spec, bound, parse_row_format(row_format))
    wanted = [table for table in stored.spec.tables if table.name not in resident]
    if not wanted:
        raise typer.BadParameter("leaves no table to be stored: all of them fit", param_hint="--table-memory")
    path = persistent_dir / name / str(stored.version)
    sources = {table.name: stored.checked_rows(table.name) for table in wanted}
    with (
        byte_progress(f"loading {name}") as advance,
        contextlib.closing(
            RocksDbStore.load(path, wanted, sources, stored.tables_identity, advance, replace=replace)
        ) as store,
    ):
        result = _summary(store)
    _say(f"{escape(str(path))} has {escape(name)} version {stored.version}", result, as_json)


@app.command("show", epilog="Example: hebe store show stores/dlrm-rmc1/1")
def show(path: StoreArgument, as_json: JsonOption = False) -> None:
    """Show the tables of a store, and up to which updates its rows are."""
    with _read(path) as store:
        result = _summary(store)
    console = make_console(as_json)
    console.print(_tables(result), crop=False)
    if result["positions"]:
        positions = FittingTable(Column("updates of", folds=True), Column("applied up to", right=True))
        for name, offset in sorted(result["positions"].items()):
            positions.add_row(name, f"{offset:,}")
        console.print(positions, crop=False)
    if as_json:
        print_json(result)


@app.command("verify", epilog="Example: hebe store verify stores/dlrm-rmc1/1")
def verify(path: StoreArgument, as_json: JsonOption = False) -> None:
    """Read every row of a store and check it; exit code 1 names what is damaged. Servers may read it meanwhile."""
    with _read(path) as store, _row_progress("verify") as progress:
        store.verify(progress)
        result = _summary(store)
    _say(f"{escape(str(path))} is whole", result, as_json)


@app.command("checkpoint", epilog="Example: hebe store checkpoint stores/dlrm-rmc1/1 backups/monday")
def checkpoint(
    path: StoreArgument,
    to: Annotated[Path, typer.Argument(metavar="TO", help="Directory of the checkpoint; made if missing.")],
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store as it is now to another directory: by links where it is the same disk, which takes no room.

    Servers that only read it go on. One that takes updates has it alone: stop it first.
    """
    with _read(path) as store:
        store.checkpoint(to, replace=replace)
        result = _summary(store)
    _say(f"{escape(str(to))} is as {escape(str(path))} is now", result | {"path": to}, as_json)


@app.command("restore", epilog="Example: hebe store restore backups/monday stores/dlrm-rmc1/1 --replace")
def restore(
    path: Annotated[Path, typer.Argument(metavar="FROM", help="Directory of a checkpoint, or of another store.")],
    into: Annotated[Path, typer.Argument(metavar="INTO", help="Directory of the store to be; made if missing.")],
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check every row of a checkpoint, then put a copy of it where a server looks for its store."""
    from hebe.embeddings.rocksdb.store import restore as restore_store

    with _row_progress("verify") as progress:
        restore_store(path, into, replace=replace, progress=progress)
    with _read(into) as store:
        result = _summary(store)
    _say(f"{escape(str(into))} is as {escape(str(path))} is", result, as_json)


def _read(path: Path) -> contextlib.closing[RocksDbStore]:
    from hebe.embeddings.rocksdb.store import RocksDbStore

    return contextlib.closing(RocksDbStore(path, read_only=True))


def _summary(store: RocksDbStore) -> dict[str, Any]:
    return {
        "path": store.path,
        "identity": store.identity,
        "disk_bytes": store.disk_bytes(),
        "tables": [{"name": table, "dim": dim, "rows": store.size(table)} for table, dim in store.dims.items()],
        "positions": store.positions(),
    }


def _tables(result: dict[str, Any]) -> FittingTable:
    table = FittingTable("table", Column("rows", right=True), Column("dim", right=True), Column("size", right=True))
    for held in result["tables"]:
        row_bytes = 4 * held["rows"] * held["dim"]
        table.add_row(held["name"], f"{held['rows']:,}", str(held["dim"]), size_text(row_bytes))
    return table


def _say(line: str, result: dict[str, Any], as_json: bool) -> None:
    rows = sum(table["rows"] for table in result["tables"])
    tables = "1 table" if len(result["tables"]) == 1 else f"{len(result['tables'])} tables"
    said = f"{line}: {rows:,} rows in {tables}, {size_text(result['disk_bytes'])} on disk"
    make_console(as_json).print(said, soft_wrap=True)  # which has a path in it
    if as_json:
        print_json(result)


@contextlib.contextmanager
def _row_progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over rows: gives the callback (rows done, rows in all)."""
    with make_progress() as bar:
        task = bar.add_task(f"{description} (rows)", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
