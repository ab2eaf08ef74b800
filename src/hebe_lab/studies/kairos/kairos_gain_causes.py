"""Why Kairos' gain over the homogeneous pool is what it is: one thing changed at a time, on one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import Progress

from hebe.report.progress_bar import bar_of
from hebe.simulation.sweep import sweep
from hebe_lab.studies.kairos.contenders import Contender, Counts, homogeneous_contender, kairos_contender
from hebe_lab.studies.kairos.kairos_published import published_pick
from hebe_lab.studies.kairos.setting import Setting

_SEED = 1


@dataclass(frozen=True, slots=True)
class GainCauses:
    """Kairos' throughput over that of the homogeneous pool, scaled to the whole budget: as it is, with the artifact's
    gaps, and with service times that do not scatter. `published` is what Kairos' rule picks from the artifact's own
    figures."""

    model: str
    usual: float
    artifact_gaps: float
    steady: float
    published: Counts


def gain_causes(given: Sequence[Setting], queries: int, progress: Progress) -> list[GainCauses]:
    """Each setting's, with traces of so many queries."""
    return sweep(_tried, [(setting, queries) for setting in given], bar_of(progress, "one thing changed at a time"))


def _tried(case: tuple[Setting, int]) -> GainCauses:
    setting, queries = case
    homogeneous, scale = homogeneous_contender(setting)
    kairos = kairos_contender(setting)

    def qps(contender: Contender, near_qps: float | None = None) -> float:
        return contender.qps(queries, _SEED, guess_qps=near_qps)

    base_qps, own_qps = qps(homogeneous), qps(kairos)

    def steady(contender: Contender, near_qps: float) -> float:
        return qps(replace(contender, setting=replace(setting, steady=True)), near_qps)

    def with_artifact_gaps(contender: Contender, near_qps: float) -> float:
        return qps(replace(contender, setting=replace(setting, gap_ms=1e3 / near_qps)), near_qps)

    return GainCauses(
        setting.model,
        own_qps / (scale * base_qps),
        with_artifact_gaps(kairos, own_qps) / (scale * with_artifact_gaps(homogeneous, base_qps)),
        steady(kairos, own_qps) / (scale * steady(homogeneous, base_qps)),
        published_pick(setting.model, setting.problem, setting.budget_per_hour),
    )
