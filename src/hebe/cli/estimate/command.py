"""`hebe estimate`: what a server that nobody here owns would do for a model, from its data sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hebe.cli.terminal.options import QUERIES, SIZE_FORMS, naming_parameters
from hebe.cli.terminal.output import (
    JsonOption,
    foreign_lines_to_stderr,
    make_console,
    make_progress,
    print_json,
    show,
    stage_bars,
)

if TYPE_CHECKING:
    from hebe.spec import ModelSpec

_MODELS, _SERVERS, _TARGET, _RESULT = "Models", "Servers", "SLA target", "Result"
_OPTIONS = {
    "models": "MODEL", "servers": "--server", "sla_ms": "--sla-ms", "percentile": "--percentile", "sizes": "--sizes",
    "keys": "--keys", "strategy": "--strategy", "cache_ways": "--cache-ways", "TEMPLATE": "hebe estimate --template",
}  # fmt: skip
"""What the parameters of `hebe.capacity.estimate` are called here."""
_TEMPLATE_HEAD = "# A server type for `hebe estimate MODEL --server FILE`. "
_NONE_SERVED = 3
_MOST_WAYS = 32


def estimate(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models of the catalog; with --repository those stored there."),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_SERVERS,
            metavar="TYPE",
            help="A server type: a built-in name (--list), or a TOML file of a data sheet's figures (--template). Give "
            "it once for each.",
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option(rich_help_panel=_MODELS, help="small or production, where both are published.")
    ] = None,
    scale: Annotated[
        float, typer.Option(rich_help_panel=_MODELS, help="Shrink the rows of every table to this share (0 to 1].")
    ] = 1.0,
    repository: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_MODELS, metavar="DIR", help="Take the models stored in this repository."),
    ] = None,
    sla_ms: Annotated[
        float | None,
        typer.Option(rich_help_panel=_TARGET, help="Latency bound in milliseconds (default: each model's own)."),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(rich_help_panel=_TARGET, help="Percentile at which it must hold (default: each model's own)."),
    ] = None,
    sizes: Annotated[str, typer.Option(rich_help_panel=QUERIES, help=SIZE_FORMS)] = "production",
    keys: Annotated[
        str,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Which rows are looked up: uniform, or reuse[:FILE[:NAME]], as skewed as production tables: caches "
            "then serve some.",
        ),
    ] = "uniform",
    strategy: Annotated[
        str,
        typer.Option(
            rich_help_panel=_SERVERS,
            help="How the best configuration is looked for: grid tries many of all placements; hercules is Algorithm "
            "1, with fewer evaluations; one-stage tries those only whose queries' times hebe simulate can be told; "
            "deeprecsys only chooses the batch size of a worker on every core.",
        ),
    ] = "grid",
    cache_ways: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST_WAYS, rich_help_panel=_SERVERS, help="Ways of the last-level cache, for co-location."
        ),
    ] = 11,
    out: Annotated[
        Path, typer.Option(rich_help_panel=_RESULT, metavar="DIR", help="Where the files go; older ones are replaced.")
    ] = Path("estimates"),
    list_types: Annotated[bool, typer.Option("--list", help="List the built-in server types and end.")] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Print a TOML file of a server type, with all units, and end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate what a server that nobody here owns would do for a model, from its data sheet, for hebe plan.

    For each model on each type of server it computes what every configuration would reach within the SLA (analytic
    servers: rooflines of what the server states and the model needs), and picks the best. It needs no server, and takes
    seconds. These are estimates, marked as such in every file: typically off by 1.6, some by 3.3; ratios between types
    are no better. Where you can run the model, measure it: hebe profile.

    Written to --out: efficiency.toml for hebe plan provision; service_times.toml for hebe plan pool and hebe simulate;
    scalability-TYPE.toml and server-TYPE.toml for hebe plan colocate.

    Exit codes: 0 written; 3 written, but no server type can serve any model: the table says why; 1 it failed; 2 wrong
    usage.

    Example: hebe estimate dlrm-rmc1 mt-wnd --server T2 --server T7 --out estimates

    Example: hebe estimate --template > mine.toml && hebe estimate dlrm-rmc2 --scale 0.1 --server mine.toml

    Then: hebe plan provision estimates/efficiency.toml servers.csv loads.csv
    """
    console = make_console(as_json)
    if list_types or template:
        from hebe.capacity.files.server_specs import BUILT_IN, TEMPLATE
        from hebe.cli.estimate.results import server_types

        known, text = server_types(BUILT_IN.values()), _TEMPLATE_HEAD + TEMPLATE.removeprefix("# ")
        if list_types:
            show(console, known.blocks)
        else:
            console.print(text, end="", markup=False, soft_wrap=True)
        if as_json:
            print_json(known.data if list_types else {"template": text})
        return
    if not models:
        raise typer.BadParameter("name at least one; hebe model list shows those of the catalog", param_hint="MODEL")
    if not server:
        raise typer.BadParameter("name at least one; --list shows those built in", param_hint="--server")
    if repository is not None and (size is not None or scale != 1.0):
        raise typer.BadParameter("a stored model has its size already", param_hint="--size, --scale")

    from hebe.capacity import estimate as estimated
    from hebe.capacity.server_estimates import write_estimates
    from hebe.cli.estimate.results import document

    with make_progress() as progress, foreign_lines_to_stderr(), naming_parameters(_OPTIONS):
        made = estimated(
            [_specification(name, size, scale, repository) for name in models], server, sla_ms=sla_ms,
            percentile=percentile, sizes=sizes, keys=keys, strategy=strategy, cache_ways=cache_ways,
            progress=stage_bars(progress),
        )  # fmt: skip
    shown = document(made)
    show(console, shown.blocks)
    files = write_estimates(made, out)
    console.print("\n" + "\n".join(f"{what}: {path}" for path, what in files.items()), soft_wrap=True, markup=False)
    if as_json:
        print_json({**shown.data, "files": list(files)})
    if not any(one.efficiency.qps > 0 for one in made):
        raise typer.Exit(_NONE_SERVED)


def _specification(name: str, size: str | None, scale: float, repository: Path | None) -> ModelSpec:
    """Of a stored model, or one of the catalog. Wrong usage for one that the catalog has not."""
    if repository is not None:
        from hebe.models.repository.repository import ModelRepository

        return ModelRepository(repository).open(name, None).spec
    from hebe.models import catalog
    from hebe.spec import SpecError

    try:
        return catalog.entry(name, size, scale)
    except SpecError as fault:
        raise typer.BadParameter(str(fault), param_hint="MODEL") from None
