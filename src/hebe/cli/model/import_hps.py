"""`hebe model import-hps`: a configuration of HugeCTR's HPS, and its tables, as ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from hebe.cli.model.tables import byte_progress, size_text
from hebe.cli.terminal.options import check_written
from hebe.cli.terminal.output import JsonOption, make_console, print_json
from hebe.report.tables import Column, FittingTable

if TYPE_CHECKING:
    from rich.console import Console

    from hebe.embeddings.config.hierarchy_config import HierarchyConfig
    from hebe.embeddings.hps.config import Decision, HpsImport

_STYLES = {"mapped": "green", "defaulted": "dim", "not needed": "dim", "not honoured": "bold red"}


def import_hps(
    ps_json: Annotated[Path, typer.Argument(metavar="PS_JSON", help="HPS' configuration file.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.toml", help="Write the configuration here, as ours.")
    ] = None,
    persistent_dir: Annotated[
        Path | None,
        typer.Option("--persistent-dir", help="Keep all rows in a persistent store (RocksDB) under this directory."),
    ] = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load the sparse files into the persistent store now, not at the first use.")
    ] = False,
    moved: Annotated[
        list[str] | None,
        typer.Option(
            "--moved",
            metavar="OLD=NEW",
            help="Paths of sparse files that begin with OLD, a container's or a bucket's, are under NEW here. "
            "May be repeated.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the file that --out names.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read the ps.json of NVIDIA's HugeCTR HPS, say what becomes of every parameter, and bring its tables over.

    What comes over is the embedding tables (sparse files: key, emb_vector) and how they are cached and stored. The
    dense network does not: the result is for hebe.HPS(...).lookup and hebe.LookupLayer, not a model that hebe serve can
    serve by itself. To serve the whole model, rebuild the network as a torch module and import it with
    hebe model import.

    Without --out nothing is written.
    """
    from hebe.embeddings.hps.config import read_hps_config

    read = read_hps_config(ps_json, _parse_moved(moved or []), persistent_dir)
    hierarchy = read.hierarchy
    if out is not None:
        check_written({"--out": out}, [ps_json])
        if out.exists() and not replace:
            raise typer.BadParameter(f"{out} is there already: give another file, or --replace", param_hint="--out")
    if load and hierarchy.persistent_db.type == "disabled":
        raise typer.BadParameter("the configuration has no persistent store: add --persistent-dir", param_hint="--load")

    console = make_console(as_json)
    console.print(_decision_table(read), "", crop=False)
    tables = _look_at_tables(hierarchy, load)
    console.print(_tables_table(tables), "", crop=False)
    if out is not None:
        _write(out, read)
    _print_next(console, read, out, persistent_dir)
    if as_json:
        print_json(
            {
                "source": ps_json,
                "written": out,
                "decisions": [dataclasses.asdict(decision) for decision in read.decisions],
                "not_honoured": len(read.not_honoured),
                "tables": tables,
            }
        )


def _parse_moved(moved: list[str]) -> dict[str, str]:
    parsed = {}
    for text in moved:
        before, separator, after = text.partition("=")
        if not (before and separator and after):
            raise typer.BadParameter(f"{text!r}: give OLD=NEW", param_hint="--moved")
        parsed[before] = after
    return parsed


def _look_at_tables(hierarchy: HierarchyConfig, load: bool) -> list[dict[str, Any]]:
    """What `--json` says of each table. With `load` a fault of its files is an error, else a remark."""
    from hebe.embeddings.hps.tables import find_tables
    from hebe.embeddings.rocksdb.store import RocksDbStore
    from hebe.embeddings.store import StoreError

    told: list[dict[str, Any]] = []
    for model, tables in hierarchy.tables.items():
        try:
            found = find_tables(hierarchy, model)
        except StoreError as fault:
            if load:
                raise
            told += [
                {"model": model, "table": table.name, "dim": table.dim, "rows": None, "remark": "" if n else str(fault)}
                for n, table in enumerate(tables)
            ]
            continue
        if load and found.persistent_dir is not None and found.sources:
            with byte_progress(f"checking {model}") as advance:
                identity = found.identity(advance)
            with byte_progress(f"loading {model}") as advance:
                store = RocksDbStore.load(found.persistent_dir, found.specs, found.sources, identity, advance)
            store.close()
        for spec in found.specs:
            source = found.sources.get(spec.name)
            repeated = source.duplicates if source is not None else 0
            remark = f"{repeated:,} repeated keys: the last row counts" if repeated else ""
            entry = {"model": model, "table": spec.name, "dim": spec.dim, "rows": spec.rows, "remark": remark}
            told.append(entry | {"repeated_keys": repeated, "store": found.persistent_dir if load else None})
    return told


def _decision_table(read: HpsImport) -> FittingTable:
    """What became of each parameter, under a line for each object of the JSON."""
    table = FittingTable("parameter", Column("in ps.json", folds=True), Column("here", folds=True))
    place = None
    for decision in read.decisions:
        if decision.place != place:
            place = decision.place
            table.add_title(place or "at the top")
        table.add_row(decision.parameter, "" if decision.fate == "defaulted" else decision.theirs, _here(decision))
    return table


def _here(decision: Decision) -> Text:
    """What became of a parameter, in a cell."""
    style = _STYLES[decision.fate]
    if decision.fate == "defaulted":
        return Text("; ".join(filter(None, (decision.ours, decision.note))) + " (HPS' default)", style)
    if decision.fate == "mapped":
        same = decision.ours.endswith(f"{decision.parameter} = {decision.theirs}")
        said = "the same" if same else decision.ours
        return Text("; ".join(filter(None, (said, decision.note))), style)
    also = f" ({decision.ours})" if decision.ours else ""
    return Text.assemble((f"{decision.fate}: ", style), decision.note, also)


def _tables_table(tables: list[dict[str, Any]]) -> FittingTable:
    table = FittingTable(
        "model", "table", Column("rows", right=True), Column("dim", right=True), Column("size", right=True),
        Column("remark", folds=True),
    )  # fmt: skip
    for told in tables:
        rows = told["rows"]
        size = "" if rows is None else size_text(4 * rows * told["dim"])
        remark = Text(told["remark"], "red" if rows is None else "")
        table.add_row(
            told["model"], told["table"], "?" if rows is None else f"{rows:,}", str(told["dim"]), size, remark
        )
    return table


def _write(out: Path, read: HpsImport) -> None:
    """The configuration's file; where it holds a password, its owner alone may read it."""
    from hebe.embeddings.config.toml_writer import hierarchy_toml
    from hebe.report.atomic_write import write_whole

    remarks = ["From a ps.json of HugeCTR's HPS, by `hebe model import-hps`. What could not be honoured:"]
    remarks += [f"  {each.place} {each.parameter} = {each.theirs}: {each.note}" for each in read.not_honoured]
    text = hierarchy_toml(read.hierarchy, remarks if read.not_honoured else remarks[:1])
    write_whole(out, text, 0o600 if read.hierarchy.volatile_db.password else 0o644)


def _print_next(console: Console, read: HpsImport, out: Path | None, persistent_dir: Path | None) -> None:
    """What was written, and what to type next."""
    hierarchy = read.hierarchy
    names = ", ".join(f"{each.place} {each.parameter}".strip() for each in read.not_honoured)
    if names:
        console.print(Text.assemble(("not honoured: ", _STYLES["not honoured"]), names), soft_wrap=True)
    else:
        console.print("everything that is asked for is honoured")
    if persistent_dir is not None:
        console.print(f"persistent store: {escape(hierarchy.persistent_db.path)}, as --persistent-dir says")
    if out is not None and hierarchy.volatile_db.password:
        console.print("the file holds Redis' password: password_file keeps it in a file of its own")
    if out is None:
        console.print("nothing was written: --out hebe.toml writes the configuration")
    else:
        console.print(f"written: {escape(str(out))}")
    model, tables = next(iter(hierarchy.tables.items()))
    file, table = str(out or "hebe.toml"), tables[0]
    code = (
        f'hebe.HPS("{file}").lookup(keys, "{model}", "{table.name}")',
        f'hebe.LookupLayer("{file}", "{model}", "{table.name}", {table.dim})',
    )
    console.print(f"\nrows by key:     {escape(code[0])}", soft_wrap=True)
    console.print(f"a torch layer:   {escape(code[1])}", soft_wrap=True)
    console.print(
        "the dense network did not come over: keep it in torch with that layer for its embeddings, or rebuild it as a "
        "torch module with Embedding layers and serve it: hebe model import --help",
        soft_wrap=True,
    )
