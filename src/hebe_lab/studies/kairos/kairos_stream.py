"""Query sizes change within a stream: the monitor notices, and Kairos and Hebe plan again from what it saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hebe.planning.pool.fluid_pool import best_pool
from hebe.planning.pool.pool import plan_pool
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.replanning import Replanner
from hebe.report.plots.style import INK, QUIET, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.simulation.fleet.capacity import Capacity
from hebe.workload.query_sizes import QuerySizes
from hebe_lab.studies.kairos.contenders import KAIROS, SPLITTING, Counts
from hebe_lab.studies.kairos.kairos_pictures import COLOURS
from hebe_lab.studies.kairos.setting import Setting

_BEFORE, _AFTER, _LOOK = 12_000, 14_000, 50
"""Queries of the stream before and after the change, and between two looks at the monitor."""


@dataclass(frozen=True, slots=True)
class Replan:
    """So many queries after the change (0 for the plan before it) these pools were planned."""

    after: int
    kairos: Counts
    hebe: Counts


@dataclass(frozen=True, slots=True)
class Stream:
    """The monitor's distance at each look, queries counted from the change; and what was planned when."""

    looks: tuple[int, ...]
    distance: tuple[float, ...]
    plans: tuple[Replan, ...]


def watch(old: Setting, shifted: QuerySizes) -> Stream:
    """A stream of `old`'s sizes, then of the shifted ones, and the plans that the monitor asks for along it."""
    rng = np.random.default_rng(12)
    sizes = np.concatenate((old.sizes.draw(_BEFORE, rng), shifted.draw(_AFTER, rng)))
    planner = Replanner(old.problem, lambda problem: _planned(problem, old.budget_per_hour))
    monitor = planner.monitor
    plans = [planner.current]
    looks, distance = [], []
    for begin in range(0, len(sizes), _LOOK):
        monitor.observe_many(sizes[begin : begin + _LOOK])
        after = begin + _LOOK - _BEFORE
        looks.append(after)
        distance.append(monitor.distance())
        if planner.plan_if_shifted():
            plans.append(replace(planner.current, after=after))
            looks.append(after)
            distance.append(monitor.distance())
    return Stream(tuple(looks), tuple(distance), tuple(plans))


def _planned(problem: PoolProblem, budget_per_hour: float) -> Replan:
    return Replan(0, plan_pool(problem, budget_per_hour).pick.counts, best_pool(problem, budget_per_hour).counts)


def stream_plot(stream: Stream, kairos: Sequence[Capacity], hebe: Sequence[Capacity]) -> str:
    """The monitor's distance over the stream, and under it what each plan serves of the new sizes."""
    with drawing(width=8.0, height=5.6) as (canvas, axes):
        axes.remove()
        above, below = canvas.subplots(2, 1, sharex=True, height_ratios=(1, 1.3))
        above.plot(stream.looks, stream.distance, color=INK, linewidth=1.3)
        above.axhline(0.05, color=QUIET, linestyle="--", linewidth=1.0)
        above.set_ylabel("distance")
        above.set_title("Kolmogorov-Smirnov distance of sizes seen and planned for")
        end = stream.looks[-1]
        for capacities, scheme in ((kairos, KAIROS), (hebe, SPLITTING)):
            times = [max(plan.after, 0) for plan in stream.plans] + [end]
            values = [capacity.qps for capacity in capacities]
            below.step(times, [*values, values[-1]], where="post", color=COLOURS[scheme], label=scheme)
            below.plot(times[1:-1], values[1:], "o", color=COLOURS[scheme], markersize=4)
        below.set_ylim(0, 1.1 * max(capacity.qps for capacity in (*kairos, *hebe)) or 1.0)
        below.set_xlim(-2_000, end)
        plain_ticks(below.xaxis, format_number)
        below.set_ylabel("queries/s")
        below.set_xlabel("queries after the change")
        below.set_title("Throughput under the new sizes of the pool planned")
        for panel in (above, below):
            panel.axvline(0, color=QUIET, linestyle="--", linewidth=1.2)
        canvas.legend(loc="outside lower center", ncols=2)
        return to_svg(
            canvas, "The monitor's distance, and the throughput of the plans made, by queries since the change"
        )
