"""Times of the stages, and of what dense workers have ahead of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from hebe.profile import LatencyProfile
from hebe.query import Batch
from hebe.scheduling.events import Availability, Stage, WorkerChanged, WorkerRole
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.service_times import ServiceTimes
from hebe.scheduling.node.stage_queue import HandOver

WHOLE, SPARSE, DENSE = WorkerRole(), WorkerRole(Stage.SPARSE, 100), WorkerRole(Stage.DENSE, 100)
PROFILES = {
    Stage.WHOLE: LatencyProfile((1, 100), (0.003, 0.300), (0.0, 0.0)),
    Stage.SPARSE: LatencyProfile((1, 100), (0.001, 0.100), (0.0, 0.0)),
    Stage.DENSE: LatencyProfile((1, 100), (0.002, 0.200), (0.0, 0.0)),
}


def times(
    *roles: WorkerRole, profiles: Mapping[Stage, LatencyProfile] = MappingProxyType({})
) -> tuple[PlacedWorkers, ServiceTimes]:
    workers = PlacedWorkers()
    for worker_id, role in enumerate(roles):
        workers.change(WorkerChanged(worker_id, Availability.UP, (worker_id,), role))
    return workers, ServiceTimes(workers, {**PROFILES, **profiles})


@pytest.mark.parametrize(
    ("roles", "first_s", "way_s"),
    [
        ((WHOLE, WHOLE), 0.150, 0.150),
        ((SPARSE, SPARSE, DENSE), 0.050, 0.150),
        ((WHOLE, SPARSE, DENSE, DENSE), 0.075, 0.150),
        ((), 0.150, 0.150),
    ],
)
def test_a_query_goes_the_way_that_the_workers_have(roles, first_s, way_s):
    _, of = times(*roles)
    assert of.ways.first_s(50) == pytest.approx(first_s)
    assert of.ways.way_s(50) == pytest.approx(way_s)


def test_a_slow_place_takes_little_and_so_adds_little_to_the_time_of_all():
    level = {Stage.WHOLE: LatencyProfile((1, 100), (9.0, 9.0), (0.0, 0.0))}
    workers, of = times(WHOLE, SPARSE, DENSE, DENSE, profiles=level)
    # At 100 ms a batch the sparse worker takes 90 of 91, the other, at 9 s, one.
    assert of.ways.first_s(100) == pytest.approx((90 * 0.1 + 9.0) / 91)
    assert of.ways.first_s(100) / 2 == pytest.approx(1 / (1 / 0.1 + 1 / 9.0)), "the throughputs of both"
    workers.change(WorkerChanged(9, Availability.UP, (9,), WHOLE))
    assert of.ways.first_s(100) / 3 == pytest.approx(1 / (1 / 0.1 + 2 / 9.0))
    for _ in range(500):
        of.observe(WHOLE, 100, 0.4)
    assert of.ways.first_s(100) / 3 == pytest.approx(1 / (1 / 0.1 + 2 / 0.4), rel=0.01)


@pytest.mark.parametrize(("fuse", "share"), [(False, 5 / (5 + 10 / 3)), (True, 10 / (10 + 10 / 3))])
def test_dense_workers_may_hold_sparse_ones_back(fuse, share):
    """At 200 ms each batch, of 100 items or, fused, of 1000."""
    level = {Stage.DENSE: LatencyProfile((1, 100, 1000), (0.2, 0.2, 0.2), (0.0, 0.0, 0.0))}
    _, of = times(WHOLE, SPARSE, WorkerRole(Stage.DENSE, 1000, fuse), profiles=level)
    assert of.ways.first_s(100) == pytest.approx(share * 0.1 + (1 - share) * 0.3)
    assert of.ways.way_s(100) == pytest.approx(0.3)


def test_what_is_left_from_one_worker_on():
    _, of = times(WHOLE, SPARSE, DENSE)
    assert [of.rest_s(role, 50) for role in (WHOLE, SPARSE, DENSE)] == pytest.approx([0.150, 0.150, 0.100])
    assert [of.batch_s(role, 50) for role in (WHOLE, SPARSE, DENSE)] == pytest.approx([0.150, 0.050, 0.100])


@pytest.mark.parametrize("other", [SPARSE, WorkerRole(Stage.DENSE, 100, lane=1)])
def test_roles_are_learned_apart(other):
    _, of = times(SPARSE, DENSE, other)
    for _ in range(500):
        of.observe(DENSE, 100, 0.4)
        of.observe(DENSE, 1, 0.004)
    assert of.batch_s(DENSE, 100) == pytest.approx(0.4, rel=0.1)
    assert of.batch_s(other, 100) == pytest.approx(0.1 if other is SPARSE else 0.2)


def test_what_is_learned_counts_at_once_and_is_forgotten_with_its_workers():
    workers, of = times(WHOLE)
    assert of.ways.first_s(100) == pytest.approx(0.3)
    for _ in range(500):
        of.observe(WHOLE, 100, 0.4)
    assert of.ways.first_s(100) == pytest.approx(0.4)
    of.forget_but(())
    assert of.batch_s(WHOLE, 100) == pytest.approx(0.4), "with no worker nothing took their place"
    new = WorkerRole(Stage.WHOLE, 100, lane=1)
    workers.change(WorkerChanged(1, Availability.UP, (1,), new))
    workers.remove(workers.find(0))
    of.forget_but(workers.every_role)
    assert [way.role for way in of.ways.each] == [new]
    assert of.batch_s(WHOLE, 100) == pytest.approx(0.3), "the profile's"


def test_what_cannot_be_finished_gets_nothing():
    workers, of = times(WHOLE, SPARSE, DENSE)
    assert {way.role for way in of.ways.each} == {WHOLE, SPARSE}
    workers.remove(workers.find(2))
    assert {way.role: way.share for way in of.ways.each} == {WHOLE: 1.0}
    assert workers.idle_places == 1


def test_dense_workers_have_ahead_what_runs_what_was_handed_on_and_what_will_be():
    workers, of = times(SPARSE, DENSE, DENSE)
    hand_over = HandOver()
    assert of.dense_ahead_s(hand_over, 0, 100, 0.0) == {0: 0}
    hand_over.begin(0)
    hand_over.hand(0, Batch(0, (), 60))
    assert of.dense_ahead_s(hand_over, 0, 100, 0.0) == pytest.approx({0: 0.12 / 2})
    sparse, dense, _ = (workers.find(worker_id) for worker_id in range(3))
    workers.start(sparse, Batch(1, (), 40), 0.04, 0.0)
    workers.start(dense, Batch(2, (), 100), 0.2, 0.0)
    assert of.dense_ahead_s(hand_over, 100, 100, 0.05) == pytest.approx({0: (0.15 + 0.2 + 0.2) / 2})
    whole = times(WHOLE)[1]
    assert whole.dense_ahead_s(hand_over, 100, 100, 0.0) == {}


def test_a_dense_worker_that_fuses_takes_what_is_ahead_in_few_batches():
    """Each of which takes 200 ms, of whatever size, as on an accelerator."""
    level = {Stage.DENSE: LatencyProfile((1, 100, 1000), (0.2, 0.2, 0.2), (0.0, 0.0, 0.0))}
    fused = WorkerRole(Stage.DENSE, 1000, fuse=True)
    workers, of = times(SPARSE, fused, profiles=level)
    hand_over = HandOver()
    for _ in range(5):
        hand_over.begin(0)
        hand_over.hand(0, Batch(0, (), 100))
    sparse, dense = (workers.find(worker_id) for worker_id in range(2))
    workers.start(sparse, Batch(1, (), 100), 0.1, 0.0)
    assert of.dense_ahead_s(hand_over, 0, 100, 0.0) == pytest.approx({0: 0.2})
    assert of.dense_ahead_s(hand_over, 399, 100, 0.0) == pytest.approx({0: 0.2})
    assert of.dense_ahead_s(hand_over, 401, 100, 0.0) == pytest.approx({0: 0.4})
    workers.start(dense, Batch(2, (), 1000), 0.2, 0.0)
    assert of.dense_ahead_s(hand_over, 0, 100, 0.15) == pytest.approx({0: 0.05 + 0.2})


def test_of_two_lanes_each_has_ahead_what_is_its_own_and_its_share_of_what_waits():
    level = {Stage.DENSE: LatencyProfile((1, 100, 1000), (0.2, 0.2, 0.2), (0.0, 0.0, 0.0))}
    fused, plain = WorkerRole(Stage.DENSE, 1000, fuse=True), WorkerRole(Stage.DENSE, 100, fuse=False, lane=1)
    _, of = times(SPARSE, fused, WorkerRole(Stage.SPARSE, 100, lane=1), plain, profiles=level)
    hand_over = HandOver()
    for lane in (0, 1):
        hand_over.begin(lane)
        hand_over.hand(lane, Batch(0, (), 100))
    assert of.dense_ahead_s(hand_over, 200, 100, 0.0) == pytest.approx({0: 0.2, 1: 0.4})
