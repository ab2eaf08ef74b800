"""Op workers of one worker share a batch."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import torch

from hebe.query import Batch, SubQuery
from hebe.runtime.executors.op_team import FEWEST_DENSE_ITEMS, FEWEST_ITEMS, OpTeam
from hebe.runtime.loaded_model import LoadedModel, LoadOptions


def test_shares_are_even_and_worth_their_while():
    team = OpTeam(3)
    assert team.shares(100) == [(0, 33), (33, 66), (66, 100)]
    assert team.shares(2 * FEWEST_ITEMS) == [(0, FEWEST_ITEMS), (FEWEST_ITEMS, 2 * FEWEST_ITEMS)]
    assert team.shares(FEWEST_ITEMS - 1) == [(0, FEWEST_ITEMS - 1)]
    assert OpTeam(1).shares(1000) == [(0, 1000)]
    assert team.shares(40, fewest=16) == [(0, 20), (20, 40)]


def test_tasks_run_at_the_same_time_and_the_first_on_the_calling_thread():
    together = threading.Barrier(3, timeout=10)

    def task(number: int):
        together.wait()
        return number, threading.current_thread() is threading.main_thread()

    results = OpTeam(3).run([lambda number=number: task(number) for number in range(3)])
    assert results == [(0, True), (1, False), (2, False)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_fault_is_raised_when_all_are_done(failing):
    done = []

    def task(number: int) -> None:
        if number == failing:
            raise ValueError(f"task {number}")
        time.sleep(0.02)
        done.append(number)

    with pytest.raises(ValueError, match=f"task {failing}"):
        OpTeam(2).run([lambda number=number: task(number) for number in range(2)])
    assert done == [1 - failing]


def test_threads_end_with_their_team(threads_begun):
    team = OpTeam(2)
    team.run([lambda: 0, lambda: 1])
    assert len(threads_begun()) == 1
    del team
    gc.collect()
    give_up_s = time.monotonic() + 10
    while threads_begun() and time.monotonic() < give_up_s:
        time.sleep(0.005)
    assert threads_begun() == []


@pytest.mark.parametrize("items", [1, 50, 97, 128])
@pytest.mark.parametrize("name", ["peers-dlrm", "din", "wnd"])
def test_scores_are_those_of_one_op_worker(repository, name, items):
    model = LoadedModel.load(repository, name)
    query = model.random_query(items, seed=items)
    batch = Batch(0, (SubQuery(query, 0, items),), items)
    by_one, shared = model.new_executor(128).run(batch), model.new_executor(128, op_workers=3).run(batch)
    np.testing.assert_allclose(shared.scores, by_one.scores, rtol=1e-5, atol=1e-6)  # sums of fewer rows at once
    assert shared.keys_of(0, items) == by_one.keys_of(0, items)
    model.close()


def test_the_dense_net_is_shared_out_and_torch_has_one_thread_in_each(repository):
    model = LoadedModel.load(repository, "din")
    called = []

    def dense(items: int, scores: torch.Tensor, *inputs: torch.Tensor) -> None:
        assert min(map(len, (scores, *inputs))) >= items
        called.append((items, torch.get_num_threads(), torch.is_inference_mode_enabled()))
        model_dense(items, scores, *inputs)

    executor = model.new_executor(128, op_workers=2)
    model_dense, executor._dense._run_dense = executor._dense._run_dense, dense
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for items in (2 * FEWEST_DENSE_ITEMS - 1, 101):
            executor.run(Batch(0, (SubQuery(model.random_query(items), 0, items),), items))
    finally:
        torch.set_num_threads(before)
    assert called[0] == (2 * FEWEST_DENSE_ITEMS - 1, 1, True)
    assert sorted(called[1:]) == [(50, 1, True), (51, 1, True)]
    model.close()


def test_a_share_of_the_dense_net_that_fails_is_the_batchs_fault_and_the_next_one_is_answered(repository):
    model = LoadedModel.load(repository, "wnd")
    batch = Batch(0, (SubQuery(model.random_query(100), 0, 100),), 100)
    executor = model.new_executor(128, op_workers=2)
    scores = executor.run(batch).scores
    model_dense = executor._dense._run_dense

    def dense(items: int, scores: torch.Tensor, *inputs: torch.Tensor) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("this share")
        model_dense(items, scores, *inputs)

    executor._dense._run_dense = dense
    with pytest.raises(RuntimeError, match="this share"):
        executor.run(batch)
    executor._dense._run_dense = model_dense
    np.testing.assert_array_equal(executor.run(batch).scores, scores)
    model.close()


def test_keys_of_tiers_are_counted_by_item_as_one_op_worker_counts_them(repository, tmp_path):
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path)
    model = LoadedModel.load(repository, "peers-dlrm", options=options)
    query = model.random_query(100, seed=9)
    query.max_defaulted_fraction = 0.0  # waits for rows
    batch = Batch(0, (SubQuery(query, 0, 100),), 100)
    outcome = model.new_executor(128, op_workers=2).run(batch)
    np.testing.assert_allclose(outcome.scores, model.predict(query.features, query.dense), atol=1e-5)
    assert outcome.keys_of(0, 100).total == 100 * model.spec.lookups_per_item
    assert outcome.keys_of(30, 100).defaulted == 0
    model.close()
