"""Metrics of tiers and online updates, read as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hebe.runtime.tier_state import TierSize
from hebe.serving.http1.messages import HttpRequest
from hebe.serving.monitoring.prometheus import MetricsPage
from hebe.serving.statistics import Statistics
from tests.serving.tier_states import KINDS, tiers_state, update_statistics

RANKER = {"model": "ranker", "version": "1"}
UPDATES = RANKER | {"ingestion": "tiers"}


@pytest.fixture
def families_of(fake_host):
    """Scrapes the page of the fake host: its families by name."""
    page = MetricsPage(fake_host, Statistics())

    def scrape():
        text = page.screen(HttpRequest("GET", "/metrics", "", {}, 0.0, "")).body.decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    return scrape


def value(families, sample, **labels):
    (found,) = (
        each.value
        for family in families.values()
        for each in family.samples
        if each.name == sample and each.labels == labels
    )
    return found


def test_without_tiers_and_updates_there_are_none(families_of):
    assert not [name for name in families_of() if name.startswith(("hebe_tier", "hebe_cache", "hebe_updates"))]


def test_tiers(families_of, fake_host):
    model = fake_host.models["ranker"]
    model.tiers, model.tier_kinds = tiers_state(redis=False), KINDS
    families = families_of()
    assert value(families, "hebe_tier_available", **RANKER, tier="volatile_db") == 0
    assert value(families, "hebe_tier_available", **RANKER, tier="persistent_db") == 1
    assert value(families, "hebe_tier_failures_total", **RANKER, tier="volatile_db") == 7
    assert value(families, "hebe_tier_hits_total", **RANKER, tier="volatile_db") == 6
    assert value(families, "hebe_tier_hits_total", **RANKER, tier="persistent_db") == 3
    assert value(families, "hebe_tier_rows", **RANKER, tier="persistent_db") == 70_000
    assert len(families["hebe_tier_rows"].samples) == 1, "Redis is not asked"
    assert not families["hebe_tier_bytes"].samples
    for name, wanted in {
        "hebe_cache_rows": 800,
        "hebe_cache_capacity_rows": 1024,
        "hebe_cache_bytes": 1 << 20,
        "hebe_cache_hits_total": 90,
        "hebe_cache_misses_total": 10,
        "hebe_cache_evictions_total": 30,
        "hebe_cache_unheld_total": 9,
        "hebe_hash_map_evictions_total": 8,
        "hebe_insertions_waiting": 4,
        "hebe_insertions_dropped_total": 2,
        "hebe_refreshes_total": 5,
        "hebe_refresh_seconds": 0.25,
    }.items():
        assert value(families, name, **RANKER) == wanted
    assert {name: family.type for name, family in families.items() if name.startswith("hebe_cache")} == {
        "hebe_cache_rows": "gauge",
        "hebe_cache_capacity_rows": "gauge",
        "hebe_cache_bytes": "gauge",
        "hebe_cache_hits": "counter",
        "hebe_cache_misses": "counter",
        "hebe_cache_evictions": "counter",
        "hebe_cache_unheld": "counter",
    }
    assert all(family.documentation for family in families.values())


def test_a_tier_that_is_not_configured_has_no_metrics(families_of, fake_host):
    model = fake_host.models["ranker"]
    model.tiers, model.tier_kinds = tiers_state(), {"cache": "host_cache", "persistent_db": "rocks_db"}
    tiers = {sample.labels["tier"] for sample in families_of()["hebe_tier_available"].samples}
    assert tiers == {"persistent_db"}


def test_the_size_of_a_tier_in_this_process(families_of, fake_host):
    model = fake_host.models["ranker"]
    model.tiers, model.tier_kinds = replace(tiers_state(), sizes={"volatile_db": TierSize(500, 1 << 16)}), KINDS
    families = families_of()
    assert value(families, "hebe_tier_rows", **RANKER, tier="volatile_db") == 500
    assert value(families, "hebe_tier_bytes", **RANKER, tier="volatile_db") == 1 << 16
    assert {families[name].type for name in ("hebe_tier_rows", "hebe_tier_bytes")} == {"gauge"}


def test_online_updates(families_of, fake_host):
    fake_host.models["ranker"].updates = {"tiers": update_statistics()}
    families = families_of()
    for name, wanted in {
        "hebe_updates_rows_total": 40,
        "hebe_updates_deletes_total": 3,
        "hebe_updates_gaps_total": 1,
        "hebe_updates_missing_total": 3,
        "hebe_updates_poison_total": 1,
        "hebe_updates_refused_total": 6,
        "hebe_updates_unheld_total": 5,
        "hebe_updates_passed_over_total": 8,
        "hebe_updates_duplicates_total": 2,
        "hebe_updates_lag_messages": 11,
        "hebe_updates_failing": 0,
    }.items():
        assert value(families, name, **UPDATES) == wanted


def test_lag_that_the_log_does_not_tell_has_no_sample(families_of, fake_host):
    """NaN would make the sum over all servers, and an average over time, NaN: above no bound."""
    fake_host.models["ranker"].updates = {"tiers": update_statistics(failing=True), "resident": update_statistics()}
    families = families_of()
    lags = {each.labels["ingestion"]: each.value for each in families["hebe_updates_lag_messages"].samples}
    assert lags == {"resident": 11}
    assert value(families, "hebe_updates_failing", **UPDATES) == 1


def test_update_to_visible_latency_is_a_histogram(families_of, fake_host):
    fake_host.models["ranker"].updates = {"tiers": update_statistics()}
    visible = families_of()["hebe_updates_visible_seconds"]
    assert visible.type == "histogram"
    buckets = {each.labels["le"]: each.value for each in visible.samples if each.name.endswith("_bucket")}
    assert [float(bound) for bound in buckets] == sorted(float(bound) for bound in buckets)
    assert buckets.pop("+Inf") == 1
    assert set(buckets.values()) == {0}, "it was sent in 1970"
    (total,) = (each.value for each in visible.samples if each.name.endswith("_sum"))
    assert total > 1e9
    assert visible.samples[0].labels["tier"] == "persistent_db"
