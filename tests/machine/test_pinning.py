from __future__ import annotations

import contextlib
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.machine.pinning import (
    allot_cores,
    available_cores,
    beside_front_end,
    front_end_cores,
    interrupt_nobody,
    lower_priority,
    pin_thread,
    pinned,
    place_lanes,
    shared_with_front_end,
    threads_per_worker,
)
from hebe.server_configuration import Lane, Placement


def test_workers_get_cores_of_their_own_from_the_highest_down():
    assert allot_cores(2, 2, (0, 1, 2, 3, 4)) == [(3, 4), (1, 2)]
    assert front_end_cores([(3, 4), (1, 2)], (0, 1, 2, 3, 4)) == (0,)


def test_more_workers_than_cores_share_and_the_front_end_then_has_all():
    assert allot_cores(3, 1, (0, 1)) == [(1,), (0,), (1,)]
    assert front_end_cores([(1,), (0,), (1,)], (0, 1)) == (0, 1)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_every_worker_has_as_many_cores_as_asked(workers, cores_per_worker, cores):
    if cores_per_worker > cores:
        with pytest.raises(ValueError, match="may be used"):
            allot_cores(workers, cores_per_worker, range(cores))
        return
    allotted = allot_cores(workers, cores_per_worker, range(cores))
    assert len(allotted) == workers
    assert all(len(set(worker)) == cores_per_worker for worker in allotted)
    if workers * cores_per_worker <= cores:
        assert len({core for worker in allotted for core in worker}) == workers * cores_per_worker


@pytest.mark.parametrize(
    ("workers", "cores_per_worker", "shared", "threads"),
    [
        (1, 1, False, 2),
        (3, 1, False, 2),
        (4, 1, True, 1),
        (5, 1, True, 1),
        (1, 3, False, 1),
        (2, 2, True, 1),
    ],
)
def test_workers_with_a_core_apart_from_the_front_end_have_two_threads(workers, cores_per_worker, shared, threads):
    cores = (0, 2, 4, 6)
    allotted = allot_cores(workers, cores_per_worker, cores)
    assert shared_with_front_end(allotted, cores) == shared
    assert threads_per_worker(allotted, cores) == threads


WHOLE = Lane(Placement.MODEL_ON_HOST, 2, 1, 64)
PIPELINE = Lane(Placement.PIPELINE_ON_HOST, 1, 1, 64, 1)


@pytest.mark.parametrize(
    ("lane", "cores", "front_end", "threads", "gives_way"),
    [
        (WHOLE, 3, None, 2, False),
        (WHOLE, 2, None, 1, True),
        (WHOLE, 3, (0, 1), 1, True),
        (WHOLE, 3, (0,), 2, False),
        (PIPELINE, 3, None, 1, False),
        (PIPELINE, 2, None, 1, True),
    ],
)
def test_lanes_beside_a_front_end(lane, cores, front_end, threads, gives_way):
    lanes = place_lanes((lane,), range(cores))
    placed = beside_front_end(lanes, range(cores), front_end)
    assert (placed.lanes, placed.threads, placed.gives_way) == (lanes, threads, gives_way)
    assert placed.workers == lanes[0].all_workers == ((cores - 1,), (cores - 2,))


def test_no_worker_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        allot_cores(0, 1, (0,))


def test_a_thread_is_pinned_and_lowered_alone():
    cores = available_cores()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen = {}

    def run():
        pin_thread(cores[:1])
        lower_priority(10)
        seen["cores"] = available_cores()
        seen["nice"] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == {"cores": cores[:1], "nice": max(own, 10)}
    assert available_cores() == cores
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_a_thread_gets_its_cores_back():
    cores = available_cores()
    with contextlib.suppress(KeyError), pinned(cores[:1]):
        assert available_cores() == cores[:1]
        raise KeyError
    assert available_cores() == cores


def test_a_thread_that_interrupts_nobody_does_so_alone():
    before = os.sched_getscheduler(0)
    seen = []
    thread = threading.Thread(target=lambda: (interrupt_nobody(), seen.append(os.sched_getscheduler(0))))
    thread.start()
    thread.join()
    assert seen == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == before


def test_lanes_get_cores_from_the_highest_down_and_share_none():
    lanes = (Lane(Placement.PIPELINE_ON_HOST, 2, 2, 64, 1), Lane(Placement.MODEL_ON_HOST, 1, 1, 64))
    first, second = place_lanes(lanes, range(8))
    assert (first.workers, first.dense_workers, second.workers) == (((6, 7), (4, 5)), ((3,),), ((2,),))
    assert first.all_workers == ((6, 7), (4, 5), (3,))
    assert (first.lane, second.lane) == lanes
    with pytest.raises(ValueError, match="takes 6 cores, but only 5 may be used"):
        place_lanes(lanes, range(5))
