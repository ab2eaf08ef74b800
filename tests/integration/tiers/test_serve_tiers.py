"""What a server tells of its tiers and online updates, and how a request fills and refreshes its cache.

By status, readiness, metrics and `hebe status`, while Redis fails and comes back; and what loading does to a model that
has its persistent store for itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from safetensors.numpy import save_file

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.models.repository.repository import ModelRepository
from hebe.runtime.executors.executor import ModelExecutor
from hebe.runtime.loaded_model import LoadOptions
from hebe.serving.hosting.model_host import HostOptions, ModelHost
from hebe.serving.requests.errors import LoadFailed, QueryFailed
from tests.integration.serving.served import (
    PATIENCE_S,
    Changing,
    HebeServe,
    Inputs,
    address,
    binary_body,
    error_of,
    eventually,
    is_ready,
    post,
)
from tests.servers.redis_servers import RedisServer

from .row_reader import FEATURE, LOOKUPS, TABLE, Reader, Versions, row_reader, serving, store_reader

SPEC = row_reader()
LABELS = {"model": SPEC.name, "version": "1"}
HEALED_S = 20.0


class Served:
    """A server with all tiers, online updates, and the Redis that is its level 2."""

    def __init__(self, server: HebeServe, redis: RedisServer, log: LogDirectory) -> None:
        self.server, self.redis, self.log = server, redis, log

    def status(self) -> dict[str, Any]:
        return get(self.server, "/v2/status")

    def model(self) -> dict[str, Any]:
        """The model's part of the status."""
        (model,) = self.status()["models"]
        return model

    def read(self, keys: np.ndarray) -> None:
        with Reader(self.server, SPEC, Versions(SPEC)) as reader:
            reader.read(keys)

    def read_until(self, holds: Any, what: str) -> None:
        """Ask for one random key after the other, which the cache seldom has."""
        rng = np.random.default_rng(3)
        with Reader(self.server, SPEC, Versions(SPEC)) as reader:

            def asked() -> bool:
                reader.read(rng.integers(0, SPEC.tables[0].rows, 4 * LOOKUPS))
                return bool(holds())

            eventually(asked, what, HEALED_S)


def get(server: HebeServe, path: str, status: int = 200) -> dict[str, Any]:
    connection = http.client.HTTPConnection(*address(server.http), timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    assert response.status == status, body
    document: dict[str, Any] = json.loads(body)
    return document


def hebe_status(server: HebeServe, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hebe", "status", f"http://{server.http}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def tiers(root: Path, volatile: dict[str, Any], *, level_3: bool = True) -> dict[str, dict[str, Any]]:
    configured = {
        "cache": {"cache_fraction": 0.05},
        "volatile_db": {"num_partitions": 2, **volatile},
    }
    if level_3:
        configured["persistent_db"] = {"type": "rocks_db", "path": str(root / "rocksdb")}
        configured["update_source"] = {"type": "log_directory", "address": str(root / "log"), "poll_timeout_ms": 50}
    return configured


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("tiers")
    store_reader(root / "models", SPEC)
    log = LogDirectory(root / "log")
    with (
        contextlib.closing(log),
        RedisServer() as redis,
        serving(root, tiers(root, {"type": "redis", "address": redis.address, "timeout_ms": 200.0})) as server,
    ):
        yield Served(server, redis, log)
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


def test_all_is_well(served: Served):
    served.read(np.arange(8 * LOOKUPS))
    status = served.status()
    assert (status["server"]["ready"], status["degraded"]) == (True, [])
    model = served.model()
    assert [(tier["name"], tier["kind"], tier["available"]) for tier in model["tiers"]] == [
        ("cache", "host_cache", True),
        ("volatile_db", "redis", True),
        ("persistent_db", "rocks_db", True),
    ]
    cache = model["tiers"][0]
    assert 0 < cache["rows"] <= cache["capacity_rows"] < SPEC.tables[0].rows
    assert cache["hits"] > 0
    assert [tier["rows"] for tier in model["tiers"][1:]] == [None, SPEC.tables[0].rows], "Redis is not asked"
    assert served.server.metrics().value("hebe_tier_rows", **LABELS) == SPEC.tables[0].rows
    assert model["latency_ms"]["p99"] > 0
    assert model["table_memory_bytes"] >= cache["bytes"] > 0
    assert sorted(model["updates"]) == ["tiers", "volatile_db"]
    shown = hebe_status(served.server)
    assert shown.returncode == 0, shown.stderr
    assert "is ready" in shown.stdout
    assert "Nothing is degraded." in shown.stdout
    for module, url in ((tritonclient.http, served.server.http), (tritonclient.grpc, served.server.grpc)):
        with module.InferenceServerClient(url) as client:
            assert client.is_server_ready()
            assert client.is_model_ready(SPEC.name)
    with tritonclient.http.InferenceServerClient(served.server.http) as client:
        assert {"hebe_status", "hebe_prefetch"} <= set(client.get_server_metadata()["extensions"])


def test_prefetched_rows_are_hits(served: Served):
    """Of keys that were prefetched none is missing, where of 40 others some always are in so small a cache."""
    fresh = iter(np.random.default_rng(8).permutation(SPEC.tables[0].rows).reshape(-1, 10, LOOKUPS))

    def prefetch(keys: np.ndarray) -> tuple[int, Any, bytes]:
        body, header_length = binary_body(Inputs(len(keys), {FEATURE: keys}))
        headers = {"Inference-Header-Content-Length": str(header_length)}
        return post(served.server.http, f"/v2/models/{SPEC.name}/prefetch", body, headers)

    def asked(keys: np.ndarray) -> tuple[float, float]:
        """Hits and misses of asking for them."""
        before = served.server.metrics()
        served.read(keys.reshape(-1))
        after = served.server.metrics()
        names = ("hebe_cache_hits_total", "hebe_cache_misses_total")
        hits, misses = (after.value(name, **LABELS) - before.value(name, **LABELS) for name in names)
        return hits, misses

    def all_hits() -> bool:
        keys = next(fresh)
        status, _, answer = prefetch(keys)
        assert (status, json.loads(answer)) == (200, {"accepted": True})
        eventually(lambda: served.model()["background"]["waiting"] == 0, "the work is begun")
        return asked(keys) == (keys.size, 0)

    assert asked(next(fresh))[1] > 0
    eventually(all_hits, "they are there once the work is done")
    assert "out of range" in error_of(prefetch(np.full((1, LOOKUPS), SPEC.tables[0].rows)), 400)


def test_online_updates_are_told(served: Served):
    versions = Versions(SPEC)
    keys = np.arange(100, 160)
    producer = served.log.producer()
    with contextlib.closing(producer):
        producer.send(SPEC.name, TABLE, keys, versions.raise_versions(keys))

    def applied() -> bool:
        updates = served.model()["updates"]
        return all(each["rows"] == len(keys) and each["lag_messages"] == 0 for each in updates.values())

    eventually(applied, "both stores have the rows", HEALED_S)
    updates = served.model()["updates"]
    assert 0 < updates["tiers"]["visible_s"]["persistent_db"]["p99"] < HEALED_S
    assert 0 < updates["volatile_db"]["visible_s"]["volatile_db"]["p50"] < HEALED_S
    assert all((each["gaps"], each["poison"], each["failing"]) == (0, 0, False) for each in updates.values())
    metrics = served.server.metrics()
    for ingestion, tier in (("tiers", "persistent_db"), ("volatile_db", "volatile_db")):
        labels = LABELS | {"ingestion": ingestion}
        assert metrics.value("hebe_updates_rows_total", **labels) == len(keys)
        assert metrics.value("hebe_updates_lag_messages", **labels) == 0
        assert metrics.value("hebe_updates_visible_seconds_count", **labels, tier=tier) >= 1
        assert metrics.value("hebe_updates_visible_seconds_bucket", **labels, tier=tier, le="86400.0") >= 1
    assert metrics.families["hebe_updates_visible_seconds"].type == "histogram"


def test_redis_goes_and_comes_back(served: Served):
    served.redis.kill()
    try:
        served.read_until(lambda: served.status()["degraded"], "its failure is noticed")
        status = served.status()
        assert status["server"]["ready"], "level 3 answers"
        found = {each["what"]: each for each in status["degraded"]}
        assert found["volatile_db"]["model"] == SPEC.name
        assert 0 <= found["volatile_db"]["since_s"] < HEALED_S
        assert served.redis.address in found["volatile_db"]["reason"]
        volatile = served.model()["tiers"][1]
        assert (volatile["circuit"], volatile["available"]) == ("open", False)
        assert volatile["failures"] >= 3
        assert get(served.server, "/v2/health/ready") == {
            "ready": True,
            "models": {SPEC.name: {"degraded": ["volatile_db"]}},
        }
        assert get(served.server, f"/v2/models/{SPEC.name}/ready")["degraded"] == ["volatile_db"]
        with tritonclient.http.InferenceServerClient(served.server.http) as client:
            assert client.is_server_ready()
        metrics = served.server.metrics()
        assert metrics.value("hebe_tier_available", **LABELS, tier="volatile_db") == 0
        assert metrics.value("hebe_tier_available", **LABELS, tier="persistent_db") == 1
        assert metrics.value("hebe_tier_failures_total", **LABELS, tier="volatile_db") >= 3
        shown = hebe_status(served.server)
        assert shown.returncode == 0
        assert shown.stdout.index("volatile_db") < shown.stdout.index("Models")
        document = json.loads(hebe_status(served.server, "--json").stdout.splitlines()[-1])
        assert "volatile_db" in [each["what"] for each in document["degraded"]]
    finally:
        served.redis.restart()
    served.read_until(lambda: not served.status()["degraded"], "it heals by itself")
    assert served.server.metrics().value("hebe_tier_available", **LABELS, tier="volatile_db") == 1
    assert get(served.server, "/v2/health/ready") == {"ready": True}


def test_loading_the_version_that_runs_refreshes_its_cache(served: Served):
    # There is another one after Redis was another process, whenever that is noticed.
    told, before = served.server.log.count("cache refreshed"), served.model()["refresh"]["iterations"]
    with tritonclient.http.InferenceServerClient(served.server.http) as client:
        client.load_model(SPEC.name)
    refresh = served.model()["refresh"]
    assert refresh["iterations"] > before
    assert served.server.log.count("cache refreshed") == told + 1
    assert refresh["last"]["rows"] == served.model()["tiers"][0]["rows"] > 0
    assert refresh["last"]["unreachable"] == 0
    with tritonclient.grpc.InferenceServerClient(served.server.grpc) as client:
        client.load_model(SPEC.name)
    assert served.server.log.count("cache refreshed") == told + 2
    metrics = served.server.metrics()
    assert metrics.value("hebe_refreshes_total", **LABELS) >= before + 2
    assert metrics.value("hebe_refresh_seconds", **LABELS) > 0
    assert served.server.log.count("model loaded") == 1, "nothing was loaded anew"


def test_a_model_that_only_redis_has_the_rows_of_is_not_ready_without_it(tmp_path: Path):
    store_reader(tmp_path / "models", SPEC)
    with RedisServer() as redis:
        configured = tiers(tmp_path, {"type": "redis", "address": redis.address}, level_3=False)
        with serving(tmp_path, configured) as server:
            own = Served(server, redis, LogDirectory(tmp_path / "log"))
            redis.kill()
            own.read_until(lambda: not is_ready(server.http), "it tells that it cannot answer")
            reason = "no tier has its rows: volatile_db cannot be asked"
            assert reason in get(server, f"/v2/models/{SPEC.name}/ready", 503)["error"]
            assert [each["reason"] for each in own.status()["degraded"] if each["what"] == "model"] == [reason]
            shown = hebe_status(server)
            assert shown.returncode == 1
            assert "is NOT READY" in shown.stdout
            refused = error_of(post(server.http, f"/v2/repository/models/{SPEC.name}/load", b""), 400)
            assert "rows in the cache were not refreshed: volatile_db did not answer" in refused
            assert server.metrics().value("hebe_model_ready", **LABELS) == 0
            redis.restart()
            eventually(lambda: is_ready(server.http), "ready again", HEALED_S)
            assert hebe_status(server).returncode == 0
            own.log.close()
            assert server.end(signal.SIGTERM) == 0
    gone = subprocess.run(
        [sys.executable, "-m", "hebe", "status", f"http://{server.http}"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert gone.returncode == 1
    assert "cannot be reached" in gone.stderr


def test_what_level_1_was_filled_with_is_there_for_the_first_query(tmp_path: Path):
    """Neither the warm-ups of workers nor the query before ready take its place, and so it is after a restart."""
    store_reader(tmp_path / "models", SPEC)
    hottest_first = np.random.default_rng(6).permutation(SPEC.tables[0].rows)[:200]
    save_file({TABLE: hottest_first}, tmp_path / "known.safetensors")
    configured = tiers(tmp_path, {"type": "parallel_hash_map"})
    configured["cache"] = {"cache_fraction": 0.1, "warm_up_keys": str(tmp_path / "known.safetensors")}
    for name in ("first", "again"):
        with serving(tmp_path, configured, "--workers", "2", name=name) as server:
            assert server.metrics().value("hebe_cache_evictions_total", **LABELS) == 0
            with Reader(server, SPEC, Versions(SPEC)) as reader:
                reader.read(hottest_first)
            metrics = server.metrics()
            counts = [metrics.value(f"hebe_cache_{kind}_total", **LABELS) for kind in ("hits", "misses", "evictions")]
            assert counts == [200, 0, 0]
            assert server.end(signal.SIGTERM) == 0


async def test_a_model_whose_batches_fail_is_loaded_again_beside_nothing(tmp_path: Path):
    """It has its persistent store for itself: its workers are started anew."""
    store_reader(tmp_path / "models", SPEC)
    hierarchy = HierarchyConfig.from_mapping(tiers(tmp_path, {"type": "parallel_hash_map"}))
    options = HostOptions(workers=1, worker_threads=1, load=LoadOptions(hierarchy=hierarchy))
    host = ModelHost(tmp_path / "models", options)
    try:
        await host.load_all()
        [model] = host.hosted
        failing = pytest.MonkeyPatch()
        failing.setattr(ModelExecutor, "run", lambda *_: 1 / 0)
        for _ in range(3):
            with pytest.raises(QueryFailed):
                await host._answer_one(model)
        assert not model.runs
        with pytest.raises(LoadFailed, match=r"new workers fail, too: .*; unload the model, then load it"):
            await host.load(SPEC.name)
        assert host.hosted == (model,)
        failing.undo()
        await host.load(SPEC.name)
        assert host.hosted == (model,)
        assert host.ready
        assert [entry.reason for entry in host.entries] == [""]
    finally:
        await host.close()


def test_versions_of_a_model_that_writes_its_persistent_store(tmp_path: Path):
    """Another version is loaded beside the one that runs; files changed under it are not loaded in its place."""
    store_reader(tmp_path / "models", SPEC)
    with serving(tmp_path, tiers(tmp_path, {"type": "parallel_hash_map"})) as server:
        changing = Changing(server, tmp_path / "models")
        assert changing.load(SPEC.name)[0] == 200
        assert get(server, "/v2/status")["models"][0]["refresh"]["iterations"] == 1
        store_reader(tmp_path / "models", SPEC)
        assert changing.load(SPEC.name)[0] == 200
        (model,) = get(server, "/v2/status")["models"]
        assert (model["version"], model["ready"], model["refresh"]["iterations"]) == (2, True, 0)
        with Reader(server, SPEC, Versions(SPEC)) as reader:
            assert reader.all_newest()
        stored = ModelRepository(tmp_path / "models")
        replaced = stored.open(SPEC.name, 2).path
        store_reader(tmp_path / "models", row_reader(rows=3000))
        newest = stored.open(SPEC.name, 3).path
        replaced.rename(tmp_path / "aside")
        newest.rename(replaced)
        refused = error_of(changing.load(SPEC.name, 2), 400)
        assert "version 2 runs, and its files have changed since it was loaded" in refused
        assert "write them as a new version, or unload the model first" in refused
        entry = changing.index()[SPEC.name]
        assert (entry["version"], entry["state"]) == ("2", "READY")
        (found,) = get(server, "/v2/status")["degraded"]
        assert (found["what"], "its files have changed" in found["reason"]) == ("load", True)
        assert is_ready(server.http)
        assert post(server.http, f"/v2/repository/models/{SPEC.name}/unload", b"")[0] == 200
        assert changing.load(SPEC.name, 2)[0] == 200
        assert get(server, "/v2/status")["degraded"] == []
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log
