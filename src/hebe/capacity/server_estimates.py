"""What servers that nobody here owns would do for models, and the files that plans and simulations read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from hebe.capacity.arguments import checked
from hebe.capacity.errors import (
    ArgumentError,
    PlanFileError,
    check_at_least,
    check_form,
    check_percentile,
)
from hebe.capacity.files.reading import FilePath
from hebe.capacity.files.server_specs import server_named
from hebe.capacity.progress import OnProgress, Progress, ignore
from hebe.report.atomic_write import write_whole
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.server_estimate import Estimate, EstimateCase, Strategy
from hebe.simulation.analytic.server_estimate import estimate as estimated
from hebe.simulation.sweep import sweep
from hebe.spec import ModelSpec, ServerSpec, SlaTarget
from hebe.workload import forms
from hebe.workload.key_skew import ReuseKeys, UniformKeys
from hebe.workload.reuse_profile import ReuseProfile

_HEAD = "# Written by hebe estimate: estimated from data sheets, not measured (docs/analytic-servers.md).\n\n"


ServerGiven = ServerSpec | FilePath
"""A server type: its specification, the name of a built-in one, or a TOML file of a data sheet."""


@dataclass(frozen=True, slots=True)
class EstimateMade:
    """One pair: what was asked, and what came out."""

    case: EstimateCase
    estimate: Estimate

    @property
    def efficiency(self) -> Any:
        """The efficiency tuple."""
        return self.estimate.efficiency


@checked
def estimate(
    models: ModelSpec | Sequence[ModelSpec],
    servers: ServerGiven | Sequence[ServerGiven],
    *,
    sla_ms: float | None = None,
    percentile: float | None = None,
    sizes: str = "production",
    keys: str = "uniform",
    strategy: str = "grid",
    cache_ways: int = 11,
    progress: OnProgress = ignore,
) -> list[EstimateMade]:
    """Estimate what servers that nobody here owns would do for models, from their data sheets.

    For each model on each server type it computes what every configuration would reach within the SLA target, by
    rooflines of what the server states and the model needs (docs/analytic-servers.md says how far off they are), and
    picks the best. The result has every model on every type, models first.

    Parameters:
        models: specifications, as of `hebe.models.catalog.entry`.
        servers: built-in types by name (`server_specs.BUILT_IN`), TOML files of data sheets, or specifications.
        sla_ms, percentile: the SLA target in milliseconds; None: each model's own.
        sizes: query sizes in items, in a form of `hebe.workload.forms`.
        keys: which rows are looked up: `"uniform"`, or `"reuse[:FILE[:NAME]]"`, as skewed as production tables.
        strategy: how the best configuration is looked for: one of `Strategy`.
        cache_ways: ways of the last-level cache, for co-location.
        progress: receives what is done, in this thread.

    Everything is checked before anything is computed. Raises `ArgumentError`, whose `field` names the parameter;
    `PlanFileError` for a file, naming the field; `PlanningError` for an architecture that is not known; `WorkloadError`
    for files that a form names.
    """
    if sla_ms is not None:
        check_at_least("sla_ms", sla_ms, more_than=0.0)
    if percentile is not None:
        check_percentile("percentile", percentile)
    if strategy not in list(Strategy):
        raise ArgumentError("strategy", f"{strategy!r}: choose {', '.join(Strategy)}")
    check_at_least("cache_ways", cache_ways, least=1)
    types = _servers([servers] if isinstance(servers, str | PathLike | ServerSpec) else servers)
    specs = {spec.name: spec for spec in ([models] if isinstance(models, ModelSpec) else models)}
    for field, given in (("models", specs), ("servers", types)):
        if not given:
            raise ArgumentError(field, "name at least one")
    for spec in specs.values():
        model_work(spec)  # an architecture that is not known is reported before the search
    drawn, reuse = check_form("sizes", forms.query_sizes, sizes), _reuse(keys)
    cases = [
        EstimateCase(server, spec, _sla(spec, sla_ms, percentile), drawn, reuse, Strategy(strategy), cache_ways)
        for spec in specs.values()
        for server in types
    ]
    small = sum(case.server.cores for case in cases) <= _FEW_CORES

    def report(done: int, total: int) -> None:
        progress(Progress("models on server types", done, total))

    found = sweep(estimated, cases, report, in_process=small)
    return [EstimateMade(case, one) for case, one in zip(cases, found, strict=True)]


_FEW_CORES = 40
"""Two servers of twenty take about as long as starting processes."""


def write_estimates(made: Sequence[EstimateMade], out: Path) -> dict[Path, str]:
    """Write the files into `out`; returns each and what it is for. Raises OSError, which names the file.

    Where a file would hold nothing, an older one goes: it would be of other servers than the tuples beside it.
    """
    files: dict[Path, str] = {}

    def write(name: str, what: str, array: str, entries: list[dict[str, Any]]) -> None:
        if entries:
            write_whole(out / name, _HEAD + tomli_w.dumps({array: entries}))
            files[out / name] = what
        else:
            (out / name).unlink(missing_ok=True)

    write("efficiency.toml", "Efficiency tuples", "efficiency", [one.efficiency.to_dict() for one in made])
    times = [_times(one) for one in made if one.estimate.times]
    write("service_times.toml", "Service times", "profile", times)
    for server in {one.case.server.name: one.case.server for one in made}.values():
        of_type = [one.estimate.shared for one in made if one.case.server == server and one.estimate.shared]
        profiles = [shared.scalability.to_dict() for shared in of_type]
        write(f"scalability-{server.name}.toml", f"Scalability on {server.name}", "scalability", profiles)
        resources = [
            {
                "server_type": server.name,
                "cores": shared.resources.cores,
                "cache_ways": shared.resources.cache_ways,
                "bandwidth_bytes_per_s": shared.resources.bandwidth_bytes_per_s,
                "memory_bytes": shared.resources.memory_bytes,
            }
            for shared in of_type[:1]  # those of all are the server's
        ]
        write(f"server-{server.name}.toml", f"What models share on {server.name}", "server", resources)
    return files


def _times(one: EstimateMade) -> dict[str, Any]:
    times = one.estimate.times
    assert times is not None
    return {
        "model": one.case.model.name,
        "server_type": one.case.server.name,
        "workers": times.workers,
        "estimated": True,
        **times.service.to_dict(),
    }


def _servers(given: Sequence[ServerGiven]) -> list[ServerSpec]:
    servers: dict[str, tuple[str, ServerSpec]] = {}
    for each in dict.fromkeys(given):
        server = each if isinstance(each, ServerSpec) else server_named(str(each))
        if server.name in servers:
            raise PlanFileError(
                f"{server.name if each is server else each}: server type {server.name} is given twice, before as"
                f" {servers[server.name][0]}"
            )
        servers[server.name] = server.name if each is server else str(each), server
    return [server for _, server in servers.values()]


def _sla(model: ModelSpec, sla_ms: float | None, percentile: float | None) -> SlaTarget:
    sla = model.sla
    if sla_ms is not None:
        sla = replace(sla, latency_ms=sla_ms)
    return sla if percentile is None else replace(sla, percentile=percentile)


def _reuse(form: str) -> ReuseProfile | None:
    skew = check_form("keys", forms.key_skew, form)
    if isinstance(skew, ReuseKeys):
        return skew.profile
    if isinstance(skew, UniformKeys):
        return None
    raise ArgumentError("keys", f"{form!r}: must be uniform or reuse[:FILE[:NAME]]")
