"""`hebe plan colocate`: which models share a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hebe.cli.plan.result import PageOption, PlanOption, checked_page
from hebe.cli.terminal.options import naming_parameters
from hebe.cli.terminal.output import JsonOption, foreign_lines_to_stderr, hand_over, make_progress, stage_bars

_OPTIONS = {
    "over_provision": "--over-provision", "policy": "--policy", "most_models": "--most-models",
    "least_slope": "--least-slope", "time_limit_s": "--time-limit-s",
}  # fmt: skip
"""What the parameters of `hebe.capacity.plan_colocate` are called here."""

_LOAD, _RULE = "Demand", "What is best"


def colocate(
    profiles: Annotated[
        Path,
        typer.Argument(
            help="Scalability profiles. CSV, a line a measurement, workers of one core: model, workers, cache_ways, "
            "qps, bandwidth_bytes_per_s; optional are memory_bytes and estimated. TOML, JSON: whole profiles. Or a "
            "profile that hebe profile wrote, or a directory of them, of one type of server.",
        ),
    ],
    server: Annotated[
        Path,
        typer.Argument(
            help="The server to share: cores, cache_ways, bandwidth_bytes_per_s (what memory sustains); optional is "
            "memory_bytes, without which memory is no limit."
        ),
    ],
    demand: Annotated[Path, typer.Argument(help="Demand in queries/s: model, qps.")],
    over_provision: Annotated[
        float,
        typer.Option(
            rich_help_panel=_LOAD, help="Over-provision rate: 0.1 plans for a tenth more than each model's demand."
        ),
    ] = 0.0,
    policy: Annotated[
        str, typer.Option(rich_help_panel=_RULE, help="optimal, hera or one-model-a-server; all are compared.")
    ] = "optimal",
    most_models: Annotated[
        int, typer.Option(rich_help_panel=_RULE, help="Most models on a server, for the optimal plan.")
    ] = 2,
    least_slope: Annotated[
        float, typer.Option(rich_help_panel=_RULE, help="From which slope on a model scales well, for Hera's plan.")
    ] = 0.5,
    time_limit_s: Annotated[
        float, typer.Option(rich_help_panel=_RULE, help="Most seconds of the integer program.")
    ] = 10.0,
    plan: PlanOption = Path("shared.toml"),
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose which models share a server, with how many workers and cache ways each, on as few servers as can be.

    From what each model does alone with some of the cores and cache ways, it predicts what any set of models does on
    one server, and finds the fewest servers that meet the demand, with a proven lower bound. At that load servers may
    have nothing to spare: --over-provision leaves them room. It prints the plan beside Hera's and others', writes it to
    a plan file that hebe simulate --plan can prove, and draws a page with the affinity of every pair.
    """
    from hebe.capacity import plan_colocate
    from hebe.cli.plan.colocate_results import document, plan_content

    page = checked_page(plan, page, [profiles, server, demand])
    with make_progress() as progress, foreign_lines_to_stderr(), naming_parameters(_OPTIONS):
        made = plan_colocate(
            profiles, server, demand, over_provision=over_provision, policy=policy, most_models=most_models,
            least_slope=least_slope, time_limit_s=time_limit_s, progress=stage_bars(progress),
        )  # fmt: skip
    hand_over(document(made), page, as_json=as_json, plan=(plan, plan_content(made, plan)))
