"""The ways that a query may go on one server.

What an idle worker leaves to others, part by part.
"""

import math

import pytest

from hebe.profile import LatencyProfile
from hebe.query import Batch
from hebe.scheduling.events import Availability, Stage, WorkerChanged, WorkerRole
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.lane_choice import FreeWay, PassingOver, Way, Ways
from hebe.scheduling.node.latency_prediction import LatencyPredictor

FAST, SLOW = WorkerRole(Stage.WHOLE, 100), WorkerRole(Stage.WHOLE, 50, lane=1)


SPARSE = WorkerRole(Stage.SPARSE, 100, lane=2)


def taking(item_s: float) -> LatencyPredictor:
    return LatencyPredictor(LatencyProfile((1, 100), (item_s, 100 * item_s), (0.0, 0.0)))


def two_ways() -> tuple[PlacedWorkers, Ways]:
    """Two fast places, 1 ms an item, and one that takes 10 ms."""
    workers = PlacedWorkers()
    for worker_id, role in enumerate((FAST, FAST, SLOW)):
        workers.change(WorkerChanged(worker_id, Availability.UP, (worker_id,), role))
    ways = Way(FAST, 2, taking(0.001), share=20 / 21), Way(SLOW, 1, taking(0.010), share=1 / 21)
    return workers, Ways(ways, workers)


def test_much_work_is_shared_by_throughput_and_one_query_goes_where_it_is_done_soonest():
    _, ways = two_ways()
    assert ways.places == 3
    assert ways.first_s(21) / 3 == pytest.approx(1 / (2 / 0.021 + 1 / 0.210))
    assert ways.way_s(21) == pytest.approx(0.021)


def test_what_runs_counts_by_how_many_batches_of_its_own_are_left():
    workers, ways = two_ways()
    workers.start(workers.find(0), Batch(0, (), 100), 0.1, 0.0)
    workers.start(workers.find(2), Batch(1, (), 100), 1.0, 0.0)
    assert ways.left_s(100, 0.05) / ways.first_s(100) == pytest.approx(0.05 / 0.1 + 0.95 / 1.0)
    assert ways.able(100, 0.5).left_s(100, 0.05) == pytest.approx(0.05)


@pytest.mark.parametrize(("allowed_s", "roles"), [(1.1, {FAST, SLOW}), (0.5, {FAST}), (0.05, {FAST, SLOW})])
def test_able_are_those_that_would_be_in_time_or_all_if_none_would(allowed_s, roles):
    workers, ways = two_ways()
    able = ways.able(100, allowed_s)
    assert {way.role for way in able.each} == roles
    assert sum(way.share for way in able.each) == pytest.approx(1.0)
    assert able.places == able.idle_places == (2 if roles == {FAST} else 3)
    workers.start(workers.find(1), Batch(0, (), 100), 0.1, 0.0)
    assert able.idle_places == able.places - 1


def test_a_pipeline_waits_for_its_dense_workers():
    way = Way(SPARSE, 1, taking(0.001), taking(0.002), 2)
    assert way.done_s(10) == pytest.approx(0.030)
    assert way.done_s(10, 0.1, 0.15) == pytest.approx(0.150 + 0.020)
    assert way.done_s(10, 0.1, 0.05) == pytest.approx(0.110 + 0.020)
    assert way.done_s(10, 0.1, 0.05, turns=3) == pytest.approx(0.130 + 0.020)


@pytest.mark.parametrize(
    ("items_ahead", "items", "first_s"),
    [(0, 40, 0.040), (120, 40, 0.100), (121, 41, 0.101), (600, 50, 0.350), (0, 100, 0.100), (100, 50, 0.100)],
)
def test_what_is_behind_others_is_done_after_full_batches_of_them(items_ahead, items, first_s):
    way, parts_ahead = Way(FAST, 2, taking(0.001)), -(-items_ahead // 10)
    assert way.done_behind_s(parts_ahead, items_ahead, items, 0.0, 0.0) == pytest.approx(first_s)
    assert way.done_behind_s(parts_ahead, items_ahead, items, 0.5, 0.0) == pytest.approx(0.5 + first_s)


def test_a_full_batch_costs_what_it_takes_and_not_what_its_items_would_alone():
    level = LatencyPredictor(LatencyProfile((1, 100), (0.2, 0.2), (0.0, 0.0)))
    assert Way(FAST, 1, level).done_behind_s(15, 150, 40, 0.0, 0.0) == pytest.approx(0.4)
    assert Way(WorkerRole(), 1, level).done_behind_s(15, 150, 40, 0.0, 0.0) == pytest.approx(0.2), "no bound"
    alone = Way(FAST, 1, level, fuses=False)
    assert alone.done_behind_s(15, 150, 40, 0.0, 0.0) == pytest.approx(16 * 0.2), "each in a batch of its own"


def test_the_dense_workers_have_what_is_ahead_to_do_too():
    way = Way(SPARSE, 2, taking(0.001), taking(0.010), dense_workers=1)
    # Four batches of 100 items are ahead, two on each place; their second halves take 4 s.
    assert way.done_behind_s(4, 400, 100, 0.0, 0.0) == pytest.approx(4.0 + 1.0)


def test_work_ahead_comes_in_full_batches_where_they_may_be_fused_and_else_as_it_waits():
    workers, _ = two_ways()
    level = LatencyPredictor(LatencyProfile((1, 100), (0.2, 0.2), (0.0, 0.0)))
    fused, alone = (Ways((Way(FAST, 2, level, fuses=fuses),), workers) for fuses in (True, False))
    assert fused.ahead_s(250, 10, 100) == pytest.approx(3 * 0.2)
    assert alone.ahead_s(250, 10, 100) == pytest.approx(25 * 0.2)
    assert alone.ahead_s(250, 400, 100) == pytest.approx(3 * 0.2), "larger queries are cut"
    assert alone.ahead_s(0, 0, 100) == 0.0


def free_way(item_s: float, free_in_s: float, places: int = 1, *, fuses: bool = True) -> FreeWay:
    takes = LatencyPredictor(LatencyProfile((1, 100), (item_s, 100 * item_s), (0.0, 0.0)))
    return FreeWay(Way(WorkerRole(Stage.WHOLE, 100), places, takes, fuses=fuses), free_in_s, 0.0)


def test_parts_in_turns_on_the_places_of_the_way():
    assert free_way(0.001, 0.5, places=2).done_s(10, parts=3) == pytest.approx(0.5 + 2 * 0.010)


def test_what_is_passed_over_is_ahead_of_what_comes_next():
    turn = PassingOver([free_way(0.001, 0.05)])
    assert [turn.leaves(20, 0.1, math.inf) for _ in range(4)] == [True, True, False, False], "70, 90, 110 ms elsewhere"


def test_the_soonest_of_several_others_counts():
    assert not PassingOver([free_way(0.001, 0.2)]).leaves(20, 0.1, math.inf)
    assert PassingOver([free_way(0.001, 0.2), free_way(0.002, 0.0)]).leaves(20, 0.1, math.inf)


def test_nothing_is_left_to_who_would_be_late():
    assert not PassingOver([free_way(0.001, 0.05)]).leaves(20, 0.1, budget_s=0.06)


def test_a_batch_ends_before_any_of_it_would_have_been_done_elsewhere():
    turn = PassingOver([free_way(0.001, 0.1)])
    assert not turn.leaves(20, 0.08, math.inf), "120 ms elsewhere"
    assert not turn.leaves(20, 0.12, math.inf)
    assert turn.leaves(10, 0.13, 0.2), "soon enough for itself would be 110 ms, and the first must not wait for it"
    assert not turn.leaves(10, 0.115, 0.2)


def test_when_it_looks_again():
    turn = PassingOver([free_way(0.001, 0.0, fuses=False)])
    assert turn.looks_again_s == math.inf
    assert turn.leaves(20, 0.8, math.inf)
    assert turn.leaves(20, 0.4, math.inf)
    assert turn.looks_again_s == pytest.approx(0.4 / 8), "eight times within what it would take itself"
    assert turn.looked_at_few
    assert not turn.is_over
    while turn.leaves(1, 10.0, math.inf):
        if turn.is_over:
            break
    assert turn.is_over
    assert not turn.looked_at_few
