"""Where a server's queries spent their time between two looks at its metrics."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

STAGES = ("queue", "sparse", "dense")
_METRIC = "hebe_stage_seconds"


class MetricsError(RuntimeError):
    """A metrics page that cannot be read."""


@dataclass(frozen=True, slots=True)
class StageTotals:
    """Queries answered since the server started, and the seconds that they spent in each stage."""

    queries: int
    seconds: dict[str, float]

    def mean_ms_since(self, before: StageTotals) -> dict[str, float]:
        """Mean milliseconds per query in each stage since `before`; empty if no query was answered."""
        queries = self.queries - before.queries
        if queries <= 0:
            return {}
        return {stage: (self.seconds[stage] - before.seconds[stage]) / queries * 1e3 for stage in STAGES}


def read_stages(metrics_url: str, model: str) -> StageTotals:
    """Look at the metrics page now. Raises `MetricsError`."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=10.0) as answer:
            return parse_stages(answer.read().decode(), model)
    except (urllib.error.URLError, OSError) as fault:
        raise MetricsError(f"{metrics_url}: cannot be read: {fault}") from None


def parse_stages(page: str, model: str) -> StageTotals:
    """The totals over all versions of `model` on a Prometheus text page."""
    seconds = dict.fromkeys(STAGES, 0.0)
    queries = 0
    for family in text_string_to_metric_families(page):
        if family.name != _METRIC:
            continue
        for sample in family.samples:
            stage = sample.labels.get("stage")
            if sample.labels.get("model") != model or stage not in seconds:
                continue
            if sample.name == f"{_METRIC}_sum":
                seconds[stage] += sample.value
            elif sample.name == f"{_METRIC}_count" and stage == STAGES[0]:
                queries += int(sample.value)
    return StageTotals(queries, seconds)
