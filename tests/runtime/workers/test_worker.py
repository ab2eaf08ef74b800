from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from hebe.machine.pinning import available_cores
from hebe.query import Batch
from hebe.runtime.workers.worker import Work, Worker


class Executor:
    """Answers a batch with its id; fails batch 13."""

    def run(self, batch, handed=()):  # noqa: ARG002
        if batch.batch_id == 13:
            raise RuntimeError("unlucky")
        return batch.batch_id


def batch(batch_id: int) -> Batch:
    return Batch(batch_id, (), 0)


@pytest.fixture
def outcomes():
    return []


def test_runs_batches_in_order_and_reports_faults_without_dying(outcomes):
    core = available_cores()[-1:]
    cores_seen = []

    def finished(worker_id, done, outcome):
        cores_seen.append(available_cores())
        outcomes.append((worker_id, done.batch_id, outcome))

    worker = Worker(7, Executor(), core, lambda: [(1, None)], finished)
    assert worker.started.result(60) == [(1, None)]
    for batch_id in (1, 13, 2):
        worker.submit(Work(batch(batch_id)))
    worker.stop()
    assert not worker.alive
    assert [(w, b) for w, b, _ in outcomes] == [(7, 1), (7, 13), (7, 2)]
    assert isinstance(outcomes[1][2], RuntimeError)
    assert set(cores_seen) == {core}


def test_a_stopped_worker_keeps_neither_its_executor_nor_its_owner():
    class Owner:
        def __init__(self):
            self.executor = Executor()
            self.worker = Worker(0, self.executor, available_cores(), self.warm_up, self.finished)

        def warm_up(self):
            return []

        def finished(self, *_):
            return None

    gc.disable()
    try:
        owner = Owner()
        owner.worker.submit(Work(batch(1)))
        owner.worker.stop()
        worker, kept = owner.worker, (weakref.ref(owner), weakref.ref(owner.executor))
        del owner
        assert [reference() for reference in kept] == [None, None]
        assert not worker.alive
    finally:
        gc.enable()


def test_the_next_batch_can_be_returned_instead_of_submitted(outcomes):
    done = threading.Event()

    def finished(_, ended, outcome):
        outcomes.append(outcome)
        if ended.batch_id < 5:
            return Work(batch(ended.batch_id + 1))
        done.set()
        return None

    worker = Worker(0, Executor(), available_cores(), list, finished)
    worker.submit(Work(batch(1)))
    assert done.wait(60)
    worker.stop()
    assert outcomes == [1, 2, 3, 4, 5]


def test_a_failed_warm_up_is_told_and_ends_the_thread():
    def warm_up():
        raise ValueError("no scores")

    worker = Worker(0, Executor(), available_cores(), warm_up, lambda *_: None)
    with pytest.raises(ValueError, match="no scores"):
        worker.started.result(60)
    worker.stop()
    assert not worker.alive


@pytest.mark.parametrize(("gives_way", "niceness"), [(False, 0), (True, 10)])
def test_a_worker_on_the_front_ends_cores_gives_way_to_it(gives_way, niceness):
    seen = []

    def warm_up():
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return []

    own = os.getpriority(os.PRIO_PROCESS, 0)
    worker = Worker(0, None, available_cores(), warm_up, lambda *_: None, gives_way=gives_way)
    worker.started.result(60)
    worker.stop()
    assert seen == [max(own, niceness)]
