"""The workers of a lane start, or leave nothing behind."""

from __future__ import annotations

import itertools
import math

import pytest

from hebe.machine.pinning import PlacedLane, available_cores
from hebe.runtime import loaded_model
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.workers.gil_free_worker import Reports, UnlockedWorker
from hebe.runtime.workers.lane_workers import start_lane
from hebe.runtime.workers.worker import Worker
from hebe.server_configuration import Lane, Placement

CORES = available_cores()[:1]


def placed(lane: Lane) -> PlacedLane:
    return PlacedLane(lane, (CORES,) * lane.workers, (CORES,) * lane.dense_workers)


@pytest.fixture
def model(repository):
    loaded = LoadedModel.load(repository, "peers-dlrm")
    yield loaded
    loaded.close()


@pytest.fixture
def reports():
    heard = Reports(lambda *_: None)
    yield heard
    heard.close()


def test_a_lane_starts_its_workers_warmed_up(model, reports):
    lane = placed(Lane(Placement.PIPELINE_ON_HOST, 2, 1, 32, 1))
    ids = itertools.count(5)
    workers = start_lane(model, lane, 0, ids, reports, max_items=100)
    try:
        assert [(each.thread.worker_id, str(each.role.stage), each.number) for each in workers] == [
            (5, "dense", 2), (6, "sparse", 0), (7, "sparse", 1),
        ]  # fmt: skip
        for each in workers:
            measured = each.thread.started.result()
            assert max(items for items, _ in measured) == 32
            assert all(outcome.service_s > 0 for _, outcome in measured)
    finally:
        for each in workers:
            each.thread.stop()


def test_the_threads_of_a_worker_share_its_number(model, reports):
    workers = start_lane(
        model, placed(Lane(Placement.MODEL_ON_HOST, 2, 1, 8)), 0, itertools.count(), reports,
        max_items=100, threads=2,
    )  # fmt: skip
    for each in workers:
        each.thread.stop()
    assert [each.number for each in workers] == [0, 1, 0, 1]


@pytest.mark.parametrize(("long_s", "sizes"), [(math.inf, [1, 4, 16, 64]), (0.0, [1, 4])])
def test_workers_beside_others_run_each_size_once_until_one_takes_long_and_those_of_a_known_role_one_item(
    model, reports, monkeypatch, long_s, sizes
):
    """What serves on these cores meanwhile waits for no more than it must."""
    ran, rests = [], []
    monkeypatch.setattr(loaded_model, "_LONG_S", long_s)

    def new_unlocked_executor(*args, **kwargs):
        executor = type(model).new_unlocked_executor(model, *args, **kwargs)
        rehearse = executor.rehearse

        def counted(batch):
            ran.append(batch.items)
            return rehearse(batch)

        executor.rehearse = counted
        return executor

    monkeypatch.setattr(model, "new_unlocked_executor", new_unlocked_executor)
    monkeypatch.setattr(loaded_model.time, "sleep", rests.append)
    lane = placed(Lane(Placement.MODEL_ON_HOST, 1, 1, 64))
    workers = start_lane(
        model, lane, 0, itertools.count(), reports, max_items=100, threads=2, rehearsed=True
    )  # fmt: skip
    for each in workers:
        each.thread.stop()
    assert ran == [*sizes, 1]
    first, second = (each.thread.started.result() for each in workers)
    assert rests == [outcome.service_s for _, outcome in first], "the core is left to others as long as it was taken"
    assert ([items for items, _ in first], second) == (sizes, [])


@pytest.mark.parametrize("lane", [Lane(Placement.SPARSE_ON_HOST, 1, 1, 8, 1), Lane(Placement.MODEL_ON_HOST, 2, 1, 8)])
def test_a_lane_that_cannot_start_leaves_no_thread(model, reports, monkeypatch, threads_begun, lane):
    def fail(*_):
        raise ValueError("no scores")

    monkeypatch.setattr(model, "warm_up", fail)
    with pytest.raises(ValueError, match=r"no scores|no accelerator"):
        start_lane(model, placed(lane), 0, itertools.count(), reports, max_items=100)
    assert [name for name in threads_begun() if name.startswith("hebe-worker")] == []


def test_a_worker_that_cannot_be_made_leaves_none_of_those_beside_it(model, reports, monkeypatch, threads_begun):
    left = [model.new_unlocked_executor(8)]

    def new_unlocked_executor(*_, **__):
        if not left:
            raise MemoryError
        return left.pop()

    monkeypatch.setattr(model, "new_unlocked_executor", new_unlocked_executor)
    lane = placed(Lane(Placement.MODEL_ON_HOST, 2, 1, 8))
    with pytest.raises(MemoryError):
        start_lane(model, lane, 0, itertools.count(), reports, max_items=100)
    assert [name for name in threads_begun() if name.startswith("hebe-worker")] == []


def test_models_and_lanes_that_need_the_interpreter_have_workers_of_python(model, reports, monkeypatch):
    def kinds(lane: Lane) -> set[type[Worker]]:
        workers = start_lane(model, placed(lane), 0, itertools.count(), reports, max_items=100)
        for each in workers:
            each.thread.stop()
        return {type(each.thread) for each in workers}

    alone = Lane(Placement.MODEL_ON_HOST, 2, 1, 8)
    assert kinds(alone) == kinds(Lane(Placement.MODEL_ON_HOST, 1, 2, 8)) == {UnlockedWorker}
    assert kinds(Lane(Placement.PIPELINE_ON_HOST, 1, 1, 8, 1)) == {Worker}
    monkeypatch.setattr(model.hierarchy, "_names_rows", True)
    assert kinds(alone) == {Worker}
