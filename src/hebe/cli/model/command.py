"""`hebe model`: list, make, train, import and look at models."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hebe.cli.model.import_hps import import_hps
from hebe.cli.model.import_module import import_model
from hebe.cli.model.tables import (
    byte_progress,
    features_table,
    list_table,
    memory_table,
    print_stored,
    size_text,
    spec_table,
    stored_summary,
    summary,
)
from hebe.cli.terminal.options import ROW_FORMATS, NewKeysOption, parse_bytes, parse_row_format
from hebe.cli.terminal.output import JsonOption, make_console, make_progress, print_json
from hebe.report.tables import Column, FittingTable
from hebe.spec import ModelSpec, SpecError

if TYPE_CHECKING:
    from torch import nn

    from hebe.models.repository.repository import StoredModel

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, make, train, import and look at models.",
    epilog="Example: hebe model new dlrm-rmc1 --scale 0.1 --repository models",
)

MOST_SEED = 2**63 - 1
"""What torch takes as a seed."""

CatalogName = Annotated[str, typer.Argument(help="A model of the catalog; `hebe model list` shows them.")]
TrainedName = Annotated[
    str,
    typer.Argument(help="A model of the catalog with Criteo's inputs and one output: criteo-dlrm or recos-dlrm."),
]
AnyName = Annotated[str, typer.Argument(help="A model of the catalog, or with --repository one that is stored there.")]
SizeOption = Annotated[
    str | None, typer.Option("--size", help="small or production, where both are published.", metavar="SIZE")
]
ScaleOption = Annotated[float, typer.Option("--scale", help="Shrink the rows of every table to this share (0 to 1].")]
RepositoryOption = Annotated[
    Path, typer.Option("--repository", help="Directory of the model repository; made if missing.")
]
StoredOption = Annotated[
    Path | None, typer.Option("--repository", help="Take the model stored in this repository instead.")
]
VersionOption = Annotated[
    int | None, typer.Option("--version", min=1, help="Version of a stored model; the latest by default.")
]


@app.command("list", epilog="Example: hebe model list --repository models")
def list_models(
    repository: Annotated[
        Path | None, typer.Option("--repository", help="List what this repository holds instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of the catalog, or with --repository those that are stored; status 1 if one is damaged."""
    console = make_console(as_json)
    if repository is not None:
        _list_stored(repository, console, as_json)
        return
    from hebe.models import catalog

    specs = [catalog.entry(name, size) for name in catalog.names() for size in catalog.sizes(name)]
    console.print(list_table(specs), crop=False)
    console.print("`hebe model show NAME` tells more; `hebe model new NAME --repository DIR` makes one.")
    if as_json:
        print_json({"models": [summary(spec) for spec in specs]})


def _list_stored(repository: Path, console: Console, as_json: bool) -> None:
    from hebe.models.repository.repository import ModelRepository, RepositoryError, no_version_words

    opened = ModelRepository(repository)
    table = FittingTable(
        "model",
        Column("version", right=True),
        Column("architecture", spare=1),
        Column("on disk", right=True),
        Column("path", spare=2),
    )
    models: list[dict[str, Any]] = []
    damaged: list[dict[str, Any]] = []
    for name in opened.names():
        try:
            versions = opened.versions(name)
        except RepositoryError as fault:
            damaged.append({"name": name, "version": None, "damaged": str(fault)})
            table.add_row(name, "", "", Text("damaged", "bold red"), str(repository / name))
            continue
        for version in versions:
            try:
                model = opened.open(name, version)
            except RepositoryError as fault:
                damaged.append({"name": name, "version": version, "damaged": str(fault)})
                table.add_row(
                    name, str(version), "", Text("damaged", "bold red"), str(repository / name / str(version))
                )
                continue
            models.append(stored_summary(model))
            size = size_text(sum(model.file_bytes.values()))
            table.add_row(name, str(version), model.spec.architecture, size, str(model.path))
    empty = f"{escape(str(repository))}: no models yet"
    if not models and not damaged and (above := opened.repository_above()) is not None:
        empty = f"{escape(str(repository))} is a model, not a repository of models; give {escape(str(above))}"
    console.print(table if models or damaged else empty, crop=False)
    for each in damaged:
        console.print(f"[bold red]damaged:[/] {escape(each['damaged'])}", soft_wrap=True)
    incomplete = opened.incomplete()
    for path in incomplete:
        console.print(f"[yellow]passed over:[/] {escape(no_version_words(path))}", soft_wrap=True)
    if as_json:
        print_json({"models": models, "damaged": damaged, "passed_over": incomplete})
    if damaged:
        raise typer.Exit(1)


@app.command(epilog="Example: hebe model show dlrm-rmc1 --size production")
def show(
    name: AnyName,
    size: SizeOption = None,
    scale: ScaleOption = 1.0,
    repository: StoredOption = None,
    version: VersionOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of a stored model and check it against its checksums.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a model: its tables, features, towers, SLA target and where the figures come from."""
    console = make_console(as_json)
    if repository is None:
        if verify or version is not None:
            raise typer.BadParameter("needs --repository DIR", param_hint="--verify" if verify else "--version")
        spec = catalog_entry(name, size, scale)
        console.print(spec_table(spec), "", features_table(spec), crop=False)
        if as_json:
            print_json(spec.to_dict() | {"table_bytes": spec.table_bytes})
        return
    stored = stored_model(repository, name, version, size, scale)
    if verify:
        with byte_progress(f"verifying {stored.name}") as advance:
            stored.verify(advance)
    console.print(spec_table(stored.spec), "", features_table(stored.spec), "", crop=False)
    table = FittingTable("stored", Column(f"version {stored.version} at {stored.path}", folds=True))
    for field, value in stored.provenance.items():
        table.add_row(field, _provenance_text(value))
    table.add_row("on disk", size_text(sum(stored.file_bytes.values())))
    if verify:
        table.add_row("checksums", Text("all files are as they were written", "green"))
    console.print(table, crop=False)
    if as_json:
        print_json(stored_summary(stored) | {"spec": stored.spec.to_dict(), "verified": verify})


@app.command(epilog="Example: hebe model new dlrm-rmc1 --size small --scale 0.1 --seed 7 --repository models")
def new(
    name: CatalogName,
    repository: RepositoryOption,
    size: SizeOption = None,
    scale: ScaleOption = 1.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=MOST_SEED, help="Weights and rows are drawn from it alone.")
    ] = 0,
    new_keys: NewKeysOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a model of the catalog with random weights and store it: for load tests and capacity plans."""
    spec = catalog_entry(name, size, scale)
    spec = spec.taking_new_keys() if new_keys else spec
    from hebe.models.repository.initial_model import write_initial_model
    from hebe.models.repository.repository import ModelRepository

    with byte_progress(f"writing {spec.name}") as advance:
        stored = write_initial_model(ModelRepository(repository), spec, seed, "hebe model new", advance)
    print_stored(stored, repository, as_json)


@app.command(epilog="Example: hebe model train criteo-dlrm --data train.tsv --epochs 1 --repository models")
def train(
    name: TrainedName,
    data: Annotated[
        Path,
        typer.Option("--data", help="Criteo-format TSV or CSV: a 0/1 label, 13 counts, 26 categories a line."),
    ],
    repository: RepositoryOption,
    size: SizeOption = None,
    scale: ScaleOption = 1.0,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training part.")] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, max=16_384, help="Items a step.")] = 64,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=MOST_SEED, help="Weights and rows start from it alone.")
    ] = 0,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Pass over malformed lines and count them, rather than stop.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a catalog model on click logs, measure its AUC on the held-out tail, and store it."""
    spec = catalog_entry(name, size, scale)
    from hebe.models.repository.repository import ModelRepository
    from hebe.models.training.training import train as train_model
    from hebe.models.training.training import trainable

    try:
        trainable(spec)
    except SpecError as fault:
        raise SpecError(f"{fault}; take {' or '.join(_trainable_names())}") from None
    opened = ModelRepository(repository)
    with make_progress() as bar:
        task = bar.add_task(f"training {spec.name}", total=None)

        def show_rows(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, description=f"training {spec.name} (rows, loss {loss:.4f})")

        report = train_model(
            spec,
            data,
            opened,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            skip_bad_lines=skip_bad_lines,
            progress=show_rows,
        )
    measured: dict[str, int | float] = {
        "rows": report.rows,
        "held_out_rows": report.held_out_rows,
        "bad_lines": report.bad_lines,
    }
    measured |= {"auc": report.auc, "log_loss": report.log_loss, "seconds": report.seconds}
    of_one_kind = (
        f"not measured: the {report.held_out_rows:,} held-out rows, the last fifth of the file, all have the same "
        "label. Give more rows, or the rows in another order, so that clicks and others are among the last"
    )
    stored = opened.open(spec.name, report.version)
    print_stored(stored, repository, as_json, unmeasured=of_one_kind, **measured)


def _trainable_names() -> list[str]:
    from hebe.models.catalog import entry, names
    from hebe.models.training.training import trainable

    found = []
    for name in names():
        with contextlib.suppress(SpecError):
            trainable(entry(name))
            found.append(name)
    return found


@app.command(epilog="Example: hebe model memory dlrm-rmc2 --size production --scale 0.1 --workers 4")
def memory(
    name: AnyName,
    size: SizeOption = None,
    scale: ScaleOption = 1.0,
    repository: StoredOption = None,
    version: VersionOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Workers of `hebe serve` (default: one a core).")
    ] = None,
    worker_threads: Annotated[
        int | None, typer.Option("--worker-threads", min=1, max=2, help="Threads of each (default: as it would here).")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Its largest batch, in items.")] = 256,
    table_memory: Annotated[
        str | None, typer.Option("--table-memory", metavar="BYTES", help="Its bound on rows in memory, such as 12G.")
    ] = None,
    row_format: Annotated[str, typer.Option("--row-format", help=ROW_FORMATS)] = "fp32",
    hierarchy: Annotated[
        Path | None, typer.Option("--hierarchy", metavar="FILE", help="Its TOML file that describes tiers.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what RAM serving a model will need, before anything is loaded: in all, and for what."""
    table_memory_bytes = None if table_memory is None else parse_bytes(table_memory, "--table-memory")
    stored_as = parse_row_format(row_format)
    if repository is None:
        if version is not None:
            raise typer.BadParameter("needs --repository DIR", param_hint="--version")
        from hebe.models.architectures.build import build_dense_net

        spec = catalog_entry(name, size, scale)
        dense_net: nn.Module = build_dense_net(spec)
    else:
        stored = stored_model(repository, name, version, size, scale)
        spec, dense_net = stored.spec, stored.dense_net()
    from hebe.embeddings.config.hierarchy_config import HierarchyConfig
    from hebe.machine.memory import available_bytes
    from hebe.machine.pinning import allot_cores, available_cores, threads_per_worker
    from hebe.machine.this_server import cores_allowed
    from hebe.models.repository.memory_estimate import estimate_memory

    cores = available_cores()
    workers = cores_allowed(cores) if workers is None else workers
    threads = worker_threads or threads_per_worker(allot_cores(workers, 1, cores), cores)
    tiers = None if hierarchy is None else HierarchyConfig.from_toml(hierarchy)
    estimate = estimate_memory(spec, dense_net, workers, batch_size, table_memory_bytes, threads, stored_as, tiers)
    available = available_bytes()
    make_console(as_json).print(memory_table(spec, estimate, available), crop=False)
    if as_json:
        print_json(
            {"name": spec.name, "size": spec.size, "scale": spec.scale, "available_bytes": available}
            | {"total_bytes": estimate.total_bytes, "model_bytes": estimate.model_bytes}
            | dataclasses.asdict(estimate)
        )


app.command(
    "import",
    epilog="Example: hebe model import --factory net.py:make --weights net.safetensors --name mine --repository models",
)(import_model)
app.command(
    "import-hps", epilog="Example: hebe model import-hps ps.json --out hebe.toml --persistent-dir stores --load"
)(import_hps)


def catalog_entry(name: str, size: str | None, scale: float) -> ModelSpec:
    """The catalog's entry; a wrong name, size or scale is wrong usage."""
    from hebe.models import catalog

    try:
        return catalog.entry(name, size, scale)
    except SpecError as fault:
        raise typer.BadParameter(str(fault)) from None


def stored_model(repository: Path, name: str, version: int | None, size: str | None, scale: float) -> StoredModel:
    """The stored model; raises `RepositoryError`. Its size and scale were fixed when it was made."""
    if size is not None or scale != 1.0:
        raise typer.BadParameter("a stored model has its size already: leave out --size and --scale")
    from hebe.models.repository.repository import ModelRepository

    return ModelRepository(repository).open(name, version)


def _provenance_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {inner}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
