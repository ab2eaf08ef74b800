"""What `hebe profile` shows at the end: the path of the search, the winner, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from hebe.cli.terminal.host_watch import denied_words
from hebe.planning.server_split.search import Configuration, Reached, SearchResult
from hebe.profile import LatencyProfile, ScalabilityProfile
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.plain_data import disturbance_to_dict
from hebe.profiling.files.server_profile import ServerProfile, lane_to_scale
from hebe.profiling.search import ProfileMade, busy_words, hot_words, speed_words, was_busy_words
from hebe.report.configuration_words import configuration_words
from hebe.report.document import Block, Cell, Document, Picture, Table, Text, Tone
from hebe.report.tables import Column, format_estimate, format_number
from hebe.server_configuration import Placement, to_dict
from hebe.spec import SlaTarget

_SHOWN_OF_A_SWEEP = 10
"""Rows of a search without a path: its best."""
_COLUMNS = (
    "placement",
    "workers x cores",
    "dense",
    "batch",
    "fused",
    "queries/s",
    Column("W", right=True, spare=1),
)


def document(made: ProfileMade) -> Document:
    """The search over its surface and its path; then the winner, or what came closest."""
    blocks: list[Block] = [Picture(partial(profile_picture, made)), _path(made) if made.search.steps else _sweep(made)]
    if made.profile is None:
        blocks += [Text(out_of_reach(made), Tone.BAD), *_what_to_know(made)]
    else:
        blocks += [_winner(made, made.profile), *_what_to_know(made), *_measured(made, made.profile)]
    return Document(f"Profile of {made.subject.model}", blocks, data=_data(made))


def _measured(made: ProfileMade, profile: ServerProfile) -> Iterator[Table]:
    """What was measured of the winner beside its throughput."""
    for stage, latency in profile.latency.items():
        yield _latency(f"Service time of a batch on one worker, {stage}", latency)
    for stage, latency in profile.busy_latency.items():
        yield _latency(f"The same while all workers are at it, {stage}: plans go by these times", latency)
    if profile.op_use is not None:
        yield _op_use(profile.op_use)
    if (scalability := profile.scalability) is not None:
        yield _by_workers(f"{_scaled(profile)}, with so many workers", scalability, made.bandwidth_source)
        if len(scalability.cache_ways) > 1:
            yield _by_cache_ways(f"{_scaled(profile)}, with so many ways of the last-level cache", scalability)


def _what_to_know(made: ProfileMade) -> Iterator[Text]:
    """What disturbed the measurements, what the figures leave out, which meters cannot be read."""
    disturbance = made.disturbance
    denied = denied_words(disturbance.denied, "profile anew with --fresh")
    busy = busy_words(made.busy) or was_busy_words(disturbance.busy)
    warnings = busy, denied, speed_words(disturbance.slowest_share)
    for warning in filter(None, (*warnings, *_remarks(made))):
        yield Text(warning, Tone.WARNING)
    if (share := made.hot_share) is not None:
        yield Text(hot_words(share), Tone.QUIET if share.is_hotter else Tone.WARNING)
    for unreadable in made.power_unreadable:
        yield Text(unreadable[0].upper() + unreadable[1:], Tone.QUIET)


def _remarks(made: ProfileMade) -> tuple[str, ...]:
    """Those of the throughput; where the best reached nothing at times, that, and what reached nothing of the
    scalability profile; and where watts that were not read decided what keeps the power budget, that."""
    remarks, budget = list(made.remarks), made.limits.power_budget_watts
    if nothing := made.search.reached.runs_of_nothing:
        remarks.append(
            f"The best reached nothing in {nothing} of its measurements: the machine stalled, or the SLA target is a "
            "close thing there. Profile anew with --fresh when the machine is steady."
        )
    if made.profile is not None and (reached_nothing := _reached_nothing(made.profile.scalability)):
        remarks.append(
            f"In the scalability profile {' and '.join(reached_nothing)} reached nothing: the SLA target is out of "
            "reach there, or the machine stalled. If it stalled, profile anew with --fresh when it is steady."
        )
    estimated = any(reached.power_estimated for reached in made.search.tried.values() if reached.qps > 0)
    if math.isfinite(budget) and estimated:
        remarks.append(
            f"What keeps the power budget of {format_number(budget)} W was decided by power that is estimated, not "
            "read: it is as right as the idle and peak power that it is from (--idle-power-w, --peak-power-w)"
        )
    return tuple(remarks)


def _reached_nothing(scalability: ScalabilityProfile | None) -> list[str]:
    """`1, 2 workers` and `2 ways of the cache`, as far as these reached nothing."""
    if scalability is None:
        return []
    workers = [str(count) for count, qps in zip(scalability.workers, scalability.qps, strict=True) if not qps]
    told = [f"{', '.join(workers)} worker{'' if workers == ['1'] else 's'}"] if workers else []
    by_ways = zip(scalability.cache_ways, scalability.qps_by_cache_ways[-1], strict=False)
    ways = [str(count) for count, qps in by_ways if not qps and scalability.qps[-1]]  # else it is not the cache
    return [*told, f"{', '.join(ways)} way{'' if ways == ['1'] else 's'} of the cache"] if ways else told


def out_of_reach(made: ProfileMade) -> str:
    """That no configuration keeps the limits, and which one came closest to them."""
    reached, closest = made.search.reached, configuration_words(made.search.closest)
    sla = sla_words(made.subject.sla)
    if reached.qps > 0:
        return (
            f"No configuration keeps {sla} with {format_number(made.limits.power_budget_watts)} W. The closest one, "
            f"{closest}, reaches {format_number(reached.qps)} queries/s at {format_number(reached.power_watts)} W"
            f"{' (estimated)' if reached.power_estimated else ''}."
        )
    told = f"takes {format_number(reached.tail_latency_ms)} ms for a large query alone"
    if not math.isfinite(reached.tail_latency_ms):
        told = "answers too little for its latency to be told"
    if reached.tail_latency_ms <= made.subject.sla.latency_ms:  # it is the rate that is too high, not the latency
        lower = "--quick tries no lower rate" if made.quick else "no lower rate is tried"
        sla += f" at {format_number(made.lowest_qps)} queries/s or more, and {lower}"
    return f"No configuration keeps {sla}. The best one reached, {closest}, {told}."


def sla_words(sla: SlaTarget) -> str:
    """`p95 within 20 ms`."""
    return f"p{sla.percentile:g} within {format_number(sla.latency_ms)} ms"


def profile_picture(made: ProfileMade) -> str:
    """The search over its surface, one `<svg>`."""
    from hebe.report.plots.search_surface import search_surface

    search = made.search
    tried = [
        (configuration, reached.qps if made.limits.keeps(reached) else 0.0)
        for configuration, reached in search.tried.items()
    ]
    moves = [(step.at, step.taken) for step in search.steps if step.taken is not None]
    title = f"{made.subject.model}, {sla_words(made.subject.sla)}: {search.evaluations} evaluations"
    return search_surface(tried, moves, search.best, title)


def _data(made: ProfileMade) -> dict[str, Any]:
    """Plain data for `--json`."""
    search = made.search
    return {
        "found": made.profile is not None,
        "subject": made.subject.to_dict(),
        "strategy": made.strategy,
        "space": made.space.size(),
        "evaluations": search.evaluations,
        "answered_by_journal": made.answered,
        **disturbance_to_dict(made.disturbance),
        "remarks": list(_remarks(made)),
        "closest": {"configuration": to_dict(search.closest), **_reached(search, search.closest)},
        "efficiency": None if made.profile is None else made.profile.efficiency.to_dict(),
        "power_budget_watts": None if math.isinf(made.limits.power_budget_watts) else made.limits.power_budget_watts,
        "power_source": None if made.profile is None else made.profile.power_source,
        "power_unreadable": list(made.power_unreadable),
        "bandwidth_source": made.bandwidth_source,
        "hot_share": None if made.hot_share is None else asdict(made.hot_share),
        "op_use": None if made.profile is None or made.profile.op_use is None else made.profile.op_use.to_dict(),
        "path": [
            {"configuration": to_dict(step.taken), "candidates": len(step.candidates), **_reached(search, step.taken)}
            for step in search.steps
            if step.taken is not None
        ],
        "tried": [{"configuration": to_dict(each), **_reached(search, each)} for each in search.tried],
    }


def _reached(search: SearchResult, configuration: Configuration) -> Mapping[str, float | None]:
    return asdict(search.tried[configuration])


def _path(made: ProfileMade) -> Table:
    rows: list[list[Cell]] = []
    for step in made.search.steps:
        if step.taken is not None:
            rows.append([str(len(step.candidates)), *_cells(made.search, step.taken)])
        elif len(step.candidates) == 1:
            placement, *rest = _cells(made.search, step.candidates[0])
            rows.append([Text(cell, Tone.QUIET) for cell in ("1", f"{placement}, no better", *rest)])
        elif step.candidates:
            none = Text("none is better", Tone.QUIET)
            rows.append([str(len(step.candidates)), none, *[""] * (len(_COLUMNS) - 1)])
    return Table("The path of the search", [Column("tried", right=True, spare=2), *_COLUMNS], rows)


def _sweep(made: ProfileMade) -> Table:
    tried = made.search.tried
    ranked = sorted(tried, key=lambda configuration: -tried[configuration].qps)[:_SHOWN_OF_A_SWEEP]
    rows = [_cells(made.search, configuration) for configuration in ranked]
    return Table(f"The best {len(ranked)} of {len(tried)}", _COLUMNS, rows)


def _cells(search: SearchResult, configuration: Configuration) -> list[str]:
    """A row under `_COLUMNS`; of two lanes the second one's settings, since the first one stays as it is. Power that is
    estimated has a `~` before it."""
    reached, lane = search.tried[configuration], configuration[-1]
    beside = "beside it " if len(configuration) > 1 else ""
    cells = [f"{beside}{lane.placement}"]
    cells += [f"{lane.workers} x {lane.cores_per_worker}", str(lane.dense_workers or ""), f"{lane.batch_size:,}"]
    cells.append(f"{lane.fused_items:,}" if lane.fused_items else "")
    if reached.qps > 0:
        watts = format_estimate(reached.power_watts, estimated=reached.power_estimated)
        return [*cells, format_number(reached.qps), watts]
    known = math.isfinite(reached.tail_latency_ms)
    return [*cells, f"late, {format_number(reached.tail_latency_ms)} ms" if known else "late", ""]


def _confidence(reached: Reached) -> str:
    """The bounds of its interval, where they are known, and what they leave out."""
    told = []
    if reached.low_qps is not None and reached.high_qps is not None:
        bounds = f"{format_number(reached.low_qps)} to {format_number(reached.high_qps)}"
        told.append(f"{bounds} with 95% confidence")
    if reached.runs_of_nothing:
        told.append(f"but 0 in {reached.runs_of_nothing} of its measurements")
    return f" ({', '.join(told)})" if told else ""


def _winner(made: ProfileMade, profile: ServerProfile) -> Table:
    tuple_ = profile.efficiency
    estimated = "estimated from " if tuple_.estimated else "by "
    budget = profile.power_budget_watts
    within = "" if budget is None else f"; {format_number(budget)} W at most were asked for"
    rows = {
        "best": configuration_words(profile.configuration),
        "throughput": f"{format_number(tuple_.qps)}{_confidence(made.search.reached)} queries/s with "
        f"{sla_words(made.subject.sla)}",
        "power": f"{format_number(tuple_.power_watts)} W, {estimated}{profile.power_source}{within}",
        "efficiency": f"{format_estimate(tuple_.qps / tuple_.power_watts, estimated=tuple_.estimated)} queries/s per W",
        "use of cores": "" if (share := made.search.reached.cpu_share) is None else f"{share:.0%} of their time",
        "evaluations": f"{_evaluations(made.search)}, {made.answered} answered by the journal; "
        f"there are {made.space.size():,} to try",
        "server": profile.server.name,
    }
    shown: list[list[Cell]] = [
        [name, Text(value, Tone.GOOD if name == "throughput" else Tone.PLAIN)]
        for name, value in rows.items()
        if value  # a journal's older lines do not tell the use of cores
    ]
    return Table("", ["", ""], shown)


def _evaluations(search: SearchResult) -> str:
    """How many of how many configurations: more than these where some are too close to be told apart by one each."""
    repeated = search.evaluations - len(search.tried)
    return f"{search.evaluations} of {len(search.tried)} configurations{f' ({repeated} repeated)' if repeated else ''}"


def _latency(title: str, latency: LatencyProfile) -> Table:
    rows = [
        [float(f"{number:.3g}") for number in (items, service_s * 1e3, spread_s * 1e3, items / service_s)]
        for items, service_s, spread_s in zip(latency.batch_sizes, latency.service_s, latency.spread_s, strict=True)
    ]
    return Table(title, ["items", "ms", "spread ms", "items/s"], rows)


def _op_use(use: OpUse) -> Table:
    whole_s = sum(use.seconds.values())
    rows: list[list[Cell]] = [
        [of, float(f"{1e3 * taken_s:.3g}"), f"{taken_s / whole_s:.0%}"]
        for of, taken_s in sorted(use.seconds.items(), key=lambda each: -each[1])
    ]
    idle = ", ".join(f"{share:.0%} of {workers}" for workers, share in use.idle_share.items())
    return Table(
        f"Where the time of a batch of {use.items:,} goes, on one core",
        ["class of op", "ms", "share"],
        rows,
        f"Op workers that took whole ops would be idle for so much of their time: {idle}",
    )


def _scaled(profile: ServerProfile) -> str:
    """What the scalability profile is of, whatever won: `model-on-host, workers of 1 core, batches of 64`."""
    lane = lane_to_scale(profile.configuration, profile.search.tried)
    cores = f"{lane.cores_per_worker} core{'' if lane.cores_per_worker == 1 else 's'}"
    return f"{Placement.MODEL_ON_HOST}, workers of {cores}, batches of {lane.batch_size:,}"


def _by_workers(title: str, scalability: ScalabilityProfile, bandwidth_source: str) -> Table:
    rows = [
        [workers, qps, traffic / 1e9 if traffic else None]
        for workers, qps, traffic in zip(
            scalability.workers, scalability.qps, scalability.bandwidth_bytes_per_s, strict=True
        )
    ]
    note = f"Memory traffic: {bandwidth_source}"
    return Table(title, ["workers", "queries/s", "memory GB/s"], rows, note)


def _by_cache_ways(title: str, scalability: ScalabilityProfile) -> Table:
    """Of as many workers as fit."""
    rows = list(zip(scalability.cache_ways, scalability.qps_by_cache_ways[-1], strict=True))
    return Table(title, ["ways", "queries/s"], rows)
