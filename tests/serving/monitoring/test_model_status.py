"""One model's part of the status, of a fake model and what was counted of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hebe.query import KeyCounts, QueryResult
from hebe.runtime.tier_state import TierSize
from hebe.server_configuration import to_dict
from hebe.serving.hosting.profile_in_use import LoadWindow, ProfileInUse
from hebe.serving.monitoring.status import MOST_CHARACTERS, model_status, short
from hebe.serving.statistics import Statistics
from tests.serving.conftest import RANKER, FakeModel
from tests.serving.profiled import PIPELINE, served
from tests.serving.tier_states import KINDS, tiers_state, update_statistics


@pytest.fixture
def model():
    return FakeModel(RANKER)


@pytest.fixture
def tiered(model):
    """With its tables behind tiers, and online updates."""
    model.tiers, model.tier_kinds = tiers_state(), KINDS
    model.updates = {"tiers": update_statistics()}
    return model


@pytest.fixture
def counted():
    return Statistics().of("ranker", 1, RANKER.sla.latency_s)


def test_numbers_that_there_are_not_yet_are_null(model, counted):
    ranker = model_status(model, counted)
    assert ranker["sla"]["attainment"] is None
    assert ranker["latency_ms"] == {"p50": None, "p95": None, "p99": None}
    json.dumps(ranker, allow_nan=False)


def test_queries_are_told_as_they_were_counted(model, counted):
    for latency_s in (0.01, 0.01, 0.2):
        counted.query_answered(4, QueryResult(1, None, latency_s, 0.0, 0.0, 0.0, KeyCounts(10, 3, 2, 1)), 0.0, 0.0)
    counted.query_refused("deadline", 0.0)
    ranker = model_status(model, counted)
    assert ranker["queries"] == {"answered": 3, "items": 12, "refused": {"deadline": 1}}
    assert ranker["sla"] == {"latency_ms": 50.0, "percentile": 95.0, "attainment": 0.5}
    assert 5.0 < ranker["latency_ms"]["p50"] <= 10.0 < 100.0 < ranker["latency_ms"]["p99"]
    assert ranker["keys"] == {
        "total": 30,
        "defaulted": 9,
        "cut_by_deadline": 0,
        "stale": 6,
        "unknown": 3,
        "recently_defaulted": None,
    }


def test_a_model_that_is_not_ready_says_why(model, counted):
    model.trouble = "its last batches all failed"
    ranker = model_status(model, counted)
    assert (ranker["ready"], ranker["reason"]) == (False, "its last batches all failed")


def test_how_a_model_is_split_and_what_its_profile_says(model, counted):
    ranker = model_status(model, counted)
    assert ranker["configuration"]["placement"] == "model-on-host"
    assert (ranker["profile"], ranker["measured"]) == (None, None)
    model.configuration, model.profile = PIPELINE, ProfileInUse(served())
    ranker = model_status(model, counted)
    assert ranker["configuration"] == ranker["profile"]["configuration"] == to_dict(PIPELINE)
    said = {"qps": 100.0, "power_watts": 30.0, "estimated": True}
    assert ranker["profile"].items() >= {**said, "power_budget_watts": None}.items()
    nothing = dict.fromkeys(("qps", "power_watts", "estimated", "at", "window", "over_budget_s"))
    assert ranker["measured"] == nothing, "the profile's figures are not measured ones"
    model.profile.see(LoadWindow(180.0, 21_600, 216, 95.0, 25.0), "now")
    ranker = model_status(model, counted)
    assert ranker["profile"].items() >= said.items()
    assert ranker["measured"] == said | {
        "qps": 120.0,
        "at": "now",
        "over_budget_s": None,
        "window": {
            "qps": 120.0, "seconds": 180.0, "late": 0.01, "kept": True, "power_watts": 25.0, "estimated": True
        },
    }  # fmt: skip


def test_the_power_budget_of_a_profile(model, counted):
    model.configuration, model.profile = PIPELINE, ProfileInUse(served(power_budget_watts=35.0))
    assert model_status(model, counted)["profile"]["power_budget_watts"] == 35.0


def test_the_tiers_of_a_model(tiered, counted):
    ranker = model_status(tiered, counted)
    cache, volatile, persistent = ranker["tiers"]
    assert (cache["name"], cache["kind"], cache["circuit"]) == ("cache", "host_cache", None)
    assert (cache["rows"], cache["capacity_rows"], cache["bytes"]) == (800, 1024, 1 << 20)
    assert cache["hit_rate"] == 0.9
    assert (volatile["kind"], volatile["available"], volatile["circuit"], volatile["hits"]) == (
        "redis", True, "closed", 6,
    )  # fmt: skip
    assert (persistent["kind"], persistent["hits"], persistent["fault"]) == ("rocks_db", 3, None)
    assert (volatile["rows"], volatile["bytes"]) == (None, None), "it is not asked"
    assert (persistent["rows"], persistent["bytes"]) == (70_000, None)
    assert ranker["background"] == {"waiting": 4, "dropped": 2}
    assert ranker["refresh"]["iterations"] == 5
    assert ranker["refresh"]["last"]["unreachable"] == 4


def test_a_tier_that_failed_is_left_alone_and_says_since_when(tiered, counted):
    tiered.tiers = tiers_state(redis=False, fault="x" * 2 * MOST_CHARACTERS)
    volatile = model_status(tiered, counted)["tiers"][1]
    assert (volatile["available"], volatile["circuit"], volatile["failures"]) == (False, "open", 7)
    assert (volatile["unavailable_s"], volatile["fault_s"]) == (90.0, 2.5)
    assert len(volatile["fault"]) == MOST_CHARACTERS


def test_a_tier_in_this_process_is_always_there(tiered, counted):
    tiered.tier_kinds = KINDS | {"volatile_db": "parallel_hash_map"}
    state = tiers_state()
    tiered.tiers = replace(state, levels=state.levels[1:], sizes={"volatile_db": TierSize(500, 1 << 16)})
    volatile = model_status(tiered, counted)["tiers"][1]
    assert (volatile["kind"], volatile["available"], volatile["circuit"]) == ("parallel_hash_map", True, None)
    assert (volatile["rows"], volatile["bytes"]) == (500, 1 << 16)


def test_a_cache_that_was_not_asked_has_no_hit_rate(tiered, counted):
    state = tiers_state()
    tiered.tiers = replace(state, counts=replace(state.counts, cache_hits=0, cache_misses=0), last_refresh=None)
    ranker = model_status(tiered, counted)
    assert ranker["tiers"][0]["hit_rate"] is None
    assert ranker["refresh"] == {"iterations": 5, "last": None}


def test_online_updates(tiered, counted):
    updates = model_status(tiered, counted)["updates"]["tiers"]
    assert (updates["messages"], updates["rows"], updates["deletes"]) == (4, 40, 3)
    assert (updates["gaps"], updates["missing"], updates["poison"], updates["duplicates"]) == (1, 3, 1, 2)
    assert (updates["refused"], updates["unheld"], updates["passed_over"], updates["reordered"]) == (6, 5, 8, 9)
    assert updates["last_poison"] == ["message 7 of partition 0: its checksum is wrong (kept nowhere)"]
    assert updates["lag_messages"] == 11
    assert "messages 5 to 7 of producer trainer" in updates["last_gaps"][0]
    assert updates["visible_s"]["persistent_db"]["p99"] > 1e9
    assert (updates["failing"], updates["fault"]) == (False, "its checksum is wrong")
    tiered.updates = {"tiers": update_statistics(failing=True)}
    updates = model_status(tiered, counted)["updates"]["tiers"]
    assert (updates["failing"], updates["lag_messages"]) == (True, None)


def test_long_faults_are_cut_and_others_left_as_they_are():
    assert short("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    cut = short("x" * (MOST_CHARACTERS + 1))
    assert (len(cut), cut[-4:]) == (MOST_CHARACTERS, "x...")
