"""Two models on one server, each read through tiers: what belongs to one is none of the other's.

Both have a table of the same name, whose rows begin alike, behind one Redis, one directory of persistent stores and one
log of updates: a row, an update or a cache that went to the wrong one would show as a version that was never sent.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hebe.embeddings.updates.directory.log import LogDirectory
from tests.integration.serving.served import Changing, HebeServe, eventually, is_ready, post
from tests.servers.redis_servers import RedisServer

from .row_reader import LOOKUPS, TABLE, Load, Reader, Versions, row_reader, serving, store_reader
from .test_serve_tiers import get

UPDATED, OTHER = row_reader("updated"), row_reader("other")
APPLIED_S = 30.0


@dataclass
class Served:
    """The server, and what each model's rows should be."""

    server: HebeServe
    repository: Path
    log: LogDirectory
    versions: dict[str, Versions]

    def model(self, name: str) -> dict[str, Any]:
        """A model's part of the status."""
        [found] = [model for model in get(self.server, "/v2/status")["models"] if model["name"] == name]
        return found

    def cache(self, name: str) -> dict[str, Any]:
        """How level 1 of a model is."""
        cache: dict[str, Any] = self.model(name)["tiers"][0]
        return cache

    def reader(self, spec: Any) -> Reader:
        return Reader(self.server, spec, self.versions[spec.name])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("two")
    for spec in (UPDATED, OTHER):
        store_reader(root / "models", spec)
    with (
        contextlib.closing(LogDirectory(root / "log")) as log,
        RedisServer() as redis,
        serving(
            root,
            {
                "cache": {"cache_fraction": 0.05},
                "volatile_db": {
                    "type": "redis", "address": redis.address, "num_partitions": 2, "timeout_ms": 500.0
                },
                "persistent_db": {"type": "rocks_db", "path": str(root / "rocksdb")},
                "update_source": {"type": "log_directory", "address": str(root / "log"), "poll_timeout_ms": 50},
                "models.other": {"cache_fraction": 0.5},
                "models.udpated": {"cache_fraction": 0.5},
            },
        ) as server,
    ):  # fmt: skip
        yield Served(server, root / "models", log, {spec.name: Versions(spec) for spec in (UPDATED, OTHER)})
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


def test_a_part_of_the_configuration_that_is_for_no_model_is_told(served: Served):
    eventually(lambda: is_ready(served.server.http), "both are ready")
    assert "[models.udpated] is for a model that there is not (did you mean updated?)" in served.server.log
    assert "there are other, updated" in served.server.log


def test_each_has_a_cache_of_its_own(served: Served):
    capacities = {name: served.cache(name)["capacity_rows"] for name in served.versions}
    assert capacities["other"] > 5 * capacities["updated"]
    before = {name: served.cache(name) for name in served.versions}
    with served.reader(OTHER) as reader:
        for first in range(0, 400, 40):
            reader.read(np.arange(first, first + 40))
    asked = {name: served.cache(name) for name in served.versions}
    assert asked["other"]["hits"] + asked["other"]["misses"] > before["other"]["hits"] + before["other"]["misses"]
    assert asked["updated"] == before["updated"], "what the other is asked for is nothing to it"


def test_updates_of_one_are_none_of_the_others(served: Served):
    """While both are read; the log has a message for each, and each applies its own."""
    updated, other = served.versions["updated"], served.versions["other"]
    keys, few = np.arange(0, 4000, 2), np.arange(7)
    with (
        Load([served.server], UPDATED, updated, threads=2),
        Load([served.server], OTHER, other, threads=2) as load,
        contextlib.closing(served.log.producer()) as producer,
    ):
        for _ in range(3):
            producer.send("updated", TABLE, keys, updated.raise_versions(keys))
        producer.send("other", TABLE, few, other.raise_versions(few))
        updated.delete(gone := np.arange(1, 201, 2))
        producer.delete("updated", TABLE, gone)
        producer.flush()

        def applied() -> bool:
            told = {name: served.model(name)["updates"] for name in served.versions}
            return all(
                sum(each["rows"] for each in told[name].values()) == 2 * rows
                and all(each["lag_messages"] == 0 for each in told[name].values())
                for name, rows in (("updated", 3 * len(keys)), ("other", len(few)))
            )

        eventually(applied, "level 2 and level 3 of each have its updates", APPLIED_S)
        load.wait_for(50)
    for spec in (UPDATED, OTHER):
        with served.reader(spec) as reader:
            eventually(reader.all_newest, f"{spec.name} answers with its own rows", APPLIED_S)


def test_what_is_done_to_one_is_not_done_to_the_other(served: Served):
    """Its cache is refreshed, it is unloaded and comes back with the rows that it had."""
    changing = Changing(served.server, served.repository)
    refreshes = {name: served.model(name)["refresh"]["iterations"] for name in served.versions}
    assert changing.load("updated")[0] == 200
    assert served.model("updated")["refresh"]["iterations"] == refreshes["updated"] + 1
    assert served.model("other")["refresh"]["iterations"] == refreshes["other"]
    with served.reader(OTHER) as other:
        assert post(served.server.http, "/v2/repository/models/updated/unload", b"")[0] == 200
        assert other.all_newest()
        assert "unloaded" in get(served.server, "/v2/models/updated/ready", 503)["error"]
        assert changing.load("updated")[0] == 200
        with served.reader(UPDATED) as updated:
            eventually(updated.all_newest, "it has its updates still", APPLIED_S)
            updated.read(np.arange(LOOKUPS))
        assert other.all_newest()
