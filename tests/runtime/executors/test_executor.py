"""What an executor tells of the keys of each query in a batch."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.query import Batch, JaggedKeys, KeyCounts, Query, SubQuery
from hebe.runtime.loaded_model import LoadedModel, LoadOptions

WITHOUT_WAITING = {"cache_fraction": 0.5, "init_ec": False, "hit_rate_threshold": 0.0}


def jagged(model: LoadedModel, query: Query, length: int) -> Query:
    """`query` with at most so many keys per item and feature."""
    features = {
        feature.name: JaggedKeys(
            np.ascontiguousarray(query.features[feature.name][:, :length]).reshape(-1),
            np.arange(query.items + 1) * min(length, feature.lookups),
        )
        for feature in model.spec.features
    }
    return Query(query.query_id, query.items, 0.0, features=features, dense=query.dense)


@pytest.mark.parametrize("op_workers", [1, 2])
def test_each_query_of_a_batch_is_told_of_its_own_keys(repository, tmp_path, op_workers, monkeypatch) -> None:
    tiers = {"cache": WITHOUT_WAITING, "persistent_db": {"type": "rocks_db", "path": str(tmp_path)}}
    options = LoadOptions(hierarchy=HierarchyConfig.from_mapping(tiers), persistent_dir=tmp_path)
    model = LoadedModel.load(repository, "din", options=options)
    # Rows that one op worker lacks would come in the background, perhaps before another looks for them.
    monkeypatch.setattr(model.hierarchy.tiers.background, "submit", lambda *_: True)
    short, long = (jagged(model, model.random_query(40, seed=length), length) for length in (1, 1000))
    for query in (short, long):
        query.max_defaulted_fraction = 1.0
    batch = Batch(0, (SubQuery(short, 0, 40), SubQuery(long, 0, 40)), 80)
    outcome = model.new_executor(128, op_workers=op_workers).run(batch)
    keys = [sum(each.values.size for each in query.features.values()) for query in (short, long)]
    assert keys[0] * 2 < keys[1]
    assert [outcome.keys_of(0, 40), outcome.keys_of(40, 80)] == [KeyCounts(count, count) for count in keys]
    model.close()


@pytest.mark.parametrize("op_workers", [1, 2])
def test_what_a_lookup_waited_in_vain_is_no_part_of_what_a_batch_takes(repository, tmp_path, op_workers) -> None:
    tiers = {"cache": {"cache_fraction": 0.1, "init_ec": False}, "persistent_db": {"type": "rocks_db"}}
    tiers["persistent_db"] |= {"path": str(tmp_path), "timeout_ms": 60_000}
    options = LoadOptions(hierarchy=HierarchyConfig.from_mapping(tiers), persistent_dir=tmp_path)
    model = LoadedModel.load(repository, "din", options=options)
    query = model.random_query(120)
    query.deadline_s = time.monotonic() + 0.3
    store, gate = model.hierarchy.tiers.lookup.persistent.store, threading.Event()
    model.hierarchy.tiers.lookup.persistent.store = Stalled(store, gate)
    executor = model.new_executor(128, op_workers=op_workers)
    stalled = executor.run(Batch(0, (SubQuery(query, 0, 120),), 120))
    gate.set()
    for part in (stalled.keys_of(0, 120), stalled.keys_of(0, 50)):
        assert part.defaulted == part.cut > 0
    assert 0.2 < stalled.lookup.in_vain_s <= stalled.sparse_s
    assert stalled.usual_s == pytest.approx(stalled.service_s - stalled.lookup.in_vain_s)
    query.deadline_s = float("inf")
    answered = executor.run(Batch(1, (SubQuery(query, 0, 120),), 120))
    assert (answered.keys_of(0, 120).defaulted, answered.usual_s) == (0, answered.service_s)
    model.close()


class Stalled:
    """A store that answers no query before the gate opens."""

    def __init__(self, store, gate: threading.Event) -> None:
        self._store, self._gate = store, gate

    def query(self, *asked) -> int:
        self._gate.wait()
        return self._store.query(*asked)

    def __getattr__(self, name):
        return getattr(self._store, name)
