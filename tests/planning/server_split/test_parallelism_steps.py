from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.server_split.space import ParallelismSpace, steps_around, steps_on_device, steps_on_host
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
HOT = Placement.HOT_SPARSE_ON_ACCELERATOR
SPACE = ParallelismSpace(6, (4, 8, 16), tuple(Placement), (1, 2), (0, 256, 1024))


def test_on_the_host_there_are_three_candidates_and_in_a_pipeline_seven():
    assert list(steps_on_host(SPACE, Lane(MODEL, 1, 2, 4))) == [
        Lane(MODEL, 1, 2, 8), Lane(MODEL, 2, 2, 4), Lane(MODEL, 2, 2, 8),
    ]  # fmt: skip
    assert len(list(steps_on_host(SPACE, Lane(PIPELINE, 1, 1, 4, 1)))) == 7


def test_steps_end_where_the_space_does():
    assert list(steps_on_host(SPACE, Lane(MODEL, 3, 2, 8))) == [Lane(MODEL, 3, 2, 16)]
    assert not list(steps_on_host(SPACE, Lane(MODEL, 3, 2, 16)))
    assert not list(steps_on_device(SPACE, Lane(HOT, 0, 1, 4, 2, 1024)))


def test_on_an_accelerator_the_most_fusion_is_one_step_away():
    assert list(steps_on_device(SPACE, Lane(HOT, 0, 1, 4, 1))) == [
        Lane(HOT, 0, 1, 4, 2), Lane(HOT, 0, 1, 4, 1, 256), Lane(HOT, 0, 1, 4, 2, 256), Lane(HOT, 0, 1, 4, 1, 1024),
    ]  # fmt: skip


def test_without_sparse_workers_nothing_is_said_of_their_batches_and_cores():
    """Else one server has many names, each of them measured."""
    alone = Lane(HOT, 0, 1, 4, 1)
    assert list(steps_on_host(SPACE, alone)) == [Lane(HOT, 1, 1, 4, 1)]
    assert {there.batch_size for there in steps_around(SPACE, alone)} == {4}
    fewer = [there for there in steps_around(SPACE, Lane(HOT, 1, 3, 16, 1)) if not there.workers]
    assert fewer == [alone]


def test_around_a_pipeline_cores_move_between_its_stages():
    around = list(steps_around(SPACE, Lane(PIPELINE, 2, 2, 8, 2)))
    assert Lane(PIPELINE, 1, 2, 8, 4) in around, "a sparse worker's two cores run the DenseNet"
    assert Lane(PIPELINE, 4, 1, 8, 2) in around, "the same allotment by smaller workers"
    assert Lane(PIPELINE, 2, 2, 4, 2) in around, "back to smaller batches"


@given(st.data())
def test_every_step_leads_elsewhere_within_the_space(data):
    lane = data.draw(st.sampled_from([each for placement in Placement for each in SPACE.lanes(placement)]))
    every = set(SPACE.lanes(lane.placement))
    device = steps_on_device(SPACE, lane) if lane.placement.on_accelerator else ()
    for there in (*steps_on_host(SPACE, lane), *device, *steps_around(SPACE, lane)):
        assert there != lane
        assert there in every
