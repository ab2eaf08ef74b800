"""Why Hercules' clusters save more or less here than in its Figures 8 and 17: tuples and server counts changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hebe.planning.provisioning.provisioning import FleetOptions
from hebe.report.document import Cell, Table
from hebe_lab.studies.hercules.fleet import PLAIN, Pairs, fleet_of
from hebe_lab.studies.hercules.schedulers import SAVINGS, Effort, SteadySavings, largest_oblivious_qps, savings_at

Floats = npt.NDArray[np.float64]

OTHER_TUPLES = 2.0
"""How far off the ratio of two server types may be (docs/analytic-servers.md)."""

FIG8_AVAILABLE: Mapping[str, int] = {"T2": 70, "T3": 15, "T7": 5}
"""The servers of Figure 8."""

_FAST = (15, 10, 5, 2)
"""How many of Figure 8's T3 stay; the others become T2."""

_SEED = 20_220_213


def with_other_tuples(fleet: FleetOptions, direction: Floats, effort: Effort, draws: int) -> list[SteadySavings]:
    """Savings at the largest load that the oblivious scheduler serves, every accelerated server's queries/s multiplied
    by a random factor between 1 / `OTHER_TUPLES` and `OTHER_TUPLES`."""
    chance = np.random.default_rng(_SEED)
    accelerated = np.array([kind not in PLAIN for kind in fleet.server_types])
    found = []
    for _ in range(draws):
        factors = np.where(accelerated, OTHER_TUPLES ** chance.uniform(-1.0, 1.0, fleet.qps.shape), 1.0)
        other = replace(fleet, qps=fleet.qps * factors)
        found.append(savings_at(other, largest_oblivious_qps(other, direction, effort.rate), effort))
    return found


def other_tuples_table(as_modelled: SteadySavings, found: Sequence[SteadySavings]) -> Table:
    """As modelled, and what ranges over the draws."""
    rows: list[list[Cell]] = []
    for what, name in SAVINGS.items():
        values = np.array([getattr(one, name) for one in found])
        shown = (getattr(as_modelled, name), values.min(), float(np.median(values)), values.max())
        rows.append([what, *(f"{100 * value:.1f}%" for value in shown)])
    return Table(
        "What hangs on the tuples",
        ["saving", "as modelled", "least", "median", "greatest"],
        rows,
        f"Steady load, the largest that the oblivious scheduler serves; {len(found)} draws, in each of which every "
        f"accelerated server's queries/s of every model are multiplied by a factor from {1 / OTHER_TUPLES:g} to "
        f"{OTHER_TUPLES:g}, so that this load is another one too.",
    )


def with_fewer_fast(pairs: Pairs, peak_qps: Floats, effort: Effort) -> dict[int, tuple[float, SteadySavings]]:
    """By how many of Figure 8's T3 are left: the share of the peak that these carry, and what is saved at peak."""
    found = {}
    for count in _FAST:
        available = {
            **FIG8_AVAILABLE,
            "T2": FIG8_AVAILABLE["T2"] + FIG8_AVAILABLE["T3"] - count,
            "T3": count,
        }
        fleet = fleet_of(pairs, ("RMC1", "RMC2"), available)
        needed = (peak_qps * (1 + effort.rate) / fleet.qps[:, fleet.server_types.index("T3")]).sum()
        found[count] = (min(count / float(needed), 1.0), savings_at(fleet, peak_qps, effort))
    return found


def fewer_fast_table(found: Mapping[int, tuple[float, SteadySavings]]) -> Table:
    """A row for each number of T3."""
    rows: list[list[Cell]] = [
        [
            count,
            f"{share:.0%}",
            f"{100 * one.greedy_power:.1f}%",
            f"{100 * one.priority_power:.1f}%",
            f"{100 * one.hercules_power:.1f}%",
        ]
        for count, (share, one) in found.items()
    ]
    return Table(
        "Fewer T3, more T2",
        ["T3", "T3 can carry", "greedy over oblivious", "priority-aware over greedy", "Hercules over greedy"],
        rows,
        "Power saved at a steady load as high as the peak; means over draws.",
    )


def why_fig8(found: Mapping[int, tuple[float, SteadySavings]]) -> str:
    """In words."""
    (share, all_of_them), *others = found.values()
    best = max((one.priority_power for _, one in others), default=0.0)
    return (
        "The paper gives both models a peak of 50,000 queries/s. RMC1 has that here too; of the catalog's RMC2 no such "
        "cluster serves as much, so it gets what needs equally many T2 servers. The order of the three types by energy "
        "efficiency is the paper's, and so is that T3 gains more for RMC2 than for RMC1, on which the priority-aware "
        f"scheduler lives. Here 15 T3 can carry {share:.0%} of the peak. Whether it saves less because so little is "
        "contested is tried by leaving fewer of them: at a steady peak it saves "
        f"{all_of_them.priority_power:.1%} with all T3, and at most {best:.1%} with fewer."
    )
