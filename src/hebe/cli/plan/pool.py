"""`hebe plan pool`: which servers a budget buys for one model, and how queries are distributed over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.plan.result import RESULT, PageOption, PlanOption, checked_page
from hebe.cli.terminal.options import SIZE_FORMS, naming_parameters
from hebe.cli.terminal.output import JsonOption, hand_over, make_progress, stage_bars

_OPTIONS = {
    "budget_per_hour": "--budget", "most": "--most", "types": "--types", "sla_ms": "--sla-ms",
    "percentile": "--percentile", "model": "--model", "sizes": "--sizes", "simulate=False": "--no-simulate",
    "queries": "--queries", "seeds": "--seeds", "seed": "--seed", "ranked": "--ranked",
}  # fmt: skip
"""What the parameters of `hebe.capacity.plan_pool` are called here."""

_OFFER, _LOAD, _SIMULATION = "What is on offer", "Load and SLA", "Simulation"


def pool(
    service_times: Annotated[
        list[Path],
        typer.Argument(
            help="Service times: CSV of samples (model,server_type,items,ms_0,ms_1,...), several files are added; or"
            " TOML or JSON of latency profiles (model, server_type, batch_sizes, service_s, spread_s); or profiles that"
            " hebe profile wrote, or a directory of them."
        ),
    ],
    prices: Annotated[Path, typer.Option(rich_help_panel=_OFFER, help="Prices: server_type,price_per_hour.")],
    budget: Annotated[float, typer.Option(rich_help_panel=_OFFER, help="What the pool may cost per hour.")],
    sla_ms: Annotated[float, typer.Option(rich_help_panel=_LOAD, help="Latency bound in milliseconds.")],
    percentile: Annotated[float, typer.Option(rich_help_panel=_LOAD, help="Percentile at which it must hold.")] = 99.0,
    model: Annotated[
        str | None, typer.Option(rich_help_panel=_LOAD, help="The model, if the service times are of several.")
    ] = None,
    sizes: Annotated[str, typer.Option(rich_help_panel=_LOAD, help=SIZE_FORMS)] = "production",
    types: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_OFFER, help="Only these server types: NAME,NAME,... (default: all that are priced)."
        ),
    ] = None,
    most: Annotated[
        str | None, typer.Option(rich_help_panel=_OFFER, help="Most servers of a type: NAME=COUNT,NAME=COUNT,...")
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate/--no-simulate",
            rich_help_panel=_SIMULATION,
            help="Choose by simulation and predict the throughput, which takes long for hundreds of servers; else take"
            " the pool with the highest fluid bound.",
        ),
    ] = True,
    queries: Annotated[
        int | None,
        typer.Option(rich_help_panel=_SIMULATION, help="Queries per run (default: 10,000, more for a long SLA)."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(rich_help_panel=_SIMULATION, help="Runs with other queries, for the confidence interval.")
    ] = 3,
    seed: Annotated[int, typer.Option(rich_help_panel=_SIMULATION, help="The same seed gives the same plan.")] = 0,
    ranked: Annotated[int, typer.Option(rich_help_panel=RESULT, help="How many of the ranked pools to show.")] = 10,
    plan: PlanOption = Path("pool.toml"),
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the pool of unlike servers that serves most queries of one model within a budget and an SLA.

    All pools within the budget are ranked by Kairos' throughput bound, which takes no measuring; a fluid program finds
    the best pools with whole and with split queries. The most promising are then simulated with the policies that a
    live router is to run, and the best becomes the plan: its counts, its policy, and the throughput it should reach.
    """
    from hebe.capacity import plan_pool
    from hebe.cli.plan.pool_results import document, plan_file
    from hebe.cli.terminal.pool_forms import parse_counts, parse_types

    page = checked_page(plan, page, [*service_times, prices])
    only = None if types is None else parse_types(types, "--types")
    limits = None if most is None else parse_counts(most, "--most")
    with make_progress() as progress, naming_parameters(_OPTIONS):
        made = plan_pool(
            service_times, prices, budget, sla_ms, percentile=percentile, model=model, sizes=sizes, types=only,
            most=limits, simulate=simulate, queries=queries, seeds=seeds, seed=seed, ranked=ranked,
            progress=stage_bars(progress),
        ).named(_OPTIONS)  # fmt: skip
    hand_over(document(made), page, as_json=as_json, plan=(plan, plan_file(made).to_dict(plan)))
