import itertools
from dataclasses import replace

import pytest

from hebe.planning.error import PlanningError
from hebe.planning.server_split.space import ParallelismSpace
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
SPARSE, HOT = Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR
SPACE = ParallelismSpace(8, (4, 8, 16), (MODEL,))


def test_every_lane_is_in_the_space_once_and_all_cores_are_used_by_some():
    space = ParallelismSpace(5, (4, 16), tuple(Placement), (1, 2), (0, 256))
    every = [each for placement in Placement for each in space.lanes(placement)]
    assert len(every) == len(set(every)) == space.size()
    assert all(each in space for each in every)
    for placement, dense in itertools.product((MODEL, PIPELINE), range(5)):
        cores = {each.workers * each.cores_per_worker for each in every if each.dense_workers == dense}
        assert placement is MODEL or max(cores) == 5 - dense


def test_of_many_cores_those_lanes_may_be_left_out_that_leave_some_idle():
    space = ParallelismSpace(8, (16,), cores_per_worker=(1, 4, 16), most_spare=0)
    lanes = [lane for placement in space.placements for lane in space.lanes(placement)]
    whole = [(lane.workers, lane.cores_per_worker) for lane in lanes if not lane.dense_workers]
    assert whole == [(8, 1), (2, 4)]
    assert {(lane.workers, lane.cores_per_worker) for lane in lanes if lane.dense_workers == 3} == {(5, 1), (1, 4)}
    assert space.size() == len(lanes) == 2 + 7 + 4
    with_one = replace(space, most_spare=1)
    whole = [(lane.workers, lane.cores_per_worker) for lane in with_one.lanes(MODEL)]
    assert whole == [(7, 1), (8, 1), (1, 4), (2, 4)]


def test_the_first_lane_is_the_least_of_its_placement():
    space = ParallelismSpace(5, (4, 16), tuple(Placement), (2, 3), (256, 512))
    assert space.first_lane(MODEL, 2) == Lane(MODEL, 1, 2, 4)
    assert space.first_lane(PIPELINE, 1) == Lane(PIPELINE, 1, 1, 4, 1)
    assert [space.first_lane(placement, 1) for placement in (SPARSE, HOT)] == [
        Lane(placement, 1, 1, 4, 2, 256) for placement in (SPARSE, HOT)
    ]
    assert space.first_lane(PIPELINE, 5) not in space


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"cores": 0}, "cores is 0"),
        ({"batch_sizes": ()}, "batch_sizes is"),
        ({"batch_sizes": (8, 4)}, "ascending"),
        ({"co_located": (2, 2)}, "co_located"),
        ({"placements": ()}, "placements is empty"),
    ],
)
def test_a_space_without_a_configuration_is_refused(change, fault):
    with pytest.raises(PlanningError, match=fault):
        replace(SPACE, **change)


@pytest.mark.parametrize(
    ("configuration", "holds"),
    [
        ((Lane(MODEL, 2, 2, 16),), True),
        ((Lane(MODEL, 2, 3, 16),), False),
        ((Lane(MODEL, 2, 2, 32),), False),
        ((Lane(PIPELINE, 1, 1, 16, 1),), False),
        ((Lane(HOT, 0, 1, 256, 2, 1024), Lane(PIPELINE, 1, 1, 4, 1)), True),
        ((Lane(HOT, 0, 1, 256, 2, 1024), Lane(PIPELINE, 1, 1, 32, 1)), False),
        ((Lane(HOT, 0, 1, 256, 2, 1024), Lane(MODEL, 4, 1, 4)), False),
        ((Lane(HOT, 0, 1, 256, 2, 1024), Lane(HOT, 0, 1, 256, 2, 1024)), False),
        ((Lane(HOT, 0, 1, 256, 2, 512),), False),
        ((Lane(HOT, 0, 1, 256, 3, 1024),), False),
        ((Lane(MODEL, 1, 1, 16), Lane(MODEL, 1, 1, 16)), False),
    ],
)
def test_a_space_knows_what_may_be_tried(configuration, holds):
    """Beside an accelerator's lane the whole model or a pipeline runs on what cores it leaves, whatever else may."""
    space = ParallelismSpace(4, (4, 16), (MODEL, HOT), (1, 2), (0, 1024))
    assert space.holds(configuration) == holds


def test_a_space_holds_every_lane_of_it():
    space = ParallelismSpace(4, (4, 16), tuple(Placement), (1, 2), (0, 1024))
    assert all(space.holds((lane,)) for placement in Placement for lane in space.lanes(placement))
