"""What `hebe plan colocate` shows and writes: a document, and the plan file's content."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hebe._version import __version__
from hebe.capacity.colocation_planner import ColocationPlanMade
from hebe.capacity.files.colocation_plan import PLAN_KIND, PLAN_VERSION, workers_words
from hebe.capacity.files.plan_content import relative_to_plan
from hebe.planning.colocation.affinity import scalability_slope
from hebe.planning.colocation.colocation import ServerGroup
from hebe.report.document import (
    Block,
    Cell,
    Document,
    Heading,
    KeyNumber,
    KeyNumbers,
    Picture,
    Table,
    Text,
    Tone,
    notes,
)
from hebe.report.plots.heat_map import heat_map
from hebe.report.plots.latency import grouped_bars
from hebe.report.tables import Column, format_number

_WORDS = {
    "one-model-a-server": "one model a server",
    "random": "random",
    "hera-random": "Hera (random)",
    "hera": "Hera",
    "optimal": "optimal",
}


def _data(made: ColocationPlanMade) -> dict[str, Any]:
    """The plan's figures as plain data."""
    plan, tables = made.plan, made.tables
    return {
        "policy": made.request.policy,
        "servers": plan.servers,
        "least_servers": plan.least_servers,
        "utilization": plan.utilization,
        "servers_by_policy": made.servers,
        "demand_qps": dict(made.demand_qps),
        "over_provision_rate": made.request.over_provision,
        "planned_qps": dict(plan.demand_qps),
        "capacity_qps": plan.capacity_qps,
        "worker_scalability": {
            model: str(kind) for model, kind in zip(tables.models, made.scalability, strict=True)
        },
        "models": list(tables.models),
        "affinity": None if made.affinity is None else made.affinity.tolist(),
        "groups": [_group(group) for group in plan.groups],
    }  # fmt: skip


def plan_content(made: ColocationPlanMade, path: Path) -> dict[str, Any]:
    """The plan file at `path`: what runs on how many servers, with how many workers and cache ways, what is predicted,
    and the files that it was made from, relative to it."""
    plan, server = made.plan, made.tables.server
    predicted: dict[str, Any] = {
        "servers": plan.servers,
        "utilization": plan.utilization,
        "capacity_qps": plan.capacity_qps,
        "servers_by_policy": made.servers,
    }
    if plan.least_servers is not None:
        predicted["least_servers"] = plan.least_servers
    request = made.request
    resources: dict[str, Any] = {} if made.server_type is None else {"server_type": made.server_type}
    resources |= {
        "cores": server.cores,
        "cache_ways": server.cache_ways,
        "bandwidth_bytes_per_s": server.bandwidth_bytes_per_s,
    }
    if math.isfinite(server.memory_bytes):
        resources["memory_bytes"] = server.memory_bytes
    return {
        "kind": PLAN_KIND,
        "version": PLAN_VERSION,
        "written_by": f"hebe {__version__}",
        "policy": request.policy,
        "over_provision_rate": request.over_provision,
        "made_from": {
            "profiles": relative_to_plan(request.profiles, path),
            "server": relative_to_plan(request.server, path),
            "demand": relative_to_plan(request.demand, path),
        },
        "demand_qps": dict(made.demand_qps),
        "planned_qps": dict(plan.demand_qps),
        "predicted": predicted,
        "server": resources,
        "group": [_group(group) for group in plan.groups],
        "scalability": [profile.to_dict() for profile in made.profiles if profile.model in plan.capacity_qps],
    }


def _group(group: ServerGroup) -> dict[str, Any]:
    return {
        "servers": group.servers,
        "utilization": group.utilization,
        "tenant": [
            {
                "model": tenant.model,
                "workers": tenant.workers,
                "cores_per_worker": tenant.cores_per_worker,
                "cache_ways": tenant.cache_ways,
                "qps": tenant.qps,
            }
            for tenant in group.tenants
        ],
    }


def document(made: ColocationPlanMade) -> Document:
    """The plan: servers, who shares one, the models, the affinity of every pair, and what is proven."""
    plan, models, server = made.plan, made.tables.models, made.tables.server
    single = made.servers["one-model-a-server"]
    blocks: list[Block] = [
        KeyNumbers(
            [
                KeyNumber("servers", format_number(plan.servers)),
                KeyNumber("effective machine utilization", f"{100 * plan.utilization:.0f}", "%"),
                KeyNumber("saved", f"{100 * (1 - plan.servers / single):.1f}", "%", "over one model a server"),
            ]
        ),
        Heading("Servers"),
        _groups(made),
        Picture(
            lambda: grouped_bars(
                {_WORDS[name]: {"servers": servers} for name, servers in made.servers.items()}, "servers", "Servers"
            ),
            "What each policy needs. Random ones: the mean of ten seeds.",
        ),
        _policies(made),
        Heading("Models"),
        _models(made),
    ]
    affinity, algorithm_1 = made.affinity, made.algorithm_1
    if affinity is not None and algorithm_1 is not None:
        blocks += [
            Heading("Affinity"),
            Picture(
                lambda: heat_map(affinity, models, models, "Co-location affinity"),
                "What two models keep of their throughput on half of the cores each, at the best split of the cache.",
            ),
            Picture(
                lambda: heat_map(algorithm_1, models, models, "Hera's Algorithm 1"),
                "The same without contention below the full bandwidth.",
            ),
        ]
    return Document(
        "Co-location plan",
        [*blocks, *notes([Text(note, Tone.WARNING) for note in _notes(made)])],
        f"{len(plan.demand_qps)} models on servers of {server.cores} cores and {server.cache_ways} cache ways.",
        f"hebe {__version__}; demand from {made.request.demand.name}, over-provision rate"
        f" {made.request.over_provision:g}",
        _data(made),
    )


def _groups(made: ColocationPlanMade) -> Table:
    rows: list[list[Cell]] = []
    for group in made.plan.groups:
        shares = ", ".join(f"{workers_words(tenant)} / {tenant.cache_ways}" for tenant in group.tenants)
        served = ", ".join(format_number(tenant.qps) for tenant in group.tenants)
        models = " + ".join(tenant.model for tenant in group.tenants)
        rows.append([models, group.servers, shares, served, f"{100 * group.utilization:.0f}%"])
    shared = Column("workers / ways", folds=True)
    columns: list[Column | str] = ["models on a server", "servers", shared, "queries/s", "EMU"]
    return Table("", columns, rows, caption="What runs on how many servers; queries/s are predicted.")


def _models(made: ColocationPlanMade) -> Table:
    tables, plan = made.tables, made.plan
    capacity, slopes = plan.capacity_qps, scalability_slope(tables)
    raised = made.request.over_provision > 0
    rows: list[list[Cell]] = [
        [
            model, str(made.scalability[at]), f"{slopes[at]:.2f}", float(tables.alone[at]),
            made.demand_qps[model], *([plan.demand_qps[model]] if raised else []), capacity[model],
        ]
        for at, model in enumerate(tables.models)
        if model in plan.demand_qps
    ]  # fmt: skip
    planned = ["planned for"] if raised else []
    return Table(
        "",
        ["model", "scalability", "slope", "queries/s alone", "demand", *planned, "capacity"],
        rows,
        caption="Slope: what the last quarter of the cores brings, over what a quarter brings.",
    )


def _policies(made: ColocationPlanMade) -> Table:
    single = made.servers["one-model-a-server"]
    rows: list[list[Cell]] = [
        [
            _WORDS[policy] + (" (chosen)" if policy == made.request.policy else ""),
            f"{servers:,.1f}".removesuffix(".0"), f"{100 * (1 - servers / single):.1f}%",
        ]
        for policy, servers in made.servers.items()
    ]  # fmt: skip
    return Table("", ["policy", "servers", "saved"], rows, caption="Saved: over one model a server.")


def _notes(made: ColocationPlanMade) -> list[str]:
    told = []
    plan = made.plan
    if plan.least_servers is not None:
        bound = (
            f"no plan with at most {made.request.most_models} models a server needs fewer than {plan.least_servers:,}"
        )
        told.append(f"Proven: {bound} servers." if plan.servers > plan.least_servers else f"Proven optimal: {bound}.")
    rate = made.request.over_provision
    if rate:
        told.append(f"Planned for {100 * (1 + rate):.4g}% of the demand: an over-provision rate of {rate:g}.")
    else:
        told.append("No headroom: at the demand a server may be at its limit; --over-provision leaves room.")
    estimated = [profile.model for profile in made.profiles if profile.estimated]
    if estimated:
        told.append(f"{len(estimated)} of {len(made.profiles)} scalability profiles are estimated, not measured.")
    if not math.isfinite(made.tables.server.memory_bytes):
        told.append(f"Memory is no limit here: {made.request.server.name} has no memory_bytes.")
    if made.affinity is None:
        told.append("A server with a single core or cache way is not shared.")
    return told
