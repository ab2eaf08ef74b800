"""Sparse and dense halves of models, put together again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from hebe.query import Batch, SubQuery
from hebe.runtime.executors.dense_graph import on_buffers
from hebe.runtime.executors.executor import ModelExecutor
from hebe.runtime.executors.pipeline import Pipeline
from hebe.runtime.loaded_model import LoadedModel


@pytest.fixture(params=["peers-dlrm", "din", "wnd"])
def model(repository, request):
    loaded = LoadedModel.load(repository, request.param)
    yield loaded
    loaded.close()


def batch_of(query, start: int = 0, stop: int | None = None, batch_id: int = 0) -> Batch:
    stop = query.items if stop is None else stop
    return Batch(batch_id, (SubQuery(query, start, stop),), stop - start)


def test_a_dense_worker_scores_what_sparse_workers_hand_on(model):
    query = model.random_query(50, seed=1)
    pipeline = model.new_pipeline(64, 64)
    handed = pipeline.sparse().run(batch_of(query)).handed
    outcome = pipeline.dense().run(batch_of(query), handed)
    np.testing.assert_allclose(outcome.scores, model.predict(query.features, query.dense), atol=1e-6)
    assert outcome.handed == handed
    assert outcome.loading_s == 0
    assert outcome.sparse_s_at(49) == handed[0].sparse_s > 0
    assert outcome.keys_of(0, 50).total == handed[0].lookup.keys.total > 0


def test_an_accelerator_fuses_batches_in_buffers_of_its_own(model, device):
    queries = [model.random_query(items, seed=items) for items in (20, 1, 30)]
    pipeline = model.new_pipeline(32, 64, device=device)
    sparse = pipeline.sparse()
    handed = tuple(sparse.run(batch_of(query)).handed[0] for query in queries)
    outcome = pipeline.dense().run(Batch(0, tuple(SubQuery(q, 0, q.items) for q in queries), 51), handed)
    expected = np.concatenate([model.predict(query.features, query.dense) for query in queries])
    np.testing.assert_allclose(outcome.scores, expected, atol=1e-6)
    assert outcome.loading_s > 0
    assert [outcome.sparse_s_at(row) for row in (0, 20, 21)] == [inputs.sparse_s for inputs in handed]
    whole = [inputs.lookup.keys.total for inputs in handed]
    assert outcome.keys_of(0, 51).total == sum(whole)
    assert outcome.keys_of(20, 51).total == sum(whole[1:])
    with pytest.raises(ValueError, match="at most 64"):
        pipeline.dense().run(batch_of(queries[0]), (*handed, *handed))


def test_inputs_go_back_to_be_filled_again_and_go_with_their_lane(model):
    query = model.random_query(8)
    pipeline = model.new_pipeline(8, 8)
    (first,) = pipeline.sparse().run(batch_of(query)).handed
    (second,) = pipeline.sparse().run(batch_of(query)).handed
    assert second is not first
    first.put_back()
    assert pipeline.sparse().run(batch_of(query)).handed == (first,)
    kept = weakref.ref(second)
    second.put_back()
    gc.disable()
    try:
        del pipeline, second
        assert kept() is None, "buffers stay until the next full garbage collection"
    finally:
        gc.enable()
    first.put_back()  # to nobody


def test_a_sparse_batch_that_fails_leaves_its_inputs(model):
    query = model.random_query(9)
    pipeline = model.new_pipeline(8, 8)
    with pytest.raises(ValueError, match="at most 8"):
        pipeline.sparse().run(batch_of(query))
    assert pipeline.take() is not pipeline.take()
    assert len(pipeline._idle) == 0


def test_rehearsals_run_any_size_and_hand_nothing_on(model, device):
    query = model.random_query(50)
    pipeline = model.new_pipeline(16, 64, device=device)
    assert pipeline.sparse().rehearse(batch_of(query, 0, 16)).service_s > 0
    assert pipeline.dense().rehearse(batch_of(query)).scores.shape == (50, model.spec.outputs)
    assert len(pipeline._idle) == 4


@pytest.mark.parametrize("on_accelerator", [False, True])
def test_a_dense_worker_rehearses_what_a_model_may_divide_by_and_take_the_logarithm_of(model, device, on_accelerator):
    def dense_net(dense, sparse, lengths):
        parts = (dense.log(), sparse / sparse.norm(dim=1, keepdim=True), 1 / lengths)
        return torch.cat(parts, 1).sum(1, keepdim=True)

    pipeline = Pipeline(
        model.spec, model.hierarchy, on_buffers(dense_net), 16, 64, device=device if on_accelerator else None
    )
    most = 64 if on_accelerator else 16
    measured = model.warm_up(pipeline.dense().rehearse, most)
    assert measured[-1][0] == most


def test_a_model_executor_may_load_into_an_accelerators_buffers(model, device):
    query = model.random_query(12, seed=4)
    executor: ModelExecutor = model.new_executor(16, device=device)
    outcome = executor.run(batch_of(query))
    np.testing.assert_allclose(outcome.scores, model.predict(query.features, query.dense), atol=1e-6)
    assert outcome.loading_s > 0
    assert outcome.service_s == pytest.approx(outcome.sparse_s + outcome.loading_s + outcome.dense_s)
