"""The plan file of models that share servers: written by `hebe plan colocate`, and read to simulate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.entries import Entry
from hebe.capacity.files.plan_content import file_made_from, read_plan
from hebe.planning.colocation.colocation import ServerGroup, Tenant
from hebe.profile import ProfileError, ScalabilityProfile

PLAN_KIND = "colocation"
PLAN_VERSION = 2
"""Plans of version 1 do not say how many cores a worker has: they took all workers for those of one core."""

_HEAD = (
    "kind", "version", "written_by", "policy", "over_provision_rate", "made_from", "demand_qps", "planned_qps",
    "predicted", "server", "group", "scalability",
)  # fmt: skip
_SERVER = ("server_type", "cores", "cache_ways", "bandwidth_bytes_per_s", "memory_bytes")
_GROUP = ("servers", "utilization", "tenant")
_TENANT = ("model", "workers", "cores_per_worker", "cache_ways", "qps")


@dataclass(frozen=True, slots=True)
class ColocationPlanFile:
    """What is on how many servers, for which demand (queries/s by model, without over-provision).

    `scalability` is what each model was measured to do alone. `server_type` and `profiles`, the file that the plan was
    made from, are None where the plan does not tell them.
    """

    demand_qps: Mapping[str, float]
    groups: tuple[ServerGroup, ...]
    scalability: Mapping[str, ScalabilityProfile]
    server_type: str | None
    profiles: Path | None

    @property
    def servers(self) -> int:
        """All servers."""
        return sum(group.servers for group in self.groups)


def workers_words(tenant: Tenant) -> str:
    """`12`, or `3 x 4` where each worker has 4 cores."""
    each = tenant.cores_per_worker
    return f"{tenant.workers}" + (f" x {each}" if each > 1 else "")


def read_colocation_plan(path: Path) -> ColocationPlanFile:
    """The plan in a file; raises `PlanFileError` naming the field that is missing or wrong."""
    content = read_plan(path, PLAN_KIND, PLAN_VERSION)
    Entry(str(path), content, "").check_known(_HEAD)
    demand = Entry(f"{path}: demand_qps", _table(path, content, "demand_qps"), "")
    demand_qps = {model: demand.number(model) for model in demand.fields}
    if not any(demand_qps.values()):
        raise PlanFileError(f"{path}: demand_qps: is 0 for every model: there is nothing to simulate")
    server = Entry(f"{path}: server", _table(path, content, "server"), "")
    server.check_known(_SERVER)
    cores, ways = _count(server, "cores"), _count(server, "cache_ways")
    groups = tuple(_group(entry, cores, ways) for entry in _entries(str(path), content, "group"))
    scalability: dict[str, ScalabilityProfile] = {}
    for entry in _entries(str(path), content, "scalability"):
        try:
            profile = ScalabilityProfile.from_dict(entry.fields)
        except ProfileError as fault:
            raise PlanFileError(f"{entry.where}: {fault}") from None
        if profile.model in scalability:
            raise PlanFileError(f"{entry.where}: model {profile.model} is given twice")
        scalability[profile.model] = profile
    plan = ColocationPlanFile(
        demand_qps,
        groups,
        scalability,
        server.text("server_type") if "server_type" in server.fields else None,
        file_made_from(path, content, "profiles"),
    )
    _check_models(path, plan)
    return plan


def _group(entry: Entry, cores: int, ways: int) -> ServerGroup:
    entry.check_known(_GROUP)
    tenants: list[Tenant] = []
    for each in _entries(entry.where, entry.fields, "tenant"):
        each.check_known(_TENANT)
        model = each.text("model")
        if any(tenant.model == model for tenant in tenants):
            raise PlanFileError(f"{each.where}: model {model} is on this server already")
        counts = (_count(each, name) for name in ("workers", "cache_ways", "cores_per_worker"))
        workers, of_cache, cores_per_worker = counts
        tenants.append(Tenant(model, workers, of_cache, each.number("qps"), cores_per_worker))
    for field, used, most, has in (
        ("workers x cores_per_worker", sum(tenant.cores for tenant in tenants), cores, "cores"),
        ("cache_ways", sum(tenant.cache_ways for tenant in tenants), ways, "cache_ways"),
    ):
        if used > most:
            raise PlanFileError(f"{entry.where}: {field} add up to {used}: the server has {most} {has}")
    return ServerGroup(tuple(tenants), _count(entry, "servers"), entry.number("utilization", 0.0))


def _check_models(path: Path, plan: ColocationPlanFile) -> None:
    """Every model in demand is served somewhere, and what it does alone is known, of the same workers."""
    served = {tenant.model for group in plan.groups for tenant in group.tenants if tenant.qps > 0}
    for model, qps in plan.demand_qps.items():
        if qps and model not in served:
            raise PlanFileError(f"{path}: demand_qps of {model} is {qps:g}, but no group has it with qps above 0")
        if qps and model not in plan.scalability:
            raise PlanFileError(f"{path}: scalability of {model} is missing: what it does alone is needed")
    for number, group in enumerate(plan.groups, 1):
        for tenant in group.tenants:
            measured = plan.scalability.get(tenant.model)
            if measured is not None and measured.cores_per_worker != tenant.cores_per_worker:
                raise PlanFileError(
                    f"{path}: group {number}: cores_per_worker of {tenant.model} is {tenant.cores_per_worker}: its"
                    f" scalability is of workers with {measured.cores_per_worker}"
                )


def _table(path: Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = content.get(name)
    if not isinstance(part, dict):
        raise PlanFileError(f"{path}: [{name}] is missing")
    return part


def _entries(where: str, content: Mapping[str, Any], name: str) -> list[Entry]:
    """The tables of the array `name`, at least one."""
    listed = content.get(name)
    if not isinstance(listed, list) or not listed or not all(isinstance(fields, dict) for fields in listed):
        raise PlanFileError(f"{where}: [[{name}]] is missing: must have at least one")
    return [Entry(place := f"{where}: {name} {number}", fields, place) for number, fields in enumerate(listed, 1)]


def _count(entry: Entry, field: str) -> int:
    """A whole number of at least 1."""
    value = entry.whole(field)
    if value < 1:
        raise PlanFileError(f"{entry.where}: {field} is {value}: must be at least 1")
    return value
