"""Prometheus metrics: the counters of `statistics` and the state of the host, put into words when they are scraped.

| metric | type | labels |
|---|---|---|
| hebe_query_latency_seconds | histogram | model, version |
| hebe_stage_seconds | histogram | model, version, stage = queue (from arrival), sparse, dense |
| hebe_query_size_items, hebe_batch_size_items | histogram | model, version |
| hebe_queries_total | counter | model, version |
| hebe_queries_refused_total | counter | model, version (both empty: refused before a model was found), reason |
| hebe_sla_attained_total, hebe_sla_missed_total | counter | model, version; of those that had the bound's time |
| hebe_keys_total, hebe_keys_defaulted_total | counter | model, version |
| hebe_keys_cut_by_deadline_total | counter | model, version; of those defaulted |
| hebe_keys_stale_total, hebe_keys_unknown_total | counter | model, version |
| hebe_queue_depth, hebe_workers, hebe_model_ready, hebe_sla_latency_seconds | gauge | model, version |
| hebe_profile_qps, hebe_measured_qps | gauge | model, version |
| hebe_profile_power_watts, hebe_measured_power_watts | gauge | model, version, source = read, estimated |
| hebe_model_loads_failed_total | counter | model; loads, refreshes and new splits |
| hebe_ready | gauge | |

Beside them stand those of tiers and online updates (`tier_metrics`), and the process's own
(`process_resident_memory_bytes`, `process_cpu_seconds_total`, ...).

Those of profiles (`profile_metrics`) have what the profiles say that models run by, and what serving has made of it.
What is estimated has a label that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hebe.serving.access.auth import Gate
from hebe.serving.http1.messages import HttpRequest, HttpResponse, refusal_headers
from hebe.serving.monitoring.tier_metrics import tier_metrics, update_metrics
from hebe.serving.requests.errors import ErrorKind, RequestError
from hebe.serving.statistics import Histogram, ModelStatistics, Statistics

if TYPE_CHECKING:
    from hebe.serving.hosting.hosted_model import HostedModel
    from hebe.serving.hosting.model_host import ModelHost

_MODEL = ("model", "version")


class StatisticsCollector(Collector):
    """Yields the metrics above."""

    def __init__(self, host: ModelHost, statistics: Statistics) -> None:
        self._host = host
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        models = self._statistics.find()
        yield from _histograms(models)
        yield from _counters(models, self._statistics)
        failed = CounterMetricFamily(
            "hebe_model_loads_failed", "Loads, refreshes and new splits that failed.", labels=("model",)
        )
        for name, count in self._host.load_failures.items():
            failed.add_metric((name,), count)
        yield failed
        yield from self._gauges()
        yield from profile_metrics(self._host.hosted)
        yield from tier_metrics(self._host.hosted)
        yield from update_metrics(self._host.hosted)

    def _gauges(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("hebe_ready", "1 if every model that should be served can answer.")
        ready.add_metric((), float(self._host.live and self._host.ready))
        yield ready
        depth = GaugeMetricFamily("hebe_queue_depth", "Queries waiting for a worker.", labels=_MODEL)
        workers = GaugeMetricFamily("hebe_workers", "Workers that run.", labels=_MODEL)
        model_ready = GaugeMetricFamily("hebe_model_ready", "1 if the model can answer.", labels=_MODEL)
        sla = GaugeMetricFamily("hebe_sla_latency_seconds", "The latency bound that counts.", labels=_MODEL)
        for model in self._host.hosted:
            labels = (model.spec.name, str(model.version))
            depth.add_metric(labels, model.queue_depth)
            workers.add_metric(labels, model.workers)
            model_ready.add_metric(labels, float(model.ready))
            sla.add_metric(labels, model.sla_s)
        yield from (depth, workers, model_ready, sla)


def _histograms(models: list[ModelStatistics]) -> Iterator[Metric]:
    latency = HistogramMetricFamily(
        "hebe_query_latency_seconds", "From arrival to completion, of answered queries.", labels=_MODEL
    )
    stages = HistogramMetricFamily(
        "hebe_stage_seconds", "Time of answered queries in each stage.", labels=(*_MODEL, "stage")
    )
    sizes = HistogramMetricFamily("hebe_query_size_items", "Items of answered queries.", labels=_MODEL)
    batches = HistogramMetricFamily("hebe_batch_size_items", "Items of batches that workers ran.", labels=_MODEL)
    for model in models:
        labels = (model.name, str(model.version))
        _add(latency, labels, model.latency_s)
        for stage, histogram in model.stage_s.items():
            _add(stages, (*labels, stage), histogram)
        _add(sizes, labels, model.query_items)
        _add(batches, labels, model.batch_items)
    yield from (latency, stages, sizes, batches)


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound is None else repr(float(bound)), below))
    family.add_metric(labels, buckets, histogram.sum)


def _counters(models: list[ModelStatistics], statistics: Statistics) -> Iterator[Metric]:
    for name, text, values in (
        ("hebe_queries", "Queries answered.", [m.success.count for m in models]),
        ("hebe_sla_attained", "Queries answered within the latency bound.", [m.within_sla for m in models]),
        (
            "hebe_sla_missed",
            "Queries answered late, refused since they would be late or too many, given up after the bound, failed.",
            [m.missed_sla for m in models],
        ),
        ("hebe_keys", "Keys looked up.", [m.keys.total for m in models]),
        (
            "hebe_keys_defaulted",
            "Keys whose row was late: answered with a default vector.",
            [m.keys.defaulted for m in models],
        ),
        (
            "hebe_keys_cut_by_deadline",
            "Keys answered with a default vector as the deadline came before their row.",
            [m.keys.cut for m in models],
        ),
        (
            "hebe_keys_stale",
            "Keys answered with a row that is being updated, or may be older than level 3's.",
            [m.keys.stale for m in models],
        ),
        ("hebe_keys_unknown", "Keys that no tier has.", [m.keys.unknown for m in models]),
    ):
        family = CounterMetricFamily(name, text, labels=_MODEL)
        for model, value in zip(models, values, strict=True):
            family.add_metric((model.name, str(model.version)), value)
        yield family
    refused = CounterMetricFamily("hebe_queries_refused", "Requests not answered.", labels=(*_MODEL, "reason"))
    for reason, count in sorted(statistics.refused.items()):
        refused.add_metric(("", "", reason), count)
    for model in models:
        for reason, count in sorted(model.refused.items()):
            refused.add_metric((model.name, str(model.version), reason), count)
    yield refused


class MetricsPage:
    """Serves `GET /metrics` to whom `gate` knows (None: to everybody); a `http1.messages.Handler`."""

    def __init__(self, host: ModelHost, statistics: Statistics, gate: Gate | None = None) -> None:
        self._gate = gate or Gate()
        self.registry = CollectorRegistry()
        self.registry.register(StatisticsCollector(host, statistics))
        ProcessCollector(registry=self.registry)

    def screen(self, head: HttpRequest) -> HttpResponse | None:
        """Answer at once: no request here has a body that matters."""
        if head.path not in ("/metrics", "/metrics/"):
            return self.refuse(RequestError(ErrorKind.NOT_FOUND, "metrics are at /metrics"), head)
        if head.method not in ("GET", "HEAD"):
            return self.refuse(RequestError(ErrorKind.WRONG_METHOD, "use GET"), head)
        try:
            self._gate.check(head.header(b"authorization"))
        except RequestError as error:
            return self.refuse(error, head)
        return HttpResponse(200, generate_latest(self.registry), CONTENT_TYPE_LATEST.encode())

    def preview(self, request: HttpRequest, start: memoryview) -> HttpResponse | None:  # noqa: ARG002
        """Nothing sent here is worth a look."""
        return None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Never asked: `screen` has answered."""
        raise AssertionError(f"{request.path} was screened")

    def refuse(self, error: RequestError, head: HttpRequest | None) -> HttpResponse:  # noqa: ARG002
        """The answer to what is not a request for metrics."""
        body = f"{error.message}\n".encode()
        return HttpResponse(error.kind.http_status, body, b"text/plain; charset=utf-8", refusal_headers(error))


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
