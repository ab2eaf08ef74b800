"""What Kairos' pick and Hebe's plan bring over the homogeneous pool of the same budget, scaled to all of it.

Beside them stands what would tell a bad pick from a bad policy: Kairos' matching on the pool with the best fluid bound
for whole queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import Progress

from hebe.planning.pool.fluid_pool import best_pool
from hebe.report.figures import Figure
from hebe.report.progress_bar import bar_of
from hebe.simulation.fleet.capacity import Capacity
from hebe.simulation.sweep import sweep
from hebe_lab.studies.kairos.contenders import (
    SPLITTING,
    Contender,
    Counts,
    homogeneous_contender,
    kairos_contender,
    measure,
    ratio,
    splitting_contender,
)
from hebe_lab.studies.kairos.setting import Setting


@dataclass(frozen=True, slots=True)
class Gain:
    """One setting: the contenders, their throughput and the homogeneous pool's, and by what the latter is `scale`d.

    `repicked` is Kairos' matching on the pool with the best fluid bound for whole queries.
    """

    kairos: Contender
    hebe: Contender
    repicked: Contender
    scale: float
    homogeneous_qps: Capacity
    kairos_qps: Capacity
    hebe_qps: Capacity
    repicked_qps: Capacity

    @property
    def model(self) -> str:
        """The setting's."""
        return self.kairos.setting.model

    @property
    def hebe_policy(self) -> str:
        """What Hebe's plan distributes by."""
        return "splitting" if self.hebe.scheme == SPLITTING else "matching"

    def over_homogeneous(self, qps: Capacity) -> float:
        """That throughput over the homogeneous pool's."""
        return ratio("over_homogeneous", qps, self.homogeneous_qps, 1 / self.scale).value

    def of_kairos(self, name: str, **rest: str | float | None) -> Figure:
        """Kairos over homogeneous, with further fields of `Figure`."""
        return ratio(name, self.kairos_qps, self.homogeneous_qps, 1 / self.scale, **rest)

    def of_hebe(self, name: str, **rest: str | float | None) -> Figure:
        """Hebe over homogeneous, with further fields of `Figure`."""
        return ratio(name, self.hebe_qps, self.homogeneous_qps, 1 / self.scale, **rest)


def gains(
    given: Sequence[Setting],
    queries: int,
    seeds: int,
    choosing: int,
    runners_up: int,
    progress: Progress,
    tolerance: float = 0.005,
) -> list[Gain]:
    """Each setting's, on `seeds` traces of so many queries; Hebe's plan is chosen on one of `choosing` queries, among
    so many more pools."""
    plans = sweep(_plan, [(setting, choosing, runners_up) for setting in given], bar_of(progress, "Hebe's plans"))
    homogeneous = [homogeneous_contender(setting) for setting in given]
    kairos = [kairos_contender(setting) for setting in given]
    repicked = [replace(contender, pool=_best_whole(contender.setting)) for contender in kairos]
    contenders = [contender for contender, _ in homogeneous] + kairos + plans + repicked
    found = measure("throughput of pools", contenders, queries, seeds, progress, tolerance)
    count = len(given)
    return [Gain(kairos[at], plans[at], repicked[at], homogeneous[at][1], *found[at::count]) for at in range(count)]


def _best_whole(setting: Setting) -> Counts:
    return best_pool(setting.problem, setting.budget_per_hour, most_parts=1).counts


def _plan(case: tuple[Setting, int, int]) -> Contender:
    setting, queries, runners_up = case
    # Planning knows nothing of the noise; it is the same servers without it.
    return replace(splitting_contender(replace(setting, noise=0.0), queries, runners_up), setting=setting)
