from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import Batch
from hebe.scheduling.events import Availability, Stage, WorkerChanged, WorkerRole
from hebe.scheduling.node.core_slots import PlacedWorker, PlacedWorkers

BATCH = Batch(0, (), 1)


def workers(*cores: tuple[int, ...]) -> tuple[PlacedWorkers, list[PlacedWorker]]:
    known = PlacedWorkers()
    taken_in = [known.change(WorkerChanged(worker_id, Availability.UP, at)) for worker_id, at in enumerate(cores)]
    return known, [worker for worker in taken_in if worker is not None]


def test_workers_on_the_same_cores_share_a_place_and_others_have_their_own():
    known, (first, second, third, fourth, fifth) = workers((3,), (2,), (3,), (), ())
    assert first.place is third.place
    assert len({first.place, second.place, fourth.place, fifth.place}) == known.idle_places == 4


def test_a_place_is_shared_evenly_among_what_runs():
    known, (first, second) = workers((0,), (0,))
    known.start(first, BATCH, expected_s=1.0, now=10.0)
    assert first.place.left_s(10.4) == pytest.approx(0.6)
    known.start(second, BATCH, expected_s=2.0, now=10.4)
    assert first.place.left_s(10.8) == pytest.approx(0.4 + 1.8)
    assert known.idle_places == 0
    assert known.end(first, 11.6) == pytest.approx(1.0 / 1.6)
    assert second.place.left_s(11.6) == pytest.approx(1.4)
    assert known.end(second, 13.0) == pytest.approx(2.0 / 2.6)
    known.start(second, BATCH, expected_s=0.5, now=20.0)
    assert second.place.left_s(20.0) == pytest.approx(0.5)
    assert known.end(second, 20.0) == 1.0
    assert known.running == []


def test_what_takes_longer_than_expected_has_nothing_left_and_takes_nothing_from_the_other():
    known, (first, second) = workers((0,), (0,))
    known.start(first, BATCH, expected_s=0.1, now=0.0)
    known.start(second, BATCH, expected_s=2.0, now=0.0)
    assert first.place.left_s(1.0) == pytest.approx(1.5)
    assert first.place.free_in_s(1.0) == pytest.approx(1.5 + 0.4), "who waits for it goes by as much again"


def test_a_role_is_free_as_soon_as_the_first_of_its_places():
    known, (first, second) = workers((0,), (1,))
    own, other = WorkerRole(), WorkerRole(lane=1)
    known.change(WorkerChanged(2, Availability.UP, (2,), other))
    assert known.every_role == {own, other}
    known.start(first, BATCH, 1.0, 0.0)
    known.start(second, BATCH, 0.4, 0.0)
    assert known.free_in_s(own, 0.1) == pytest.approx(0.3)
    assert known.free_in_s(own, 0.5) == pytest.approx(0.1), "it should have been over a while ago"
    assert known.free_in_s(other, 0.1) == 0.0
    known.change(WorkerChanged(2, Availability.DRAINING))
    assert known.free_in_s(other, 0.1) == float("inf"), "it takes no queries any more"


def test_of_the_idle_workers_the_one_beside_which_the_least_runs_is_first():
    known, (first, second, third, fourth) = workers((0,), (0,), (1,), (2,))
    known.start(first, BATCH, 1.0, 0.0)
    known.start(fourth, BATCH, 1.0, 0.0)
    assert known.idle == [(third, 2)]
    known.change(WorkerChanged(2, Availability.DRAINING))
    assert known.idle == [(second, 1)]
    assert known.idle_places == 0
    assert known.up == [first, second, fourth]
    known.start(second, BATCH, 1.0, 0.0)
    assert known.idle == []


def test_idle_workers_are_told_by_their_role():
    known, (first, second) = workers((0,), (1,))
    other = known.change(WorkerChanged(2, Availability.UP, (2,), WorkerRole(lane=1)))
    assert known.idle == [(first, 2), (other, 1)]
    known.start(first, BATCH, 1.0, 0.0)
    known.start(other, BATCH, 1.0, 0.0)
    assert known.idle == [(second, 1)]


ROLES = [WorkerRole(), WorkerRole(Stage.SPARSE, lane=1), WorkerRole(Stage.DENSE, lane=1)]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["up", "draining", "lost", "start", "end"])), max_size=40))
def test_idle_places_are_those_that_take_queries_and_run_nothing_whatever_happens(steps):
    known = PlacedWorkers()
    for now, (worker_id, step) in enumerate(steps):
        worker = known.find(worker_id)
        if step in {"up", "draining"}:
            known.change(WorkerChanged(worker_id, Availability(step), (worker_id % 3,), ROLES[worker_id % 3]))
        elif worker is not None and step == "start" and worker.batch is None:
            known.start(worker, BATCH, 1.0, float(now))
        elif worker is not None and step != "start":
            if worker.batch is not None:
                known.end(worker, float(now))
            if step == "lost":
                known.remove(worker)
        assert known.idle_places == sum(not place.running for place in known.places)
        assert sum(count for _, count in known.idle) == sum(each.batch is None for each in known.up)
        assert {each for places in known.places_of.values() for each in places} == set(known.places)


def test_a_worker_that_is_gone_stays_so_until_it_appears_anew():
    known, (first,) = workers((0,))
    known.remove(first)
    assert not known
    assert known.find(0) is None
    assert known.change(WorkerChanged(0, Availability.LOST)) is None
    again = known.change(WorkerChanged(0, Availability.UP, (0,)))
    assert again is not first
    assert known.up == [again]


def test_pipelines_run_while_any_of_their_workers_does_and_one_takes_queries():
    known = PlacedWorkers()
    sparse, dense, whole = (
        known.change(WorkerChanged(worker_id, Availability.UP, (), WorkerRole(stage)))
        for worker_id, stage in enumerate((Stage.SPARSE, Stage.DENSE, Stage.WHOLE))
    )
    known.start(whole, BATCH, 1.0, 0.0)
    assert not known.pipelines_run
    for worker in (sparse, dense):
        known.start(worker, BATCH, 1.0, 0.0)
        assert known.pipelines_run
        known.end(worker, 1.0)
        assert not known.pipelines_run
    known.start(dense, BATCH, 1.0, 0.0)
    known.change(WorkerChanged(0, Availability.DRAINING))
    assert not known.pipelines_run, "queries go to the other only"
