"""What `hebe plan pool` shows and writes: a document, and the plan file's content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe._version import __version__
from hebe.capacity.files.pool_plan import PoolPlanFile, pool_words
from hebe.capacity.pool_planner import PoolPlanMade, Proposal
from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, FluidBound
from hebe.planning.pool.pool import PoolPlan
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
from hebe.report.plots.pool import cost_frontier, shares_by_size, utilisation_bars
from hebe.report.tables import format_number
from hebe.simulation.fleet.capacity import Capacity

_PROPOSALS = {
    "one type": "the best type alone, first come, first served",
    "Kairos": "Kairos' pick, its matching",
    "fluid, whole": "best fluid bound without splitting, matching",
    "fluid, splitting": "best fluid bound with splitting, splitting",
    "chosen": "chosen",
}
_SIZE_BINS = 60


def plan_file(made: PoolPlanMade) -> PoolPlanFile:
    """The plan as it is written."""
    chosen, request, problem = made.chosen, made.request, made.problem
    return PoolPlanFile(
        made.times.model,
        request.sla,
        request.sizes,
        request.budget_per_hour,
        dict(zip(problem.types, chosen.counts, strict=True)),
        dict(zip(problem.types, problem.price_per_hour.tolist(), strict=True)),
        chosen.policy,
        made.times.files,
        request.prices,
        predicted(made, chosen),
        {"proposal": [_proposal_content(made, one) for name, one in made.proposals.items() if name != "chosen"]},
        made.times.estimated.intersection(problem.types),
        made.partitions,
    )


def predicted(made: PoolPlanMade, one: Proposal) -> dict[str, Any]:
    """The figures that the plan predicts of a proposal, without those that were not simulated."""
    figures: dict[str, Any] = {"price_per_hour": one.cost_per_hour, "bound_qps": one.bound.bound_qps}
    if one.measured is not None:
        capacity = one.measured.capacity
        figures["qps"] = capacity.qps
        if capacity.low is not None and capacity.high is not None:
            figures |= {"qps_low": capacity.low, "qps_high": capacity.high}
        figures |= {"seeds": made.request.seeds, "queries_per_run": made.queries}
        used = zip(made.problem.types, one.counts, one.measured.utilisation, strict=False)
        figures["utilisation"] = {name: share for name, count, share in used if count}
    return figures


def _proposal_content(made: PoolPlanMade, one: Proposal) -> dict[str, Any]:
    counts = {name: count for name, count in zip(made.problem.types, one.counts, strict=True) if count}
    return {"name": one.name, "policy": str(one.policy.kind), "counts": counts, **predicted(made, one)}


def _data(made: PoolPlanMade) -> dict[str, Any]:
    """All results as plain data, for `--json`."""
    return {
        "model": made.times.model,
        "types": list(made.problem.types),
        "base_type": made.problem.types[0] if made.problem.reach[0] == made.problem.largest else None,
        "sla_ms": made.request.sla.latency_ms,
        "percentile": made.request.sla.percentile,
        "budget_per_hour": made.request.budget_per_hour,
        "pools": made.kairos.pools if made.kairos is not None else None,
        "ranked": [pool.to_dict() for pool in made.kairos.ranked] if made.kairos is not None else [],
        "without_kairos": made.without_kairos or None,
        "remarks": made.remarks,
        "policy": made.chosen.policy.to_dict() | {"partitions": made.partitions},
        "proposals": {name: _proposal_content(made, one) for name, one in made.proposals.items()},
    }


def document(made: PoolPlanMade) -> Document:
    """The plan: key numbers, frontier, proposals, shares of sizes, ranking, and what is chosen."""
    request, chosen = made.request, made.chosen
    blocks: list[Block] = [
        KeyNumbers(_key_numbers(made)),
        Heading("What a budget buys"),
        *_proposals(made),
        Heading("Who serves what"),
        Picture(
            lambda: shares_by_size(*_shares(made, chosen.bound)),
            "Of the items in queries of each size, the share that each server type serves by the fluid bound's plan for"
            " the chosen pool. Empty: no query has that size.",
        ),
    ]
    if chosen.measured is not None and (utilisation := chosen.measured.utilisation):
        used = list(zip(made.problem.types, chosen.counts, utilisation, strict=True))
        blocks.append(
            Picture(
                lambda: utilisation_bars({f"{count} x {name}": share for name, count, share in used if count}),
                "The share of their time that the chosen pool's servers work, at the predicted throughput.",
            )
        )
    if made.kairos is not None:
        blocks += [Heading("Kairos' ranking"), _ranking(made, made.kairos)]
    return Document(
        "Pool plan",
        [*blocks, *notes([_verdict(made), *_notes(made)])],
        f"{made.times.model} on {len(made.problem.types)} server types, at most"
        f" {format_number(request.budget_per_hour)} per hour, p{request.sla.percentile:g} within"
        f" {request.sla.latency_ms:g} ms, query sizes {request.sizes}.",
        f"hebe {__version__}; service times from {made.times.named_files}, prices from {request.prices}",
        _data(made),
    )


def _proposals(made: PoolPlanMade) -> list[Block]:
    """The frontier of budgets and bounds, and the pools that were proposed."""
    points = {
        _PROPOSALS[name]: (one.cost_per_hour, one.measured.capacity.qps)
        for name, one in made.proposals.items()
        if one.measured is not None and name in ("one type", "Kairos", "chosen")
    }
    marks = f" {' and '.join(sorted(made.sampled))}: known at the marks only, which straight lines join." * bool(
        made.sampled
    )
    rows: list[list[Cell]] = [
        [
            _PROPOSALS[name] if name != "chosen" else f"chosen: {one.policy.kind}",
            _pool(made, one.counts),
            one.cost_per_hour,
            one.bound.bound_qps,
            _interval(one),
            "" if one.share_of_bound is None else f"{one.share_of_bound:.1%}",
        ]
        for name, one in made.proposals.items()
    ]
    bound = (
        "The fluid bound holds for policies that keep every query in time, whole or, where the policy splits, in up to"
        f" {DEFAULT_PARTS} parts: equal ones on one server type, or such that finish together on two. The SLA lets some"
        " queries be late, so simulation may come out slightly above it."
    )
    return [
        Picture(
            lambda: cost_frontier(made.frontier, points, made.request.budget_per_hour, sampled=made.sampled),
            f"Lines: the best bound of all pools within each budget.{marks}"
            + (" Points: what pools reached in simulation, all runs with the same queries." if points else ""),
        ),
        Table(
            "",
            ["proposal", "pool", "price/h", "fluid bound (qps)", "simulated (qps)", "of the bound"],
            rows,
            caption=bound if points else "",
        ),
    ]


def _ranking(made: PoolPlanMade, kairos: PoolPlan) -> Table:
    """The head of Kairos' ranking; the pick is marked."""
    rows: list[list[Cell]] = [
        [
            f"{rank}{' *' if pool.counts == kairos.pick.counts else ''}",
            _pool(made, pool.counts),
            pool.cost_per_hour,
            pool.bound_qps,
        ]
        for rank, pool in enumerate(kairos.ranked, 1)
    ]
    return Table(
        "",
        ["rank", "pool", "price/h", "Kairos' bound (qps)"],
        rows,
        caption="The pools with the highest bounds by Kairos' formula; * is its pick.",
    )


def _pool(made: PoolPlanMade, counts: tuple[int, ...]) -> str:
    return pool_words(made.problem.types, counts)


def _interval(one: Proposal) -> str:
    if one.measured is None:
        return ""
    capacity = one.measured.capacity
    interval = _range(capacity)
    return f"{format_number(capacity.qps)} ({interval})" if interval else format_number(capacity.qps)


def _range(capacity: Capacity) -> str:
    """The 95% interval, which a single seed has not."""
    if capacity.low is None or capacity.high is None:
        return ""
    return f"{format_number(capacity.low)} to {format_number(capacity.high)}"


def _verdict(made: PoolPlanMade) -> Text:
    chosen, sla = made.chosen, made.request.sla
    price = format_number(chosen.cost_per_hour)
    if chosen.measured is None:
        serves = f"not simulated; fluid bound {format_number(chosen.bound.bound_qps)} queries/s"
    else:
        serves = f"serves {_interval(chosen)} queries/s in simulation"
    return Text(
        f"{_pool(made, chosen.counts)} with {chosen.policy.kind} for {price} per hour {serves},"
        f" p{sla.percentile:g} within {sla.latency_ms:g} ms."
    )


def _notes(made: PoolPlanMade) -> list[Text]:
    told = []
    if made.kairos is not None:
        told.append(Text(f"* Kairos' pick, of {made.kairos.pools:,} pools within the budget."))
    else:
        told.append(Text(made.without_kairos, Tone.WARNING))
    if made.unpriced:
        told.append(Text(f"Measured but not priced, so not on offer: {', '.join(made.unpriced)}.", Tone.WARNING))
    told += [Text(remark, Tone.WARNING) for remark in made.remarks]
    if any(one.measured is not None for one in made.proposals.values()):
        told.append(
            Text(f"Simulated: {made.request.seeds} runs of {made.queries:,} queries each; 95% intervals in brackets.")
        )
    return told


def _key_numbers(made: PoolPlanMade) -> list[KeyNumber]:
    chosen = made.chosen
    shown = [KeyNumber("price", format_number(chosen.cost_per_hour), "per hour", _pool(made, chosen.counts))]
    if chosen.measured is not None:
        capacity = chosen.measured.capacity
        interval = f"95%: {_range(capacity)}" if _range(capacity) else ""
        shown.append(KeyNumber("predicted throughput", format_number(capacity.qps), "queries/s", interval))
        for name, words in (("one type", "over the best type alone"), ("Kairos", "over Kairos' pick")):
            other = made.proposals.get(name)
            if other is not None and other.measured is not None and other.measured.capacity.qps:
                ratio = capacity.qps / other.measured.capacity.qps
                shown.append(KeyNumber(words, f"{ratio:.2f}", "times", _pool(made, other.counts)))
    else:
        shown.append(KeyNumber("fluid bound", format_number(chosen.bound.bound_qps), "queries/s", "not simulated"))
    return shown


def _shares(made: PoolPlanMade, bound: FluidBound) -> tuple[list[int], Mapping[str, npt.NDArray[np.float64]]]:
    """Of the items of each size (in bins), the share by server type; nan in bins without queries."""
    weights = made.problem.size_weights
    largest = made.problem.largest
    items = np.zeros((len(made.problem.types), largest))
    columns = np.arange(largest)
    options = bound.options
    for share, chosen in zip(bound.plan_shares.tolist(), bound.plan_options, strict=True):
        served = chosen >= 0
        at, option = columns[served], chosen[served]
        for kinds, part_items in ((options.first, options.first_items), (options.second, options.second_items)):
            parts = options.parts[option, kinds[option]]
            np.add.at(items, (kinds[option], at), share * weights[at] * parts * part_items[option, at])
    edges = np.unique(np.linspace(0, largest, min(_SIZE_BINS, largest) + 1).astype(int))
    binned = np.add.reduceat(items, edges[:-1], axis=1)
    total = binned.sum(axis=0)
    shares = np.divide(binned, total, out=np.full_like(binned, np.nan), where=total > 0)
    present = {name: shares[at] for at, name in enumerate(made.problem.types) if bound.counts[at]}
    return (edges + 1).tolist(), present
