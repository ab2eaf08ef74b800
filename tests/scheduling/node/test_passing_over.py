"""What an idle worker leaves to others, part by part."""

import math

import pytest

from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.node.lane_choice import FreeWay, PassingOver, Way
from hebe.scheduling.node.latency_prediction import LatencyPredictor


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
