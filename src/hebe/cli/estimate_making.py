"""What `hebe estimate` works out, and the files that `hebe plan` and `hebe simulate` read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
import typer
from rich.progress import Progress

from hebe.cli.options import parse_form
from hebe.cli.plan_files import PlanFileError
from hebe.cli.server_spec_file import server_named
from hebe.report.whole_file import write_whole
from hebe.simulation.model_work import model_work
from hebe.simulation.server_estimate import Estimate, EstimateCase, Strategy, estimate
from hebe.spec import ModelSpec, ServerSpec, SlaTarget, SpecError
from hebe.studies.sweep import sweep
from hebe.workload import forms
from hebe.workload.key_skew import ReuseKeys, UniformKeys
from hebe.workload.reuse_profile import ReuseProfile

_HEAD = "# Written by hebe estimate: estimated from data sheets, not measured (docs/analytic-servers.md).\n\n"


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """The options of `hebe estimate`."""

    models: tuple[str, ...]
    servers: tuple[str, ...]
    size: str | None
    scale: float
    repository: Path | None
    sla_ms: float | None
    percentile: float | None
    sizes: str
    keys: str
    strategy: Strategy
    cache_ways: int


@dataclass(frozen=True, slots=True)
class EstimateMade:
    """One pair: what was asked, and what came out."""

    case: EstimateCase
    estimate: Estimate

    @property
    def efficiency(self) -> Any:
        """The efficiency tuple."""
        return self.estimate.efficiency


def make_estimates(request: EstimateRequest, progress: Progress) -> list[EstimateMade]:
    """An estimate of every model on every server type, models first, on all cores.

    Everything is checked before anything is computed. Raises `PlanFileError`, `PlanningError`, `WorkloadError`, and
    `typer.BadParameter` for a model that the catalog has not.
    """
    servers = _servers(request.servers)
    models = {model.name: model for model in (_model(name, request) for name in request.models)}
    for model in models.values():
        model_work(model)  # an architecture that is not known is told before the search
    sizes, reuse = parse_form("--sizes", forms.query_sizes, request.sizes), _reuse(request.keys)
    cases = [
        EstimateCase(server, model, _sla(model, request), sizes, reuse, request.strategy, request.cache_ways)
        for model in models.values()
        for server in servers
    ]
    small = sum(case.server.cores for case in cases) <= _FEW_CORES
    estimates = sweep("models on server types", estimate, cases, progress, in_process=small)
    return [EstimateMade(case, one) for case, one in zip(cases, estimates, strict=True)]


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


def _servers(named: Sequence[str]) -> list[ServerSpec]:
    servers: dict[str, tuple[str, ServerSpec]] = {}
    for text in dict.fromkeys(named):
        server = server_named(text)
        if server.name in servers:
            raise PlanFileError(
                f"{text}: server type {server.name} is given twice, before as {servers[server.name][0]}"
            )
        servers[server.name] = text, server
    return [server for _, server in servers.values()]


def _model(name: str, request: EstimateRequest) -> ModelSpec:
    if request.repository is not None:
        from hebe.models.repository import ModelRepository

        return ModelRepository(request.repository).open(name, None).spec
    from hebe.models import catalog

    try:
        return catalog.entry(name, request.size, request.scale)
    except SpecError as fault:
        raise typer.BadParameter(str(fault), param_hint="MODEL") from None


def _sla(model: ModelSpec, request: EstimateRequest) -> SlaTarget:
    sla = model.sla
    if request.sla_ms is not None:
        sla = replace(sla, latency_ms=request.sla_ms)
    return sla if request.percentile is None else replace(sla, percentile=request.percentile)


def _reuse(form: str) -> ReuseProfile | None:
    skew = parse_form("--keys", forms.key_skew, form)
    if isinstance(skew, ReuseKeys):
        return skew.profile
    if isinstance(skew, UniformKeys):
        return None
    raise typer.BadParameter(f"{form!r}: must be uniform or reuse[:FILE[:NAME]]", param_hint="--keys")
