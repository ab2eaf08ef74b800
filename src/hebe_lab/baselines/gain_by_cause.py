"""Where the gain of Hercules' search over its baselines comes from: op-parallelism, pipelines, the accelerator, fusion
(Hercules, section VI.A, Figure 14)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hebe.planning.server_split.search import Configuration, SearchResult
from hebe.server_configuration import Placement


@dataclass(frozen=True, slots=True)
class GainByCause:
    """Ratios of throughput, each at least 1, whose product is `total`: each says what one more freedom adds.

    `op_parallelism`: other counts of workers and of cores per worker that run the whole model on the host; `pipeline`:
    S-D pipelines on the host; `accelerator`: placements on the accelerator whose batches are single queries; `fusion`:
    batches of several queries there. What comes first takes what two would gain alike.
    """

    baseline_qps: float
    op_parallelism: float
    pipeline: float
    accelerator: float
    fusion: float

    @property
    def total(self) -> float:
        """The best of all that was tried over the baseline's best."""
        return self.op_parallelism * self.pipeline * self.accelerator * self.fusion


def gain_by_cause(
    baseline: SearchResult, found: SearchResult, power_budget_watts: float = math.inf
) -> GainByCause | None:
    """The gain of what was `found` over the `baseline`, of DeepRecSys or Baymax on the same server.

    A configuration that both asked for counts with the mean of what both were told. None where the baseline has none
    that keeps the SLA target and the power budget.
    """
    told: dict[Configuration, list[float]] = {}
    for result in (baseline, found):
        for configuration, reached in result.tried.items():
            kept = reached.qps if reached.power_watts <= power_budget_watts else 0.0
            told.setdefault(configuration, []).append(kept)
    qps = {configuration: fmean(values) for configuration, values in told.items()}
    baseline_qps = max(qps[configuration] for configuration in baseline.tried)
    if baseline_qps <= 0:
        return None
    ratios, before = [], baseline_qps
    for allowed in _FREEDOMS:
        best = max([before, *(value for configuration, value in qps.items() if allowed(configuration))])
        ratios.append(best / before)
        before = best
    return GainByCause(baseline_qps, *ratios)


def _all_of(configuration: Configuration, placements: Sequence[Placement]) -> bool:
    return all(lane.placement in placements for lane in configuration)


_FREEDOMS: tuple[Callable[[Configuration], bool], ...] = (
    lambda configuration: _all_of(configuration, (Placement.MODEL_ON_HOST,)),
    lambda configuration: _all_of(configuration, (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST)),
    lambda configuration: not any(lane.fused_items for lane in configuration),
    lambda _: True,
)
"""What may be used, one freedom more at a time, in the order of the fields of `GainByCause`."""
