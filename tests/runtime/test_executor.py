"""What an executor tells of the keys of each query in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from hebe.embeddings.hierarchy_config import HierarchyConfig
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
