from __future__ import annotations

import asyncio
import http.client

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hebe.query import KeyCounts, QueryResult
from hebe.serving.access.auth import Gate
from hebe.serving.hosting.profile_in_use import LoadWindow, ProfileInUse
from hebe.serving.http1.messages import HttpRequest
from hebe.serving.monitoring.prometheus import MetricsPage, profile_metrics
from hebe.serving.statistics import LATENCY_BOUNDS_S, Statistics
from tests.serving.profiled import served


@pytest.fixture
def page(fake_host):
    statistics = Statistics()
    model = statistics.of("ranker", 1, 0.05)
    for latency_s in (0.0004, 0.004, 0.04, 0.4, 40.0):
        result = QueryResult(1, np.zeros((1, 1), np.float32), latency_s, 0.001, 0.002, 0.003, KeyCounts(10, 2))
        model.query_answered(100, result, 0.0001, 0.0002)
    model.batch_ran(256, 0.001, 0.002)
    model.query_refused("deadline", 0.0)
    model.query_refused("deadline", 0.0)
    statistics.refused["unauthenticated"] += 3
    fake_host.models["ranker"].queue_depth = 7
    return MetricsPage(fake_host, statistics)


def scrape(page):
    response = page.screen(HttpRequest("GET", "/metrics", "", {}, 0.0, ""))
    assert response.status == 200
    assert response.content_type.startswith(b"text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(response.body.decode()):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def value(samples, name, **labels):
    return samples[name, tuple(sorted(labels.items()))]


RANKER = {"model": "ranker", "version": "1"}


def test_histograms_are_cumulative_and_complete(page):
    samples = scrape(page)
    buckets = [value(samples, "hebe_query_latency_seconds_bucket", **RANKER, le=repr(b)) for b in LATENCY_BOUNDS_S]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (1, 4)
    assert value(samples, "hebe_query_latency_seconds_bucket", **RANKER, le="+Inf") == 5
    assert value(samples, "hebe_query_latency_seconds_count", **RANKER) == 5
    assert value(samples, "hebe_query_latency_seconds_sum", **RANKER) == pytest.approx(40.4444)
    for stage, total in (("queue", 0.005), ("sparse", 0.010), ("dense", 0.015)):
        assert value(samples, "hebe_stage_seconds_sum", **RANKER, stage=stage) == pytest.approx(total)
    assert value(samples, "hebe_query_size_items_bucket", **RANKER, le="96.0") == 0
    assert value(samples, "hebe_query_size_items_bucket", **RANKER, le="128.0") == 5
    assert value(samples, "hebe_batch_size_items_sum", **RANKER) == 256


def test_loads_that_failed_are_counted_by_model_and_0_is_there_before_the_first(page, fake_host):
    fake_host.load_failures = {"lone": 0, "ranker": 3}
    samples = scrape(page)
    assert value(samples, "hebe_model_loads_failed_total", model="ranker") == 3
    assert value(samples, "hebe_model_loads_failed_total", model="lone") == 0


def test_counters_and_gauges(page, fake_host):
    samples = scrape(page)
    assert value(samples, "hebe_queries_total", **RANKER) == 5
    assert value(samples, "hebe_sla_attained_total", **RANKER) == 3
    assert value(samples, "hebe_sla_missed_total", **RANKER) == 2 + 2, "those that were refused for it missed it, too"
    assert value(samples, "hebe_keys_total", **RANKER) == 50
    assert value(samples, "hebe_keys_defaulted_total", **RANKER) == 10
    assert value(samples, "hebe_queries_refused_total", **RANKER, reason="deadline") == 2
    assert value(samples, "hebe_queries_refused_total", model="", version="", reason="unauthenticated") == 3
    assert value(samples, "hebe_queue_depth", **RANKER) == 7
    assert value(samples, "hebe_workers", **RANKER) == 1
    assert value(samples, "hebe_sla_latency_seconds", **RANKER) == 0.05
    assert value(samples, "hebe_model_ready", **RANKER) == 1
    assert value(samples, "hebe_ready") == 1
    assert value(samples, "process_resident_memory_bytes") > 1e6
    fake_host.ready = False
    fake_host.models["ranker"].trouble = "its last batches all failed"
    samples = scrape(page)
    assert value(samples, "hebe_ready") == 0
    assert value(samples, "hebe_model_ready", **RANKER) == 0


def test_other_paths_and_methods(page):
    assert page.screen(HttpRequest("GET", "/", "", {}, 0.0, "")).status == 404
    assert page.screen(HttpRequest("POST", "/metrics", "", {}, 0.0, "")).status == 405


def test_where_tokens_are_asked_for_only_who_has_one_reads_it(fake_host):
    page = MetricsPage(fake_host, Statistics(), Gate(["secret"], rate_limit_per_s=0.1))
    for headers in ({}, {b"authorization": b"Bearer guess"}):
        response = page.screen(HttpRequest("GET", "/metrics", "", headers, 0.0, ""))
        assert (response.status, response.headers) == (401, ((b"www-authenticate", b"Bearer"),))
        assert b"hebe_" not in response.body
    for _ in range(5):
        known = HttpRequest("GET", "/metrics", "", {b"authorization": b"Bearer secret"}, 0.0, "")
        assert page.screen(known).status == 200, "a scrape is none of its requests"


def test_the_page_is_served(front_ends):
    from hebe.serving.http1.server import start_http

    page = MetricsPage(front_ends.host, front_ends.data_plane.statistics)

    def on_loop(work):
        return asyncio.run_coroutine_threadsafe(work, front_ends.loop).result(10)

    server = on_loop(start_http(page, "127.0.0.1", 0, clock=front_ends.host.clock, what="metrics"))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for path, status in (("/metrics", 200), ("/x", 404), ("/metrics", 200)):
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == status
            response.read()
        connection.close()
    finally:
        on_loop(server.stop(0.5))


def samples(models):
    return {
        (sample.name, sample.labels.get("source")): sample.value
        for metric in profile_metrics(models)
        for sample in metric.samples
    }


def test_what_the_profile_says_stands_beside_what_is_measured(fake_host):
    ranker = fake_host.models["ranker"]
    assert samples(fake_host.hosted) == {}
    ranker.profile = ProfileInUse(served())
    assert samples(fake_host.hosted) == {
        ("hebe_profile_qps", None): 100.0,
        ("hebe_profile_power_watts", "estimated"): 30.0,
    }, "nothing was measured yet"
    ranker.profile.see(LoadWindow(180.0, 21_600, 0, 95.0, 25.0, power_estimated=False), "now")
    assert samples(fake_host.hosted) == {
        ("hebe_profile_qps", None): 100.0,
        ("hebe_profile_power_watts", "estimated"): 30.0,
        ("hebe_measured_qps", None): 120.0,
        ("hebe_measured_power_watts", "read"): 25.0,
    }
