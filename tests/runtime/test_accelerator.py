"""The accelerator's hot rows, for as many workers as share it."""

from __future__ import annotations

import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.query import Batch, SubQuery
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.loaded_model import LoadedModel, LoadOptions


def frequencies(model: LoadedModel):
    return lambda: {table.name: 1.0 / np.arange(1, table.rows + 1) for table in model.spec.tables}


@pytest.fixture
def model(repository):
    loaded = LoadedModel.load(repository, "dlrm-rmc1")
    yield loaded
    loaded.close()


def test_workers_share_the_memory_and_the_rows(model):
    accelerator = Accelerator(model.spec.table_bytes // 2, frequencies(model))
    alone, shared = accelerator.hot_sparse_net(model, 1), accelerator.hot_sparse_net(model, 2)
    assert accelerator.hot_sparse_net(model, 2) is shared
    assert 0 < shared.size_bytes <= model.spec.table_bytes // 4 < alone.size_bytes <= model.spec.table_bytes // 2
    accelerator.keep({2})
    with pytest.raises(StoreError, match="closed"):
        alone.add(np.full((1, model.spec.lookups_per_item), -1), np.zeros((1, model.spec.sparse_width), np.float32))
    assert accelerator.hot_sparse_net(model, 2) is shared
    accelerator.keep(set())


@pytest.mark.parametrize("pipelined", [False, True])
def test_scores_with_hot_rows_are_those_of_the_whole_model(model, pipelined):
    hot = Accelerator(model.spec.table_bytes // 3, frequencies(model)).hot_sparse_net(model, 1)
    query = model.random_query(40, seed=2)
    batch = Batch(0, (SubQuery(query, 0, 40),), 40)
    expected = model.predict(query.features, query.dense)
    if pipelined:
        pipeline = model.new_pipeline(64, 64, hot, on_accelerator=True)
        outcome = pipeline.dense().run(batch, pipeline.sparse().run(batch).handed)
    else:
        outcome = model.new_executor(64, hot, on_accelerator=True).run(batch)
    np.testing.assert_allclose(outcome.scores, expected, atol=1e-5)
    assert outcome.keys_of(0, 40).total == 40 * model.spec.lookups_per_item
    assert hot.hits.share > 0


def test_it_says_what_it_cannot_hold(model, repository, tmp_path):
    with pytest.raises(ValueError, match="not known which rows are hot"):
        Accelerator(1 << 20).hot_sparse_net(model, 1)
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path)
    tiered = LoadedModel.load(repository, "peers-dlrm", options=options)
    with pytest.raises(StoreError, match="need all tables in memory"):
        Accelerator(1 << 20, frequencies(tiered)).hot_sparse_net(tiered, 1)
    tiered.close()
