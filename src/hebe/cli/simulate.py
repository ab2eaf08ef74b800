"""`hebe simulate`: what a pool of servers does under a policy and a load, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.options import (
    MEASURE,
    QUERIES,
    SIZE_FORMS,
    ArrivalsOption,
    FindQpsOption,
    QuerySeedOption,
    RateOption,
    check_at_least,
    check_percentile,
    check_rate_or_search,
    check_written,
)
from hebe.cli.output import JsonOption, make_console, make_progress, print_json

_FLEET = "Fleet"


def simulate(
    service_times: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Service times: CSV of samples (model,instance,batch,ms_0,ms_1,...), several files are added; or TOML"
            " or JSON of latency profiles; or profiles that hebe profile wrote, or a directory of them. Default: those"
            " that the plan was made from."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_FLEET, help="A plan file of hebe plan pool; the other options change it."),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FLEET, help="TYPE=COUNT,TYPE=COUNT,...: the first type is the base and is preferred."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FLEET,
            help="fcfs, threshold[:ITEMS], clockwork, matching or splitting (default: the plan's, or matching).",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_FLEET,
            help="Deal the pool into so many fleets that decide on their own (default: one, more from 200 workers on"
            " where queries are matched or split).",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(rich_help_panel=_FLEET, help="The model, if the service times are of several.")
    ] = None,
    rate: RateOption = None,
    find_qps: FindQpsOption = False,
    sla_ms: Annotated[
        float | None, typer.Option(rich_help_panel=MEASURE, help="Latency bound (default: the plan's).")
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(rich_help_panel=MEASURE, help="Percentile at which it must hold (default: the plan's, or 99)."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(rich_help_panel=QUERIES, help=f"{SIZE_FORMS} (default: the plan's, or production)."),
    ] = None,
    arrivals: ArrivalsOption = "poisson",
    queries: Annotated[
        int | None,
        typer.Option(rich_help_panel=QUERIES, help="Queries per run (default: 10,000, more for a long SLA)."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(rich_help_panel=QUERIES, help="Runs with other queries, for the confidence interval.")
    ] = 3,
    seed: QuerySeedOption = 0,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures, HTML.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pool of servers in virtual time, with the router and the policies of the live system.

    Servers take as long as was measured, with the measured spread. At a rate it tells latency, SLA attainment and how
    busy each server type is; with --find-qps the largest rate at which the SLA target holds. The same seed sends the
    same queries to every pool and policy, so that two runs differ by what you changed and not by chance.

    Example: hebe simulate times.csv --pool gpu=1,cpu=13 --policy splitting --sla-ms 25 --rate 1200 --page run.html

    Example: hebe simulate --plan plan.toml --find-qps
    """
    from hebe.cli.simulate_making import SimulationRequest, make_simulation
    from hebe.cli.simulate_results import result_table, simulation_page, summary

    check_rate_or_search(rate, find_qps)
    if plan is None and pool is None:
        raise typer.BadParameter("give a pool, or a plan by --plan", param_hint="--pool")
    if plan is None and not service_times:
        raise typer.BadParameter("give files of service times, or a plan by --plan", param_hint="SERVICE_TIMES")
    if plan is None and sla_ms is None:
        raise typer.BadParameter("give a latency bound, or a plan by --plan", param_hint="--sla-ms")
    for option, value in (("--rate", rate), ("--sla-ms", sla_ms)):
        if value is not None:
            check_at_least(option, value, more_than=0.0)
    if percentile is not None:
        check_percentile(percentile)
    if partitions is not None:
        check_at_least("--partitions", partitions, least=1)
    check_at_least("--seeds", seeds, least=1)
    check_at_least("--seed", seed, least=0)
    if page is not None:
        check_written({"--page": page}, [*(service_times or []), *([plan] if plan is not None else [])])
    request = SimulationRequest(
        tuple(service_times or ()), plan, pool, policy, model, rate, sla_ms, percentile, sizes, arrivals, queries,
        seeds, seed, partitions,
    )  # fmt: skip
    with make_progress() as progress:
        made = make_simulation(request, progress)
    console = make_console(as_json)
    console.print(result_table(made), crop=False)
    if page is not None:
        simulation_page(made).write(page)
        console.print(f"Page: {page}", soft_wrap=True)
    if as_json:
        print_json({**summary(made), "page": page})
