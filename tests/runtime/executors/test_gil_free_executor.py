"""An executor that needs no interpreter lock, against `ModelExecutor`."""

from __future__ import annotations

import ctypes
import os
import re
import threading

import numpy as np
import pytest
import torch

from hebe.embeddings.store import StoreError
from hebe.machine.pinning import available_cores
from hebe.models.scripted_net import served
from hebe.query import Batch, Query, SubQuery
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.loaded_model import LoadedModel


@pytest.fixture
def loaded(repository):
    """Loads models, and closes them."""
    models = []

    def load(name: str) -> LoadedModel:
        models.append(LoadedModel.load(repository, name))
        return models[-1]

    yield load
    for model in models:
        model.close()


@pytest.fixture
def executor_of():
    """Makes executors of models, and closes them."""
    executors = []

    def make(model: LoadedModel, max_items: int = 128, op_workers: int = 1) -> UnlockedExecutor:
        executors.append(model.new_unlocked_executor(max_items, op_workers))
        return executors[-1]

    yield make
    for each in executors:
        each.close()


def batch_of(*parts: tuple[Query, int, int]) -> Batch:
    return Batch(0, tuple(SubQuery(*part) for part in parts), sum(stop - start for _, start, stop in parts))


@pytest.mark.parametrize("name", ["peers-dlrm", "din", "dlrm-rmc1", "wnd"])
def test_scores_and_keys_are_those_of_the_model_executor(loaded, executor_of, jagged_inputs, name):
    model = loaded(name)
    assert model.runs_unlocked
    rng = np.random.default_rng(0)
    features, dense = jagged_inputs(model.spec, 40, rng)
    jagged = Query(1, 40, 0.0, features=features, dense=dense)
    fixed = model.random_query(60, seed=1)
    if fixed.dense is not None:  # as received bytes lie, and as somebody's columns
        raw = b"a" + fixed.dense.tobytes()
        fixed.dense = np.frombuffer(raw, np.float32, offset=1).reshape(fixed.dense.shape)
        jagged.dense = np.repeat(jagged.dense, 2, axis=1)[:, ::2]
    batches = [batch_of((jagged, 5, 40), (fixed, 0, 60)), batch_of((fixed, 59, 60)), batch_of((jagged, 0, 5))]
    expected = [model.new_executor(128).run(batch) for batch in batches]
    executor = executor_of(model)
    for batch, right in zip(batches, expected, strict=True):
        outcome = executor.rehearse(batch)
        np.testing.assert_array_equal(outcome.scores, right.scores)
        assert outcome.keys_of(0, 1) == right.keys_of(0, 1)
        assert outcome.lookup.keys == right.lookup.keys
        assert min(outcome.sparse_s, outcome.dense_s) > 0


@pytest.mark.parametrize("name", ["peers-dlrm", "din", "dlrm-rmc1", "wnd"])
def test_op_workers_share_a_batch_out(loaded, executor_of, jagged_inputs, name):
    model = loaded(name)
    features, dense = jagged_inputs(model.spec, 40, np.random.default_rng(0))
    jagged, fixed = Query(1, 40, 0.0, features=features, dense=dense), model.random_query(100, seed=1)
    executor, alone = executor_of(model, 128, 3), model.new_executor(128)
    for batch in (
        batch_of((fixed, 0, 100)),  # cut where no query ends
        batch_of((jagged, 5, 40), (fixed, 7, 100)),
        batch_of((fixed, 60, 92)),  # for two of them
        batch_of((fixed, 0, 31)),  # for one
        batch_of((jagged, 0, 40), (fixed, 0, 8)),
    ):
        outcome, expected = executor.run(batch), alone.run(batch)
        np.testing.assert_allclose(outcome.scores, expected.scores, rtol=1e-5, atol=1e-6)
        assert outcome.lookup.keys == expected.lookup.keys
        assert min(outcome.sparse_s, outcome.dense_s) > 0


def test_each_op_worker_has_a_core_of_its_own(loaded, executor_of):
    """Of those that the calling thread has, and goes on to have."""
    executor = executor_of(loaded("dlrm-rmc1"), 128, 3)
    known = {thread.ident for thread in threading.enumerate()}
    executor.run(batch_of((loaded("dlrm-rmc1").random_query(96), 0, 96)))
    others = [thread for thread in threading.enumerate() if thread.ident not in known]
    cores = available_cores()
    taken = [os.sched_getaffinity(thread.native_id) for thread in others]
    assert sorted(taken, key=min) == sorted(({cores[number % len(cores)]} for number in (1, 2)), key=min)
    assert available_cores() == cores


@pytest.mark.parametrize("op_workers", [1, 2, 3, 5, 16])
def test_the_largest_share_has_room(loaded, executor_of, op_workers):
    model = loaded("dlrm-rmc1")
    for most in (1, 16, 100):
        executor = executor_of(model, most, op_workers)
        for items in range(1, most + 1):
            executor.place(batch_of((model.random_query(items), 0, items)))


@pytest.mark.parametrize("op_workers", [1, 2])
def test_no_batch_needs_the_interpreter(loaded, executor_of, op_workers):
    """A thread runs batches while this one, with the interpreter lock in hand, waits for what it tells."""
    model = loaded("peers-dlrm")
    executor = executor_of(model, 128, op_workers)
    query = model.random_query(40)
    executor.run(batch_of((query, 0, 40)))  # which starts the other threads
    told, outbox = os.pipe()
    executor.tell(outbox, 5)
    executor.place(batch_of((query, 0, 40)))
    began, lock = threading.Event(), threading.Lock()

    def run() -> None:
        with torch.inference_mode(), lock:
            began.set()
            executor.run_batches()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    executor.start()
    assert os.read(told, 8)  # by now the thread is where it needs no lock
    executor.outcome()
    message = ctypes.create_string_buffer(8)
    executor.place(batch_of((query, 0, 40)))
    executor.start()
    assert ctypes.PyDLL(None).read(told, message, 8) == 8  # the lock is not let go of
    assert int.from_bytes(message.raw, "little") == 5
    assert np.isfinite(executor.outcome().scores).all()
    executor.end()
    thread.join()
    for file in (told, outbox):
        os.close(file)


@pytest.mark.parametrize("op_workers", [1, 3])
def test_a_batch_that_fails_is_told_as_it_would_be_and_the_next_one_runs(loaded, executor_of, op_workers):
    model = loaded("dlrm-rmc1")
    executor = executor_of(model, 128, op_workers)
    good, wrong = model.random_query(64), model.random_query(64)
    for keys in wrong.features.values():
        keys[[3, 40]] = model.spec.tables[0].rows
    refused = 2 * model.spec.lookups_per_item
    with pytest.raises(ValueError, match=f"{refused} keys of the batch are out of range"):
        executor.rehearse(batch_of((wrong, 0, 64)))
    with pytest.raises(ValueError, match="batch of 129 items, but this executor holds at most 128"):
        executor.rehearse(batch_of((model.random_query(129), 0, 129)))
    with pytest.raises(ValueError, match="do not fit"):
        executor.rehearse(batch_of((good, 0, 65)))
    assert np.isfinite(executor.rehearse(batch_of((good, 0, 64))).scores).all()


def test_one_that_nobody_closes_leaves_no_thread(loaded):
    model = loaded("dlrm-rmc1")
    executor = model.new_unlocked_executor(128, 3)
    executor.run(batch_of((model.random_query(96), 0, 96)))
    assert sum(thread.name == "hebe-op" for thread in threading.enumerate()) == 2
    del executor
    assert not any(thread.name == "hebe-op" for thread in threading.enumerate())


def test_one_that_is_told_to_end_runs_no_more(loaded, executor_of):
    model = loaded("dlrm-rmc1")
    executor = executor_of(model, 128, 2)
    batch = batch_of((model.random_query(64), 0, 64))
    executor.run(batch)
    executor.end()
    with pytest.raises(RuntimeError, match="ended before its batch was run"):
        executor.run(batch)
    assert not any(thread.name == "hebe-op" for thread in threading.enumerate())


class OfAnotherShape(torch.nn.Module):
    """A DenseNet of two outputs for batches of two items or more."""

    def forward(self, dense, sparse, lengths):  # noqa: ARG002
        return sparse[:, :1] if sparse.shape[0] < 2 else sparse[:, :2]


@pytest.mark.parametrize("op_workers", [1, 2])
def test_what_the_densenet_raises_fails_its_batch_alone(loaded, op_workers):
    model = loaded("dlrm-rmc1")
    net = served(OfAnotherShape(), model.spec)
    executor = UnlockedExecutor(model.spec, model.hierarchy, net, 64, op_workers)
    query = model.random_query(64)
    share = 64 // op_workers
    for _ in range(2):
        with pytest.raises(torch.jit.Error, match=re.escape(f"shape [{share}, 2], the model's [{share}, 1]")):
            executor.rehearse(batch_of((query, 0, 64)))
    executor.close()
    executor.close()
    executor.start()  # heard by nobody


def test_tables_that_are_closed_are_told_as_such(loaded, executor_of):
    model = loaded("dlrm-rmc1")
    executor = executor_of(model)
    query = model.random_query(4)
    model.hierarchy.close()
    with pytest.raises(StoreError, match="its tables are closed"):
        executor.rehearse(batch_of((query, 0, 4)))
