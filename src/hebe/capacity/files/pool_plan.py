"""The plan file of a pool: written by `hebe plan pool`, and read to simulate it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hebe._version import __version__
from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.entries import Entry, parse_number
from hebe.capacity.files.plan_content import named_in_plan, relative_to_plan
from hebe.capacity.files.reading import reading
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.spec import SlaTarget, SpecError
from hebe.workload.forms import query_sizes
from hebe.workload.text_errors import WorkloadError

PLAN_KIND = "pool"
PLAN_VERSION = 1

_HEAD = (
    "kind", "version", "written_by", "model", "query_sizes", "budget_per_hour", "made_from", "sla", "policy",
    "predicted", "proposal", "server",
)  # fmt: skip
_MADE_FROM = ("service_times", "prices")
_SLA = ("latency_ms", "percentile")
_POLICY = ("name", "partitions", "threshold_items", "prices_qps")
_PREDICTED = (
    "price_per_hour", "bound_qps", "qps", "qps_low", "qps_high", "seeds", "queries_per_run", "utilisation",
)  # fmt: skip
_PROPOSAL = ("name", "policy", "counts", *_PREDICTED)
_SERVER = ("server_type", "count", "price_per_hour", "estimated")
"""The fields that a plan and its tables may have."""


@dataclass(frozen=True, slots=True)
class PoolPlanFile:
    """What a fleet is made of: counts by server type, base first, and the policy; with what it was planned for.

    `predicted` are figures as plain data, `more` what else the planner says; neither is needed to simulate it.
    `estimated` are the server types whose service times were estimates.
    `partitions`: into how many fleets that decide on their own the pool is dealt; None, as in older files: as suits it.
    """

    model: str
    sla: SlaTarget
    sizes: str
    budget_per_hour: float
    counts: Mapping[str, int]
    prices: Mapping[str, float]
    policy: PolicyChoice
    service_times: tuple[Path, ...]
    price_file: Path
    predicted: Mapping[str, Any]
    more: Mapping[str, Any]
    estimated: frozenset[str] = frozenset()
    partitions: int | None = None

    def to_dict(self, path: Path) -> dict[str, Any]:
        """The content of the file at `path`; files are named relative to it."""
        return {
            "kind": PLAN_KIND,
            "version": PLAN_VERSION,
            "written_by": f"hebe {__version__}",
            "model": self.model,
            "query_sizes": self.sizes,
            "budget_per_hour": self.budget_per_hour,
            "made_from": {
                "service_times": [relative_to_plan(file, path) for file in self.service_times],
                "prices": relative_to_plan(self.price_file, path),
            },
            "sla": {"latency_ms": self.sla.latency_ms, "percentile": self.sla.percentile},
            "policy": self.policy.to_dict() | ({} if self.partitions is None else {"partitions": self.partitions}),
            "predicted": dict(self.predicted),
            **self.more,
            "server": [
                {"server_type": name, "count": count, "price_per_hour": self.prices[name]}
                | ({"estimated": True} if name in self.estimated else {})
                for name, count in self.counts.items()
            ],
        }


def read_pool_plan(path: Path) -> PoolPlanFile:
    """The plan in a file; raises `PlanFileError` naming the field that is missing, unknown or wrong."""
    with reading(path):
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    if content.get("kind") != PLAN_KIND or content.get("version") != PLAN_VERSION:
        raise PlanFileError(
            f"{path}: kind {content.get('kind')!r}, version {content.get('version')!r}: must be the plan of a pool,"
            f" kind {PLAN_KIND!r}, version {PLAN_VERSION}, as hebe plan pool writes it"
        )
    head = Entry(str(path), content, str(path))
    head.check_known(_HEAD)
    made_from, sla, policy, predicted = (
        _part(path, content, name, known)
        for name, known in (("made_from", _MADE_FROM), ("sla", _SLA), ("policy", _POLICY), ("predicted", _PREDICTED))
    )
    for proposal in _listed(path, content, "proposal"):
        proposal.check_known(_PROPOSAL)
    try:
        target = SlaTarget(sla.number("latency_ms"), sla.number("percentile"))
    except SpecError as fault:
        raise PlanFileError(f"{path}: sla: {fault}") from None
    try:
        query_sizes(head.text("query_sizes"))
    except WorkloadError as fault:
        raise PlanFileError(f"{path}: query_sizes: {fault}") from None
    counts, prices, estimated = _servers(path, content)
    files = made_from.fields.get("service_times")
    if not isinstance(files, list) or not files or not all(isinstance(name, str) for name in files):
        raise PlanFileError(f"{path}: made_from: service_times is {files!r}: must be a list of files")
    return PoolPlanFile(
        head.text("model"),
        target,
        head.text("query_sizes"),
        head.number("budget_per_hour"),
        counts,
        prices,
        _policy(path, policy, counts),
        tuple(named_in_plan(file, path) for file in files),
        named_in_plan(made_from.text("prices"), path),
        predicted.fields,
        {},
        estimated,
        _partitions(policy),
    )


def _part(path: Path, content: Mapping[str, Any], name: str, known: Sequence[str]) -> Entry:
    """The table `name`, which has no fields but those `known`."""
    part = content.get(name)
    if not isinstance(part, dict):
        raise PlanFileError(f"{path}: [{name}] is missing")
    entry = Entry(f"{path}: {name}", part, f"{path}: {name}")
    entry.check_known(known)
    return entry


def _listed(path: Path, content: Mapping[str, Any], name: str) -> list[Entry]:
    """The tables of the array `name`, none where there is no such array."""
    listed = content.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(fields, dict) for fields in listed):
        raise PlanFileError(f"{path}: {name}: must hold tables only, [[{name}]]")
    return [Entry(where := f"{path}: {name} {number}", fields, where) for number, fields in enumerate(listed, 1)]


def _servers(path: Path, content: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, float], frozenset[str]]:
    """Count and price of each server type, and the types whose service times were estimates."""
    counts: dict[str, int] = {}
    prices: dict[str, float] = {}
    estimated: set[str] = set()
    servers = _listed(path, content, "server")
    if not servers:
        raise PlanFileError(f"{path}: [[server]] is missing: must give the count of each server type")
    for entry in servers:
        entry.check_known(_SERVER)
        name = entry.text("server_type")
        if name in counts:
            raise PlanFileError(f"{entry.where}: server_type {name} is given twice")
        counts[name], prices[name] = entry.whole("count"), entry.number("price_per_hour")
        if entry.flag("estimated"):
            estimated.add(name)
    return counts, prices, frozenset(estimated)


def _policy(path: Path, policy: Entry, counts: Mapping[str, int]) -> PolicyChoice:
    """The policy, with those of its parameters that it cannot do without."""
    name = policy.text("name")
    if name not in list(PolicyKind):
        raise PlanFileError(f"{path}: policy {name!r}: must be one of {', '.join(PolicyKind)}")
    kind = PolicyKind(name)
    if kind is PolicyKind.THRESHOLD:
        return PolicyChoice(kind, threshold_items=policy.whole("threshold_items"))
    if kind is PolicyKind.SPLITTING:
        return PolicyChoice(kind, prices_qps=_prices_qps(path, policy.fields.get("prices_qps"), counts))
    return PolicyChoice(kind)


def _partitions(policy: Entry) -> int | None:
    if "partitions" not in policy.fields:
        return None
    partitions = policy.whole("partitions")
    if partitions < 1:
        raise PlanFileError(f"{policy.where}: partitions is {partitions}: must be at least 1")
    return partitions


def _prices_qps(path: Path, worth: object, counts: Mapping[str, int]) -> dict[str, float]:
    """What a server's time of each type is worth."""
    if not isinstance(worth, dict):
        raise PlanFileError(f"{path}: policy: prices_qps is {worth!r}: must give a price for each server type")
    for kind in counts:
        if kind not in worth:
            raise PlanFileError(f"{path}: policy: prices_qps of {kind} is missing")
    prices_qps = {kind: parse_number(worth[kind], f"{path}: policy: prices_qps of {kind}") for kind in counts}
    if not any(prices_qps.values()):
        raise PlanFileError(f"{path}: policy: prices_qps: at least one must be more than 0")
    return prices_qps


def pool_words(types: Sequence[str], counts: Sequence[int]) -> str:
    """A pool as people read it: `gpu=1, cpu=13`, without the types that it lacks."""
    return ", ".join(f"{name}={count}" for name, count in zip(types, counts, strict=True) if count)
