"""Prometheus metrics of the profiles that models run by: what they say, and what serving has made of it.

Listed in `metrics`. What is estimated has a label that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from hebe.serving.hosting.hosted_model import HostedModel

_MODEL = ("model", "version")


def profile_metrics(models: Iterable[HostedModel]) -> Iterator[Metric]:
    """Of models that run by a profile; nothing where there are none. What serving has not corrected has no sample."""
    profiled = [(model, model.profile) for model in models if model.profile is not None]
    if not profiled:
        return
    for kind, whose in (("profile", "as its profile says"), ("measured", "as corrected while serving")):
        qps = GaugeMetricFamily(f"hebe_{kind}_qps", f"Latency-bounded throughput, {whose}.", labels=_MODEL)
        watts = GaugeMetricFamily(
            f"hebe_{kind}_power_watts", f"Peak power at that load, {whose}.", labels=(*_MODEL, "source")
        )
        for model, profile in profiled:
            told = profile.efficiency if kind == "profile" else profile.measured
            if told is None:
                continue
            labels = (model.spec.name, str(model.version))
            qps.add_metric(labels, told.qps)
            watts.add_metric((*labels, "estimated" if told.estimated else "read"), told.power_watts)
        yield from (qps, watts)
