"""Op workers of one worker share a batch."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from hebe.query import Batch, SubQuery
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.runtime.op_team import FEWEST_ITEMS, OpTeam


def test_shares_are_even_and_worth_their_while():
    team = OpTeam(3)
    assert team.shares(100) == [(0, 33), (33, 66), (66, 100)]
    assert team.shares(2 * FEWEST_ITEMS) == [(0, FEWEST_ITEMS), (FEWEST_ITEMS, 2 * FEWEST_ITEMS)]
    assert team.shares(FEWEST_ITEMS - 1) == [(0, FEWEST_ITEMS - 1)]
    assert OpTeam(1).shares(1000) == [(0, 1000)]


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
    alone, shared = model.new_executor(128).run(batch), model.new_executor(128, op_workers=3).run(batch)
    np.testing.assert_array_equal(shared.scores, alone.scores)
    assert shared.keys_of(0, items) == alone.keys_of(0, items)
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
