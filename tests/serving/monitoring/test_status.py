"""What `GET /v2/status`, and readiness, tell of models whose tiers fail."""

from __future__ import annotations

import json

import pytest
import tritonclient.grpc
import tritonclient.http

from hebe.serving.access.auth import Gate
from hebe.serving.hosting.profile_in_use import LoadWindow, ProfileInUse
from hebe.serving.monitoring.status import DAMAGE_TOLD_S, MOST_CHARACTERS, MOST_MODELS, ServerStatus
from hebe.serving.statistics import Statistics
from tests.serving.conftest import LONE, FakeEntry, FakeModel
from tests.serving.http_requests import call, error_of, get, json_request
from tests.serving.profiled import PIPELINE, served
from tests.serving.tier_states import (
    BLOCK_FAULT,
    KINDS,
    REDIS_FAULT,
    no_updates,
    tiers_state,
    update_statistics,
)


@pytest.fixture
def tiered(front_ends):
    """The fake `ranker` with its tables behind tiers, and online updates."""
    model = front_ends.host.models["ranker"]
    model.tiers, model.tier_kinds = tiers_state(), KINDS
    model.updates = {"tiers": no_updates()}
    return model


def status_of(front_ends, model="ranker"):
    document = get(front_ends, "/v2/status")
    return document, {each["name"]: each for each in document["models"]}[model]


def test_a_server_that_is_well(front_ends):
    assert json_request(front_ends)[0] == 200
    assert json_request(front_ends, {"id": 7})[0] == 400
    document, ranker = status_of(front_ends)
    server = document["server"]
    assert (server["name"], server["live"], server["ready"]) == ("hebe", True, True)
    assert 0 <= server["uptime_s"] < 60
    assert document["degraded"] == []
    assert document["models_left_out"] == 0
    assert [each["name"] for each in document["models"]] == ["lone", "ranker"]
    assert (ranker["version"], ranker["state"], ranker["ready"], ranker["reason"]) == (1, "READY", True, "")
    assert (ranker["workers"], ranker["threads"], ranker["queue_depth"], ranker["batch_size"]) == (1, 2, 0, 16)
    assert ranker["queries"] == {"answered": 1, "items": 4, "refused": {"invalid": 1}}
    assert ranker["sla"] == {"latency_ms": 50.0, "percentile": 95.0, "attainment": 1.0}
    assert 0 < ranker["latency_ms"]["p50"] <= ranker["latency_ms"]["p99"] <= 50.0
    assert ranker["keys"] == {
        "total": 10,
        "defaulted": 0,
        "cut_by_deadline": 0,
        "stale": 0,
        "unknown": 0,
        "recently_defaulted": None,
    }
    assert (ranker["table_memory_bytes"], ranker["row_format"]) == (4096, "fp32")
    assert (ranker["tiers"], ranker["refresh"], ranker["background"], ranker["updates"]) == ([], None, None, {})


def test_updates_that_fail_are_told(front_ends, tiered):
    assert status_of(front_ends)[0]["degraded"] == []
    tiered.updates = {"tiers": update_statistics(failing=True)}
    found, left_out = status_of(front_ends)[0]["degraded"]
    assert 0 <= left_out["since_s"] <= 60
    assert 0 <= found["since_s"] <= 60
    assert (found["what"], found["reason"]) == ("updates of tiers", "Kafka 10.0.0.8:9092: timed out")


def test_updates_that_came_to_nothing_are_told(front_ends, tiered):
    tiered.updates = {"tiers": update_statistics()}
    (found,) = status_of(front_ends)[0]["degraded"]
    assert found["what"] == "updates of tiers"
    missing, poison, refused = found["reason"].split("; ")
    assert missing.startswith("messages missing from the log: 3, of which last ")
    assert "trainer" in missing
    assert poison == (
        "messages put aside: 1, of which last message 7 of partition 0: its checksum is wrong (kept nowhere)"
    )
    assert refused == "keys whose rows found no place: 6"


def test_damage_of_late_is_told(front_ends, tiered):
    tiered.tiers = tiers_state(damage_age_s=DAMAGE_TOLD_S - 1)
    document, ranker = status_of(front_ends)
    reason = f"some of its rows are damaged: {BLOCK_FAULT}"
    assert document["degraded"] == [
        {"model": "ranker", "what": "persistent_db", "reason": reason, "since_s": 9000.0},
    ]
    (level_3,) = (tier for tier in ranker["tiers"] if tier["name"] == "persistent_db")
    assert (level_3["damage"], level_3["damage_s"]) == (BLOCK_FAULT, DAMAGE_TOLD_S - 1)
    tiered.tiers = tiers_state(damage_age_s=DAMAGE_TOLD_S)
    assert status_of(front_ends)[0]["degraded"] == []


def test_what_is_degraded_says_since_when_and_why(front_ends, tiered):
    tiered.tiers = tiers_state(redis=False)
    document, _ = status_of(front_ends)
    assert document["degraded"] == [
        {"model": "ranker", "what": "volatile_db", "reason": REDIS_FAULT, "since_s": 90.0},
    ]
    assert document["server"]["ready"]


@pytest.mark.parametrize(
    ("budget", "watts", "estimated", "reason"),
    [
        (35.0, 35.5, False, "its last load drew 35.5 W: more than the power budget of 35 W that it was profiled for"),
        (35.0, 40.0, True, "its last load drew 40 W (estimated): more than the power budget of 35 W that it was"),
        (35.0, 35.0, False, None),
        (35.0, None, True, None),
        (None, 40.0, False, None),
    ],
)
def test_power_beyond_the_profile_s_budget_is_told(front_ends, budget, watts, estimated, reason):
    model = front_ends.host.models["ranker"]
    model.configuration, model.profile = PIPELINE, ProfileInUse(served(power_budget_watts=budget))
    assert status_of(front_ends)[0]["degraded"] == []
    model.profile.see(LoadWindow(10.0, 800, 8, 95.0, watts, estimated), "now")
    document, _ = status_of(front_ends)
    assert [found["what"] for found in document["degraded"]] == ["power"] * bool(reason)
    assert all(0 <= found["since_s"] < 60 for found in document["degraded"])
    assert reason is None or document["degraded"][0]["reason"].startswith(reason)
    assert document["server"]["ready"]


def test_a_load_that_failed_says_since_when(fake_host):
    """Of a version that could not take the place of the one that runs, and of a model that there is not at all."""
    now_s = 1000.0
    fake_host.clock = lambda: now_s
    fake_host.models.pop("lone")
    known = {"lone": FakeEntry("lone", 1, "UNAVAILABLE", "truncated", 400.0)}
    known["ranker"] = FakeEntry("ranker", 1, "READY", "version 2 failed to load: truncated", 940.0)
    fake_host.listed = lambda: list(known.values())
    status = ServerStatus(fake_host, Statistics())
    assert status.document()["degraded"] == [
        {"model": "lone", "what": "model", "reason": "truncated", "since_s": 600.0},
        {"model": "ranker", "what": "load", "reason": "version 2 failed to load: truncated", "since_s": 60.0},
    ]
    known["lone"] = FakeEntry("lone", 1, "LOADING", "", 998.5)
    known["ranker"] = FakeEntry("ranker", 1, "READY", "", 999.0)
    assert status.document()["degraded"] == [
        {"model": "lone", "what": "model", "reason": "it is being loaded", "since_s": 1.5}
    ]


def test_readiness_names_degraded_tiers_and_clients_do_not_mind(front_ends, tiered):
    tiered.tiers = tiers_state(redis=False)
    assert get(front_ends, "/v2/health/ready") == {
        "ready": True,
        "models": {"ranker": {"degraded": ["volatile_db"]}},
    }
    assert get(front_ends, "/v2/models/ranker/ready") == {
        "name": "ranker",
        "ready": True,
        "degraded": ["volatile_db"],
    }
    assert get(front_ends, "/v2/models/lone/ready") == {"name": "lone", "ready": True}
    for package, url in ((tritonclient.http, front_ends.http_url), (tritonclient.grpc, front_ends.grpc_url)):
        with package.InferenceServerClient(url) as client:
            assert client.is_server_ready()
            assert client.is_model_ready("ranker")


def test_a_model_that_no_tier_has_rows_for_is_not_ready(front_ends, tiered):
    tiered.tiers = tiers_state(redis=False, rocksdb=False)
    tiered.trouble = "no tier has its rows: volatile_db and persistent_db cannot be asked"
    tiered.trouble_s = 60.0
    front_ends.host.ready = False
    assert error_of(call(front_ends, "GET", "/v2/health/ready"), 503) == "the server is not ready"
    assert tiered.trouble in error_of(call(front_ends, "GET", "/v2/models/ranker/ready"), 503)
    document, _ = status_of(front_ends)
    assert [found["what"] for found in document["degraded"]] == ["model", "volatile_db", "persistent_db"]
    assert (document["degraded"][0]["reason"], document["degraded"][0]["since_s"]) == (tiered.trouble, 60.0)
    assert not document["server"]["ready"]


def test_a_model_that_is_not_in_memory(front_ends):
    front_ends.host.models.pop("lone")
    document, lone = status_of(front_ends, "lone")
    assert lone == {"name": "lone", "version": 1, "state": "UNAVAILABLE", "ready": False, "reason": "unloaded"}
    (found,) = document["degraded"]
    assert (found["model"], found["what"], found["reason"]) == ("lone", "model", "unloaded")


def test_a_server_without_models_says_why_it_is_not_ready(front_ends):
    assert get(front_ends, "/v2/status")["server"]["reason"] == ""
    front_ends.host.models.clear()
    front_ends.host.stored.clear()
    front_ends.host.ready = False
    document = get(front_ends, "/v2/status")
    assert (document["server"]["ready"], document["server"]["reason"]) == (False, "no model is loaded")
    assert document["degraded"] == []
    front_ends.host.live = False
    assert get(front_ends, "/v2/status")["server"]["reason"] == "it is stopping"


def test_it_wants_a_token_and_readiness_names_no_model_without_one(serve_with):
    front_ends = serve_with(gate=Gate(["secret"]))
    model = front_ends.host.models["ranker"]
    model.tiers, model.tier_kinds = tiers_state(redis=False), KINDS
    token = {"Authorization": "Bearer secret"}
    assert call(front_ends, "GET", "/v2/status")[0] == 401
    assert call(front_ends, "GET", "/v2/status", headers=token)[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        status, _, body = call(front_ends, "GET", "/v2/health/ready", headers=headers)
        assert (status, json.loads(body)) == (200, {"ready": True})
    body = call(front_ends, "GET", "/v2/health/ready", headers=token)[2]
    assert json.loads(body)["models"] == {"ranker": {"degraded": ["volatile_db"]}}


def test_its_size_is_bounded(fake_host):
    for number in range(MOST_MODELS + 3):
        name = f"model{number:04}"
        fake_host.stored.add(name)
        model = fake_host.models[name] = FakeModel(LONE)
        model.spec = type(LONE).from_dict({**LONE.to_dict(), "name": name})
        model.tiers, model.tier_kinds = tiers_state(redis=False, fault="x" * 10_000), KINDS
    document = ServerStatus(fake_host, Statistics()).document()
    assert len(document["models"]) == MOST_MODELS
    assert document["models_left_out"] == len(fake_host.stored) - MOST_MODELS
    assert {len(found["reason"]) for found in document["degraded"]} == {MOST_CHARACTERS}
    assert len(json.dumps(document)) < 4096 * MOST_MODELS
