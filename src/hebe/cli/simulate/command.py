"""`hebe simulate`: what a pool of servers, or a planned fleet of several models, does under a load, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hebe.cli.terminal.options import (
    MEASURE,
    QUERIES,
    SIZE_FORMS,
    ArrivalsOption,
    FindQpsOption,
    QuerySeedOption,
    RateOption,
    check_at_least,
    check_rate_or_search,
    check_written,
    naming_parameters,
)
from hebe.cli.terminal.output import JsonOption, check_result_file, hand_over, make_progress

if TYPE_CHECKING:
    pass
from hebe.cli.terminal.output import stage_bars
from hebe.cli.terminal.pool_forms import parse_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_FLEET = "Fleet"
_OF_A_POOL = {
    "--pool": "the plan says which servers there are",
    "--partitions": "it is for a pool",
    "--model": "all models of the plan are simulated",
    "--rate": "the plan says each model's load: give --load-factor",
    "--find-qps": "the plan says each model's load: give --load-factor",
}
"""Options that a plan of several models does not take, and why."""
_OPTIONS = {
    "service_times": "SERVICE_TIMES", "plan": "--plan", "pool": "--pool", "policy": "--policy",
    "partitions": "--partitions", "model": "--model", "load_factor": "--load-factor", "rate_qps": "--rate",
    "sla_ms": "--sla-ms", "sla_ms=ms": "--sla-ms MS", "sla_ms={model: ms, ...}": "MODEL=MS,MODEL=MS",
    "percentile": "--percentile", "sizes": "--sizes", "arrivals": "--arrivals", "queries": "--queries",
    "seeds": "--seeds", "seed": "--seed",
}  # fmt: skip
"""What the parameters of `hebe.capacity`'s simulations are called here."""
_SEEDS = {"pool": 3, "provisioning": 1, "colocation": 3}
"""A day is many runs already."""


def simulate(
    service_times: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Service times: CSV of samples (model,server_type,items,ms_0,ms_1,...), several files are added; or"
            " TOML or JSON of latency profiles; or profiles that hebe profile wrote, or a directory of them. Default:"
            " those that the plan was made from."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_FLEET, help="A plan file of hebe plan pool, provision or colocate."),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FLEET,
            help="TYPE=COUNT,TYPE=COUNT,...: the first type is the base and is preferred (default: the pool's plan).",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FLEET,
            help="fcfs, threshold[:ITEMS], clockwork, matching or splitting (default: a pool's plan's, or matching; of"
            " several models fcfs). For hebe plan provision not splitting, and threshold with its items.",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_FLEET,
            help="Deal a pool into so many fleets that decide on their own (default: one, more from 200 workers on"
            " where queries are matched or split).",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(rich_help_panel=_FLEET, help="A pool's model, if the service times are of several.")
    ] = None,
    load_factor: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=MEASURE,
            help="Simulate the planned load times this: of plans of hebe plan provision and colocate, in place of"
            " --rate and --find-qps (default: 1).",
        ),
    ] = None,
    rate: RateOption = None,
    find_qps: FindQpsOption = False,
    sla_ms: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MEASURE,
            metavar="MS",
            help="Latency bound; of several models one for all, or MODEL=MS,MODEL=MS (default: the plan's, or as"
            " profiled).",
        ),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=MEASURE, help="Percentile at which it must hold (default: as the bound's, or 99)."
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(rich_help_panel=QUERIES, help=f"{SIZE_FORMS} (default: the plan's, as profiled, or production)."),
    ] = None,
    arrivals: ArrivalsOption = "poisson",
    queries: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Queries per run (default: 10,000, of a pool more for a long SLA); of hebe plan provision for each"
            " model in each interval.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Runs with other queries (default: 3, for the confidence interval; of hebe plan provision 1).",
        ),
    ] = None,
    seed: QuerySeedOption = 0,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures, HTML.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pool of servers, or a planned fleet, in virtual time, by the router and policies of a live fleet to come.

    Servers take as long as was measured, with the measured spread. At a rate it tells latency, SLA attainment and how
    busy each server type is; with --find-qps the largest rate at which the SLA target holds. A plan of hebe plan
    provision or colocate is proven model by model, at the load that it was made for. The same seed sends the same
    queries to every pool and policy, so that two runs differ by what you changed and not by chance.

    Example: hebe simulate times.csv --pool gpu=1,cpu=13 --policy splitting --sla-ms 25 --rate 1200 --page run.html

    Example: hebe simulate --plan pool.toml --find-qps

    Example: hebe simulate times.csv --plan day.toml --sla-ms ranker=25,filter=10 --load-factor 1.1 --page day.html
    """
    bound_ms = None if sla_ms is None else _bound_ms(sla_ms)
    if page is not None:
        check_result_file("--page", page)
        check_written({"--page": page}, [*(service_times or []), *([plan] if plan is not None else [])])
    if plan is not None and (kind := _kind(plan)) != "pool":
        given = {"--pool": pool, "--partitions": partitions, "--model": model, "--rate": rate}
        refused = [option for option, value in given.items() if value is not None] + ["--find-qps"] * find_qps
        for option in refused:
            raise typer.BadParameter(f"does not fit the plan in {plan}: {_OF_A_POOL[option]}", param_hint=option)
        asked = {
            "load_factor": 1.0 if load_factor is None else load_factor, "sla_ms": bound_ms, "percentile": percentile,
            "sizes": sizes, "arrivals": arrivals, "queries": queries,
            "seeds": _SEEDS[kind] if seeds is None else seeds, "seed": seed, "policy": policy,
        }  # fmt: skip
        _simulate_fleet(kind, plan, service_times, asked, page, as_json)
        return
    if load_factor is not None:
        check_at_least("--load-factor", load_factor, more_than=0.0)
        raise typer.BadParameter(
            "is for plans of hebe plan provision and colocate: of a pool give --rate", param_hint="--load-factor"
        )
    if isinstance(bound_ms, dict):
        raise typer.BadParameter(f"{sla_ms!r}: a pool has one model: give one number", param_hint="--sla-ms")
    check_rate_or_search(rate, find_qps)
    if plan is None and pool is None:
        raise typer.BadParameter("give a pool, or a plan by --plan", param_hint="--pool")
    if plan is None and not service_times:
        raise typer.BadParameter("give files of service times, or a plan by --plan", param_hint="SERVICE_TIMES")
    from hebe.capacity import simulate_pool
    from hebe.cli.simulate.results import document

    counts = None if pool is None else parse_counts(pool, "--pool")
    with make_progress() as progress, naming_parameters(_OPTIONS):
        made = simulate_pool(
            service_times or None, plan=plan, pool=counts, policy=policy, partitions=partitions, model=model,
            rate_qps=rate, sla_ms=bound_ms, percentile=percentile, sizes=sizes, arrivals=arrivals, queries=queries,
            seeds=_SEEDS["pool"] if seeds is None else seeds, seed=seed, progress=stage_bars(progress),
        ).named(_OPTIONS)  # fmt: skip
    hand_over(document(made), page, as_json=as_json)


def _simulate_fleet(
    kind: str, plan: Path, times: list[Path] | None, asked: Mapping[str, Any], page: Path | None, as_json: bool
) -> None:
    """Run a plan of several models, and show the result."""
    simulated: Callable[..., Any]
    results: Any
    if kind == "provisioning":
        from hebe.capacity import simulate_provisioning
        from hebe.cli.simulate import provisioning_results

        simulated, results = simulate_provisioning, provisioning_results
    else:
        from hebe.capacity import simulate_colocation
        from hebe.cli.simulate import colocation_results

        simulated, results = simulate_colocation, colocation_results
    options = _OPTIONS | {"service_times": f"hebe simulate SERVICE_TIMES... --plan {plan}"}
    with make_progress() as progress, naming_parameters(options):
        made = simulated(plan, times or None, progress=stage_bars(progress), **asked)
    hand_over(results.document(made), page, as_json=as_json)


def _kind(plan: Path) -> str:
    from hebe.capacity.files.plan_content import plan_kind

    return plan_kind(plan)


def _bound_ms(text: str) -> float | dict[str, float]:
    """A latency bound of `--sla-ms` for all models, or one for each of some. Wrong usage if it is neither."""
    if "=" not in text:
        return _milliseconds(text, text)
    bounds: dict[str, float] = {}
    for entry in text.split(","):
        name, _, number = (part.strip() for part in entry.rpartition("="))
        if not name or name in bounds:
            raise typer.BadParameter(f"{entry.strip()!r}: must be MODEL=MS, each model once", param_hint="--sla-ms")
        bounds[name] = _milliseconds(number, entry.strip())
    return bounds


def _milliseconds(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: must be milliseconds, or MODEL=MS,MODEL=MS", param_hint="--sla-ms"
        ) from None
    check_at_least("--sla-ms", value, more_than=0.0)
    return value
