"""`hebe plan pool`: which servers a budget buys for one model, and how queries are distributed over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.options import SIZE_FORMS, check_at_least, check_percentile, parse_form
from hebe.cli.output import JsonOption, hand_over, make_progress
from hebe.cli.plan_result import RESULT, PageOption, PlanOption, checked_page

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
    from hebe.cli.plan_pool_making import PoolRequest, make_pool_plan
    from hebe.cli.plan_pool_results import document, plan_file
    from hebe.cli.pool_forms import parse_counts, parse_types
    from hebe.spec import SlaTarget
    from hebe.workload import forms

    check_at_least("--budget", budget, more_than=0.0)
    check_at_least("--sla-ms", sla_ms, more_than=0.0)
    check_percentile(percentile)
    parse_form("--sizes", forms.query_sizes, sizes)
    if queries is not None:
        check_at_least("--queries", queries, least=1)
    check_at_least("--seeds", seeds, least=1)
    check_at_least("--seed", seed, least=0)
    check_at_least("--ranked", ranked, least=1)
    page = checked_page(plan, page, [*service_times, prices])
    request = PoolRequest(
        tuple(service_times), prices, budget, SlaTarget(sla_ms, percentile), model,
        None if types is None else tuple(parse_types(types, "--types")),
        {} if most is None else parse_counts(most, "--most"),
        sizes, ranked, simulate, queries, seeds, seed,
    )  # fmt: skip
    with make_progress() as progress:
        made = make_pool_plan(request, progress)
    hand_over(document(made), page, as_json=as_json, plan=(plan, plan_file(made).to_dict(plan)))
