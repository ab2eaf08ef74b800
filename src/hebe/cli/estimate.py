"""`hebe estimate`: what a server that nobody here owns would do for a model, from its data sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.options import QUERIES, SIZE_FORMS, check_at_least, check_percentile
from hebe.cli.output import JsonOption, foreign_lines_to_stderr, make_console, make_progress, print_json, show

_MODELS, _SERVERS, _TARGET, _RESULT = "Models", "Servers", "SLA target", "Result"
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
        from hebe.cli.estimate_results import server_types
        from hebe.cli.server_spec_file import BUILT_IN, TEMPLATE

        known = server_types(BUILT_IN.values())
        if list_types:
            show(console, known.blocks)
        else:
            console.print(TEMPLATE, end="", markup=False, soft_wrap=True)
        if as_json:
            print_json(known.data if list_types else {"template": TEMPLATE})
        return
    if not models:
        raise typer.BadParameter("name at least one; hebe model list shows those of the catalog", param_hint="MODEL")
    if not server:
        raise typer.BadParameter("name at least one; --list shows those built in", param_hint="--server")
    if sla_ms is not None:
        check_at_least("--sla-ms", sla_ms, more_than=0.0)
    if percentile is not None:
        check_percentile(percentile)
    if repository is not None and (size is not None or scale != 1.0):
        raise typer.BadParameter("a stored model has its size already", param_hint="--size, --scale")

    from hebe.cli.estimate_making import EstimateRequest, make_estimates, write_estimates
    from hebe.cli.estimate_results import document
    from hebe.simulation.server_estimate import Strategy

    if strategy not in list(Strategy):
        raise typer.BadParameter(f"{strategy!r}: choose {', '.join(Strategy)}", param_hint="--strategy")
    request = EstimateRequest(
        models=tuple(models),
        servers=tuple(server),
        size=size,
        scale=scale,
        repository=repository,
        sla_ms=sla_ms,
        percentile=percentile,
        sizes=sizes,
        keys=keys,
        strategy=Strategy(strategy),
        cache_ways=cache_ways,
    )
    with make_progress() as progress, foreign_lines_to_stderr():
        made = make_estimates(request, progress)
    shown = document(made)
    show(console, shown.blocks)
    files = write_estimates(made, out)
    console.print("\n" + "\n".join(f"{what}: {path}" for path, what in files.items()), soft_wrap=True, markup=False)
    if as_json:
        print_json({**shown.data, "files": list(files)})
    if not any(one.efficiency.qps > 0 for one in made):
        raise typer.Exit(_NONE_SERVED)
