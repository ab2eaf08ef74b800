"""Hercules' models and servers with one assumption changed: which of them make a difference, told by trying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import Progress

from hebe.report.progress_bar import bar_of
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.calibration import CAFFE2, Calibration
from hebe.simulation.sweep import sweep
from hebe.spec import ModelSpec, Pooling, ServerSpec
from hebe.workload.reuse_profile import PRODUCTION_2021
from hebe_lab.studies.hercules.fleet import Pair, query_sizes, searched_pair


@dataclass(frozen=True, slots=True)
class ChangedPair:
    """A model on a server, either of them changed; or other constants, or keys drawn evenly."""

    model: ModelSpec
    server: ServerSpec
    calibration: Calibration = CAFFE2
    skewed: bool = True


def changed_pairs(cases: Sequence[ChangedPair], quick: bool, progress: Progress) -> list[Pair]:
    """What `fleet.all_pairs` finds, of other pairs; `quick` on a coarser grid."""
    return sweep(_search, [(case, quick) for case in cases], bar_of(progress, "one assumption changed"))


def with_lookups(model: ModelSpec, lookups: int) -> ModelSpec:
    """So many lookups in each feature that is summed, or steps in each sequence; one-hot features stay."""
    return replace(
        model,
        features=tuple(
            replace(feature, lookups=lookups)
            if feature.lookups > 1 or feature.pooling is Pooling.ATTENTION
            else feature
            for feature in model.features
        ),
    )


def without_products(model: ModelSpec) -> ModelSpec:
    """A DLRM whose vectors are concatenated, where the catalog's are multiplied in pairs."""
    return replace(model, settings={**model.settings, "interaction": "concat"})


def _search(task: tuple[ChangedPair, bool]) -> Pair:
    case, quick = task
    reuse = PRODUCTION_2021 if case.skewed else None
    server = AnalyticServer(case.server, case.model, query_sizes(), reuse, case.calibration)
    return searched_pair(server, quick=quick)
