"""Which batches are timed and what their profile says, with workers whose batches take what the test says."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.profiling.measurements import service_measurement
from hebe.profiling.measurements.driver_sender import inputs_of
from hebe.profiling.measurements.service_measurement import measure_service_times
from hebe.scheduling.events import Stage
from hebe.workload.key_skew import UniformKeys

from .test_driver_sender import SLA, SPEC, Model

POOL = QueryPool(inputs_of(SPEC, SLA), UniformKeys(), 40, np.random.default_rng(0), pool_bytes=100_000)


class Crew:
    """A worker whose batch number n of so many items takes `service_s(items, n)`."""

    def __init__(self, stage, batch_size, service_s, cores=((0, 1),)):
        self.role = SimpleNamespace(stage=stage, batch_size=batch_size)
        self.cores, self.service_s, self.batches, self.threads = cores, service_s, [], set()

    def new_runner(self):
        return self

    def rehearse(self, batch):
        (sub_query,) = batch.sub_queries
        assert sub_query.query.items == batch.items == len(sub_query.query.dense)
        self.batches.append(batch.items)
        self.threads.add(threading.get_ident())
        return SimpleNamespace(service_s=self.service_s(batch.items, self.batches.count(batch.items)))


@pytest.fixture
def measured(monkeypatch):
    """The profiles of crews, and the cores that each thread was pinned to."""
    pinned = []
    monkeypatch.setattr(service_measurement, "pin_thread", lambda cores: pinned.append((threading.get_ident(), cores)))
    monkeypatch.setattr(service_measurement.torch, "set_num_threads", lambda _: None)

    def measure(*crews, pool=POOL):
        monkeypatch.setattr(service_measurement, "crews_of", lambda *_: list(crews))
        return measure_service_times(Model(), None, pool, 4096), pinned

    return measure


def test_sizes_are_a_factor_of_four_apart_from_the_largest_batch_down_to_one(measured):
    crew = Crew(Stage.WHOLE, 48, lambda items, _: 1e-3 * items)
    profiles, _ = measured(crew)
    assert profiles["whole"].batch_sizes == (1, 3, 12, 48)
    assert profiles["whole"].service_s == pytest.approx((1e-3, 3e-3, 12e-3, 48e-3))
    assert profiles["whole"].spread_s == (0.0,) * 4


def test_no_batch_is_larger_than_what_the_pool_holds_or_is_worth_its_while(measured):
    few = QueryPool(inputs_of(SPEC, SLA), UniformKeys(), 40, np.random.default_rng(0), pool_bytes=1)
    assert measured(Crew(Stage.WHOLE, 1 << 20, lambda *_: 1.0), pool=few)[0]["whole"].batch_sizes[-1] == 40
    assert POOL.items < 1 << 20
    sizes = measured(Crew(Stage.WHOLE, 1 << 20, lambda *_: 1.0))[0]["whole"].batch_sizes
    assert sizes[-1] == min(POOL.items, 4096)


def test_the_first_batch_of_a_size_does_not_count(measured):
    profiles, _ = measured(Crew(Stage.WHOLE, 1, lambda _, number: 1.0 if number % 2 == 0 else 2.0))
    assert profiles["whole"].service_s == (1.0,), "eight of the fifteen that count"


def test_outliers_hardly_count(measured):
    profiles, _ = measured(
        Crew(Stage.WHOLE, 1, lambda _, number: 50.0 if number == 5 else 1.0 + 0.25 * (number % 3 - 1))
    )
    assert profiles["whole"].service_s == (1.0,)
    assert profiles["whole"].spread_s == (0.25,)


def test_every_stage_is_measured_on_its_own_workers_cores_by_a_thread_of_its_own(measured):
    sparse = Crew(Stage.SPARSE, 4, lambda *_: 1.0, cores=((0,), (1,)))
    dense = Crew(Stage.DENSE, 16, lambda *_: 2.0, cores=((2, 3),))
    profiles, pinned = measured(sparse, dense)
    assert {stage: profile.batch_sizes for stage, profile in profiles.items()} == {
        "sparse": (1, 4),
        "dense": (1, 4, 16),
    }
    assert [cores for _, cores in pinned] == [(0,), (2, 3)]
    assert threading.get_ident() not in sparse.threads | dense.threads, "a thread keeps the cores that it is pinned to"
    assert {thread for thread, _ in pinned} == sparse.threads | dense.threads


def test_what_a_batch_fails_with_is_raised(measured):
    def fails(_items, _number):
        raise RuntimeError("out of rows")

    before = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError, match="out of rows"):
        measured(Crew(Stage.WHOLE, 4, fails))
    assert os.sched_getaffinity(0) == before
