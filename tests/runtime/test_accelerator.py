"""The accelerator's hot rows, for as many workers as share it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.store import StoreError
from hebe.machine.gpu import CPU
from hebe.query import Batch, SubQuery
from hebe.runtime import accelerator as accelerator_module
from hebe.runtime.accelerator import Accelerator, default_memory_bytes
from hebe.runtime.loaded_model import LoadedModel, LoadOptions


def frequencies(model: LoadedModel):
    return lambda: {table.name: 1.0 / np.arange(1, table.rows + 1) for table in model.spec.tables}


@pytest.fixture
def model(repository):
    loaded = LoadedModel.load(repository, "dlrm-rmc1")
    yield loaded
    loaded.close()


def test_workers_share_the_memory_and_the_rows(model):
    accelerator = Accelerator(model.spec.table_bytes // 2, frequencies(model), CPU)
    alone, shared = accelerator.hot_sparse_net(model, 1), accelerator.hot_sparse_net(model, 2)
    assert accelerator.hot_sparse_net(model, 2) is shared
    assert 0 < shared.size_bytes <= model.spec.table_bytes // 4 < alone.size_bytes <= model.spec.table_bytes // 2
    accelerator.keep({2})
    with pytest.raises(StoreError, match="closed"):
        alone.add(np.full((1, model.spec.lookups_per_item), -1), np.zeros((1, model.spec.sparse_width), np.float32))
    assert accelerator.hot_sparse_net(model, 2) is shared
    accelerator.keep(set())


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("name", ["dlrm-rmc1", "din", "wnd"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_scores_with_hot_rows_are_those_of_the_whole_model(repository, device, share, name, pipelined, row_format):
    model = LoadedModel.load(repository, name, options=LoadOptions(row_format=row_format))
    hot = Accelerator(int(share * model.spec.table_bytes), frequencies(model), device).hot_sparse_net(model, 1)
    query = model.random_query(40, seed=2)
    batch = Batch(0, (SubQuery(query, 0, 40),), 40)
    expected = model.predict(query.features, query.dense)
    if pipelined:
        pipeline = model.new_pipeline(64, 64, hot, device=device)
        outcome = pipeline.dense().run(batch, pipeline.sparse().run(batch).handed)
    else:
        outcome = model.new_executor(64, hot, device=device).run(batch)
    np.testing.assert_allclose(outcome.scores, expected, atol=1e-5)
    assert outcome.keys_of(0, 40).total == 40 * model.spec.lookups_per_item
    assert hot.hits.share > 0
    model.close()


def test_workers_that_are_co_located_score_side_by_side(model, device):
    accelerator = Accelerator(model.spec.table_bytes // 3, frequencies(model), device)
    hot = accelerator.hot_sparse_net(model, 3)
    queries = [model.random_query(items, seed=items) for items in (1, 17, 64)]
    expected = [model.predict(query.features, query.dense) for query in queries]

    def score(number: int) -> list[np.ndarray]:
        query = queries[number]
        batch, executor = (
            Batch(0, (SubQuery(query, 0, query.items),), query.items),
            model.new_executor(64, hot, device=device),
        )
        return [executor.run(batch).scores.copy() for _ in range(50)]

    with ThreadPoolExecutor(3) as pool:
        for runs, right in zip(pool.map(score, range(3)), expected, strict=True):
            for scores in runs:
                np.testing.assert_allclose(scores, right, atol=1e-5)


def test_its_memory_for_hot_rows_is_most_of_a_gpus_or_a_tenth_of_the_tables(model, device):
    given = default_memory_bytes(model.spec, device)
    if device == CPU:
        assert given == model.spec.table_bytes // 10
    else:
        assert 0.7 < given / torch.cuda.mem_get_info(device)[1] < 0.9
    whole = Accelerator(None, frequencies(model), device).hot_sparse_net(model, 1)
    assert whole.size_bytes <= given


def test_the_device_is_looked_for_when_it_is_asked_for(monkeypatch):
    accelerator = Accelerator()
    monkeypatch.setattr(accelerator_module, "find_accelerator", lambda: torch.device("meta"))
    assert accelerator.device == torch.device("meta")
    assert Accelerator(device=CPU).device == CPU


def test_it_says_what_it_cannot_hold(model, repository, tmp_path):
    with pytest.raises(ValueError, match="not known which rows are hot"):
        Accelerator(1 << 20).hot_sparse_net(model, 1)
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path)
    tiered = LoadedModel.load(repository, "peers-dlrm", options=options)
    with pytest.raises(StoreError, match="need all tables in memory"):
        Accelerator(1 << 20, frequencies(tiered), CPU).hot_sparse_net(tiered, 1)
    tiered.close()
