"""What the demo found, as plain data for the page, the table and `demo.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hebe.cli.demo.scoring import ScoredRows
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import Probe
from hebe.load_generator.search.rate_search import Crossing
from hebe.models.training.auc import roc_auc
from hebe.models.training.training import TrainingReport
from hebe.report.plots.latency import LoadPoint
from hebe.spec import ModelSpec, SlaTarget

MOST_AUC_DIFFERENCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRun:
    """A run at `share` of the latency-bounded throughput; `stages_ms` is the mean time of its queries in each stage."""

    share: float
    report: LoadReport
    stages_ms: Mapping[str, float]

    @property
    def name(self) -> str:
        """How plots and tables call it."""
        return f"{self.share:.0%} of it: {self.report.requested_qps:.0f} queries/s"


@dataclass(slots=True, eq=False)
class DemoResult:
    """Filled step by step. `scored` are the held-out rows with the server's scores. `limits`: how the load generator
    was itself one near `crossing`; `remarks`: what else to know about that.

    With `search_cut_short` the interval of `crossing` is from a rate that held to one that did not; else it is a 95%
    confidence interval. `denied_share` is what the host gave to others meanwhile, of the cores' time.
    """

    spec: ModelSpec
    data: str
    generated: bool
    training: TrainingReport
    scored: ScoredRows
    sla: SlaTarget
    crossing: Crossing | None = None
    search_cut_short: bool = False
    probes: list[Probe] = field(default_factory=list)
    limits: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    runs: list[LoadedRun] = field(default_factory=list)
    denied_share: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def lowest_qps(self) -> float:
        """The least rate that was tried."""
        return min(probe.rate_qps for probe in self.probes)

    @property
    def http_auc(self) -> float:
        """AUC of the server's scores; NaN where the held-out rows have labels of one kind only."""
        return roc_auc(self.scored.labels, self.scored.scores)

    @property
    def auc_agrees(self) -> bool | None:
        """Whether the server's AUC is the offline one; None where there is none."""
        if np.isnan(self.training.auc):
            return None
        return abs(self.http_auc - self.training.auc) <= MOST_AUC_DIFFERENCE

    def calibration(self) -> dict[str, dict[str, float]]:
        """Held-out rows in ten groups by rising score: share of clicks predicted and seen, in percent."""
        order = np.argsort(self.scored.scores, kind="stable")
        groups = [group for group in np.array_split(order, 10) if len(group)]
        return {
            str(number): {
                "predicted": float(self.scored.scores[group].mean() * 100),
                "clicked": float(self.scored.labels[group].mean() * 100),
            }
            for number, group in enumerate(groups, 1)
        }

    def load_points(self) -> list[LoadPoint]:
        """Tail latency of all queries by rate over all probes and runs; those within 6% of each other in rate are one
        point, which passed if its latency, their median, keeps the SLA."""
        measured = [(probe.rate_qps, probe.report.tail_latency_of_all_ms) for probe in self.probes]
        measured += [(run.report.requested_qps, run.report.tail_latency_of_all_ms) for run in self.runs]
        groups: list[list[tuple[float, float]]] = []
        for rate, latency in sorted(pair for pair in measured if not np.isnan(pair[1])):
            if groups and rate <= groups[-1][0][0] * 1.06:
                groups[-1].append((rate, latency))
            else:
                groups.append([(rate, latency)])
        medians = [np.median(np.array(group), axis=0).tolist() for group in groups]
        return [LoadPoint(rate, latency, latency <= self.sla.latency_ms) for rate, latency in medians]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        crossing = self.crossing
        return {
            "model": self.spec.name,
            "version": self.training.version,
            "data": self.data,
            "generated": self.generated,
            "rows": self.training.rows,
            "held_out_rows": self.training.held_out_rows,
            "bad_lines": self.training.bad_lines,
            "log_loss": self.training.log_loss,
            "auc_offline": self.training.auc,
            "auc_http": self.http_auc,
            "rows_scored_over_http": len(self.scored.labels),
            "auc_agrees": self.auc_agrees,
            "sla_ms": self.sla.latency_ms,
            "sla_percentile": self.sla.percentile,
            "latency_bounded_throughput_qps": None if crossing is None else crossing.qps,
            "latency_bounded_throughput_low_qps": None if crossing is None else crossing.low_qps,
            "latency_bounded_throughput_high_qps": None if crossing is None else crossing.high_qps,
            "search_cut_short": self.search_cut_short,
            "generator_limits": list(self.limits),
            "remarks": list(self.remarks),
            "denied_share": self.denied_share,
            "probes": [
                {
                    "rate_qps": probe.rate_qps,
                    "passed": probe.passed,
                    "tail_latency_ms": probe.report.tail_latency_ms,
                    "tail_latency_of_all_ms": probe.report.tail_latency_of_all_ms,
                    "arrivals": probe.report.latencies.arrivals,
                    "cut_short": probe.report.cut_short,
                }
                for probe in self.probes
            ],
            "runs": [
                {"share": run.share, "stages_ms": dict(run.stages_ms), **run.report.to_dict()} for run in self.runs
            ],
            "seconds": dict(self.seconds),
        }
