"""The metrics page tells what was sent, and Prometheus can read it."""

from __future__ import annotations

import http.client

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.integration.conftest import Served

from .served import Metrics, address, draw, post, triton_inputs

RANKER = {"model": "ranker", "version": "1"}
SIZES = [1, 3, 64, 128, 129, 300]
"""Query sizes sent; with batches of at most 128 items these are 9 batches."""
BATCHES = 9


def test_counts_agree_with_what_was_sent(served: Served, rng):
    """Each size once over HTTP and once over gRPC, one at a time, then one refusal of each kind."""
    spec = served.spec("ranker")
    before = Metrics(served.process.metrics_url)
    for module, url in ((tritonclient.http, served.http), (tritonclient.grpc, served.grpc)):
        with module.InferenceServerClient(url) as client:
            for items in SIZES:
                client.infer("ranker", triton_inputs(module, draw(spec, items, rng)))
            one = triton_inputs(module, draw(spec, 1, rng))
            with pytest.raises(InferenceServerException):
                client.infer("ranker", one[1:])
            with pytest.raises(InferenceServerException):
                client.infer("ranker", one, timeout=1)
            with pytest.raises(InferenceServerException):
                client.infer("nobody", one)
    assert post(served.http, "/v2/models/ranker/infer", b"no JSON")[0] == 400
    after = Metrics(served.process.metrics_url)

    def grew(sample: str, **labels: str) -> float:
        return after.value(sample, **labels) - before.value(sample, **labels)

    queries, items = 2 * len(SIZES), 2 * sum(SIZES)
    assert grew("hebe_queries_total", **RANKER) == queries
    assert grew("hebe_queries_total") == queries, "no other model was asked"
    assert grew("hebe_query_latency_seconds_count", **RANKER) == queries
    assert grew("hebe_query_latency_seconds_sum", **RANKER) > 0
    for stage in ("queue", "sparse", "dense"):
        assert grew("hebe_stage_seconds_count", **RANKER, stage=stage) == queries
    assert grew("hebe_stage_seconds_sum", **RANKER, stage="dense") > 0
    assert grew("hebe_query_size_items_count", **RANKER) == queries
    assert grew("hebe_query_size_items_sum", **RANKER) == items
    assert grew("hebe_query_size_items_bucket", **RANKER, le="64.0") == 6
    assert grew("hebe_batch_size_items_count", **RANKER) >= 2 * BATCHES, "more where spreading a query seems to pay"
    assert grew("hebe_batch_size_items_sum", **RANKER) == items
    assert grew("hebe_sla_attained_total", **RANKER) == queries, "the bound is an hour"
    assert grew("hebe_sla_missed_total", **RANKER) == 0
    assert grew("hebe_keys_total", **RANKER) == items * spec.lookups_per_item
    assert grew("hebe_keys_defaulted_total", **RANKER) == 0
    assert grew("hebe_queries_refused_total", **RANKER, reason="invalid") == 3, "the body that is no JSON too"
    assert grew("hebe_queries_refused_total", **RANKER, reason="expired") == 2
    assert grew("hebe_queries_refused_total", reason="not_found") == 2
    assert grew("hebe_queries_refused_total", model="", reason="invalid") == 0
    assert grew("hebe_queries_refused_total") == 7


def test_gauges(served: Served):
    metrics = Metrics(served.process.metrics_url)
    assert metrics.value("hebe_ready") == 1
    for name in served.references:
        labels = {"model": name, "version": "1"}
        assert metrics.value("hebe_model_ready", **labels) == 1
        assert metrics.value("hebe_workers", **labels) == 2
        assert metrics.value("hebe_queue_depth", **labels) == 0
        assert metrics.value("hebe_sla_latency_seconds", **labels) == 3600
    assert metrics.value("process_resident_memory_bytes") == pytest.approx(served.process.resident_bytes, rel=0.05)


def test_the_page_is_as_prometheus_wants_it(served: Served):
    metrics = Metrics(served.process.metrics_url)
    assert metrics.content_type.startswith("text/plain; version=")
    assert {name: family.type for name, family in metrics.families.items() if name.startswith("hebe_")} == {
        "hebe_query_latency_seconds": "histogram",
        "hebe_stage_seconds": "histogram",
        "hebe_query_size_items": "histogram",
        "hebe_batch_size_items": "histogram",
        "hebe_queries": "counter",
        "hebe_queries_refused": "counter",
        "hebe_sla_attained": "counter",
        "hebe_sla_missed": "counter",
        "hebe_keys": "counter",
        "hebe_keys_cut_by_deadline": "counter",
        "hebe_keys_defaulted": "counter",
        "hebe_keys_stale": "counter",
        "hebe_keys_unknown": "counter",
        "hebe_queue_depth": "gauge",
        "hebe_workers": "gauge",
        "hebe_model_ready": "gauge",
        "hebe_sla_latency_seconds": "gauge",
        "hebe_model_loads_failed": "counter",
        "hebe_ready": "gauge",
    }
    for family in metrics.families.values():
        assert family.documentation
        if family.type == "histogram":
            series: dict[tuple[tuple[str, str], ...], list[float]] = {}
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    labels = tuple(item for item in sorted(sample.labels.items()) if item[0] != "le")
                    series.setdefault(labels, []).append(sample.value)
            for counts in series.values():
                assert (np.diff(counts) >= 0).all(), "buckets are cumulative"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("HEAD", "/metrics", 200), ("GET", "/metrics/", 200), ("GET", "/", 404), ("POST", "/metrics", 405)],
)
def test_what_else_is_asked_of_the_metrics_port(served: Served, method: str, path: str, status: int):
    connection = http.client.HTTPConnection(*address(served.process.metrics_url), timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    assert answer.status == status
    body = answer.read().decode()
    connection.close()
    if method == "GET" and status == 200:
        assert list(text_string_to_metric_families(body))
