"""`hebe plan`: which servers to have, and what runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.plan.colocate import colocate
from hebe.cli.plan.pool import pool
from hebe.cli.plan.result import RESULT, PageOption, PlanOption, checked_page
from hebe.cli.terminal.options import naming_parameters
from hebe.cli.terminal.output import JsonOption, foreign_lines_to_stderr, hand_over, make_progress, stage_bars

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Plan which servers to have, and what runs on them.",
    epilog="Example: hebe plan provision efficiency.csv servers.csv loads.csv",
)

app.command(
    "pool",
    epilog="Example: hebe plan pool times.csv --prices prices.csv --model rm2 --sla-ms 350 --budget 2.5",
)(pool)

app.command(
    "colocate",
    epilog="Example: hebe plan colocate profiles.csv server.toml demand.csv --most-models 3",
)(colocate)

_OPTIONS = {
    "interval_s": "--interval-s", "over_provision": "--over-provision", "quantile": "--quantile",
    "history": "--history", "minimise": "--minimise", "set_up_s": "--set-up-s", "gap": "--gap",
    "time_limit_s": "--time-limit-s",
}  # fmt: skip
"""What the parameters of `hebe.capacity.plan_provision` are called here."""

_LOAD, _OBJECTIVE = "Load", "What is best"


@app.command("provision", epilog="Example: hebe plan provision efficiency.csv servers.csv loads.csv")
def provision(
    efficiency: Annotated[
        Path,
        typer.Argument(
            help="Efficiency tuples: model, server_type, qps, power_watts; optional are estimated and "
            "configuration.NAME. Every pair is needed; a qps of 0 says that the type cannot serve the model. Or a "
            "profile that hebe profile wrote, or a directory of them.",
        ),
    ],
    servers: Annotated[
        Path, typer.Argument(help="Server types: server_type, available; optional are price_per_hour and power_watts.")
    ],
    loads: Annotated[
        Path, typer.Argument(help="Loads in queries/s: time_s and a column for each model, or time_s, model, qps.")
    ],
    interval_s: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_LOAD, help="Plan anew every so many seconds (default: ten minutes, or the loads' step)."
        ),
    ] = None,
    over_provision: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_LOAD, help="Over-provision rate: 0.1 is a tenth (default: from how fast the loads rise)."
        ),
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_LOAD, help="Share of moments whose rise is to be covered by that default (default: 0.99)."
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(rich_help_panel=_LOAD, help="Take the rises from these loads instead.")
    ] = None,
    minimise: Annotated[str, typer.Option(rich_help_panel=_OBJECTIVE, help="power or price.")] = "power",
    set_up_s: Annotated[
        float,
        typer.Option(rich_help_panel=_OBJECTIVE, help="Seconds that a server takes to start or change its model."),
    ] = 30.0,
    gap: Annotated[
        float, typer.Option(rich_help_panel=_OBJECTIVE, help="Stop an interval's search this near to the optimum.")
    ] = 0.001,
    time_limit_s: Annotated[
        float,
        typer.Option(rich_help_panel=_OBJECTIVE, help="Most seconds of an interval's integer program; 0: round only."),
    ] = 0.2,
    plan: PlanOption = Path("day.toml"),
    page: PageOption = None,
    baselines: Annotated[
        bool,
        typer.Option(rich_help_panel=RESULT, help="Compare with a greedy, a priority-aware and a blind scheduler."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Choose how many servers of which type each model gets over the day, at the least provisioned power or price.

    For every interval an integer program takes the load at its start, raised by the over-provision rate, and finds
    the servers; those that run already need no set-up. Files are CSV, TOML or JSON. It prints the plan, writes it to a
    plan file with all predicted figures, which hebe simulate --plan can prove, and draws a page with pictures. If the
    load cannot be met, it says which servers are exhausted and how much of the load fits.
    """
    from hebe.capacity import plan_provision
    from hebe.cli.plan.provision_results import document, plan_content

    read = [path for path in (efficiency, servers, loads, history) if path is not None]
    page = checked_page(plan, page, read)
    with make_progress() as progress, foreign_lines_to_stderr(), naming_parameters(_OPTIONS):
        made = plan_provision(
            efficiency, servers, loads, interval_s=interval_s, over_provision=over_provision, quantile=quantile,
            history=history, minimise=minimise, set_up_s=set_up_s, gap=gap, time_limit_s=time_limit_s,
            baselines=baselines, progress=stage_bars(progress),
        )  # fmt: skip
    hand_over(document(made), page, as_json=as_json, plan=(plan, plan_content(made, plan)))
