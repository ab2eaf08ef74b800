"""What is timed for the predictions of a space, by a clock that writes down what it is asked for."""

from dataclasses import replace

import pytest

from hebe.planning.server_split.space import ParallelismSpace
from hebe.profile import LatencyProfile
from hebe.profiling.prediction import predictor
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes

SLA = SlaTarget(20.0, 95.0)
STAGES = {
    Placement.MODEL_ON_HOST: (Stage.WHOLE,),
    Placement.PIPELINE_ON_HOST: (Stage.SPARSE, Stage.DENSE),
    Placement.SPARSE_ON_HOST: (Stage.SPARSE, Stage.DENSE),
    Placement.HOT_SPARSE_ON_ACCELERATOR: (Stage.SPARSE, Stage.DENSE),
}


class Clock:
    """Every stage takes 1 ms a batch and 20 us an item on each of a worker's cores."""

    def __init__(self):
        self.asked = []

    def __call__(self, lane, batch_sizes):
        self.asked.append((lane, list(batch_sizes)))
        sizes = tuple(batch_sizes)
        seconds = tuple(1e-3 + 20e-6 * size / lane.cores_per_worker for size in sizes)
        stages = STAGES[lane.placement] if lane.workers else (Stage.WHOLE,)
        return {stage: LatencyProfile(sizes, seconds, (0.0,) * len(sizes)) for stage in stages}


def test_every_kind_is_timed_with_one_worker_and_with_as_many_as_there_is_room_for():
    clock = Clock()
    predictor(clock, ParallelismSpace(4, (16, 64, 256)), FixedSizes(64), SLA)
    timed = {(lane.placement, lane.cores_per_worker, lane.workers, lane.dense_workers) for lane, _ in clock.asked}
    host, pipeline = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
    assert timed == {
        (host, 1, 1, 0), (host, 1, 4, 0), (host, 2, 1, 0), (host, 2, 2, 0), (host, 3, 1, 0), (host, 4, 1, 0),
        (pipeline, 1, 1, 1), (pipeline, 1, 2, 2), (pipeline, 2, 1, 1), (pipeline, 2, 1, 2), (pipeline, 3, 1, 1),
    }  # fmt: skip


def test_of_many_cores_per_worker_some_are_timed_and_the_others_lie_between():
    clock = Clock()
    space = ParallelismSpace(16, (64, 256), (Placement.MODEL_ON_HOST,))
    predicted = predictor(clock, space, FixedSizes(256), SLA)
    assert sorted({lane.cores_per_worker for lane, _ in clock.asked}) == [1, 2, 3, 4, 8, 16]
    qps = [predicted((Lane(Placement.MODEL_ON_HOST, 1, each, 256),)).qps for each in range(4, 17)]
    assert qps == sorted(qps)
    assert qps[0] < qps[2] < qps[4] < qps[8] < qps[12], "8 and 16 cores, 6 between 4 and 8, 12 between them"
    for each in (6, 12):  # the clock's times are linear in one over the cores, as what lies between is taken to be
        exact = predictor(Clock(), replace(space, cores_per_worker=(each,)), FixedSizes(256), SLA)
        lane = (Lane(Placement.MODEL_ON_HOST, 1, each, 256),)
        assert predicted(lane).qps == pytest.approx(exact(lane).qps)


def test_where_all_lanes_use_all_cores_that_is_how_they_are_timed():
    clock = Clock()
    space = ParallelismSpace(4, (16, 256), cores_per_worker=(1, 2), most_spare=0)
    predicted = predictor(clock, space, FixedSizes(64), SLA)
    assert all(lane.cores == 4 for lane, _ in clock.asked)
    assert len(clock.asked) == 4
    for placement in space.placements:
        for lane in space.lanes(placement):
            assert predicted((lane,)).qps > 0


def test_what_the_host_may_run_beside_an_accelerator_is_timed_too():
    hot = Placement.HOT_SPARSE_ON_ACCELERATOR
    predicted = predictor(Clock(), ParallelismSpace(4, (64,), (hot,), (1, 2), (0,)), FixedSizes(64), SLA)
    alone = Lane(hot, 0, 1, 64, 1)
    for beside in (Lane(Placement.MODEL_ON_HOST, 3, 1, 64), Lane(Placement.PIPELINE_ON_HOST, 1, 2, 64, 1)):
        assert predicted((alone, beside)).qps > predicted((alone,)).qps


def test_batches_are_timed_a_factor_apart_and_below_the_smallest():
    clock = Clock()
    predictor(clock, ParallelismSpace(1, (64, 256, 1024)), FixedSizes(64), SLA)
    assert {tuple(sizes) for _, sizes in clock.asked} == {(16, 64, 256, 1024)}
    clock = Clock()
    predictor(clock, ParallelismSpace(1, (1, 2)), FixedSizes(1), SLA)
    assert {tuple(sizes) for _, sizes in clock.asked} == {(1, 2)}


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_every_configuration_of_the_space_can_be_predicted(cores):
    placements = (Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST)[: 1 if cores == 1 else 2]
    space = ParallelismSpace(cores, (64, 256), placements)
    predicted = predictor(Clock(), space, FixedSizes(64), SLA)
    reached = {lane: predicted((lane,)).qps for placement in placements for lane in space.lanes(placement)}
    assert reached
    assert all(qps > 0 for qps in reached.values())
    best = max(reached, key=lambda lane: reached[lane])
    assert best.cores == cores, "what uses every core serves most"


def test_lanes_of_an_accelerator_are_timed_with_the_most_that_it_fuses():
    clock = Clock()
    placements = (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR)
    predictor(
        clock, ParallelismSpace(2, (64,), placements, co_located=(1, 2), fused_items=(0, 4096)), FixedSizes(8), SLA
    )
    assert {lane.fused_items for lane, _ in clock.asked if lane.placement.on_accelerator} == {4096}
    alone = {(lane.placement, lane.dense_workers) for lane, _ in clock.asked if not lane.workers}
    assert alone == {(Placement.HOT_SPARSE_ON_ACCELERATOR, dense) for dense in (1, 2)}
