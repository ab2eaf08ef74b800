from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import ArrivalWindow, without


@dataclass
class Prepared:
    sub_query: SubQuery


def part(query_id: int, first_item: int = 0) -> SubQuery:
    return SubQuery(Query(query_id, 20, 0.0, deadline_s=1.0), first_item, 10)


def window_for(workers: int) -> tuple[ArrivalWindow[Prepared], Fleet]:
    fleet = Fleet(["cpu"])
    if workers:
        fleet.add(0, "cpu", workers)
    window = ArrivalWindow(2, lambda sub_query, _: Prepared(sub_query))
    window.resize(fleet)
    return window, fleet


def ids(window: ArrivalWindow[Prepared]) -> list[int]:
    return [entry.sub_query.query.query_id for entry in window.entries]


def test_only_the_first_are_prepared_and_the_others_follow_into_the_room_that_there_is() -> None:
    window, fleet = window_for(workers=2)
    for query_id in range(7):
        window.add(part(query_id), fleet)
    assert ids(window) == [0, 1, 2, 3]
    assert len(window) == 7
    del window.entries[1]
    window.add(part(7), fleet)  # not past those behind
    window.refill(fleet)
    assert ids(window) == [0, 2, 3, 4]
    assert len(window) == 7


def test_the_window_follows_the_fleet_and_is_never_shut() -> None:
    window, fleet = window_for(workers=0)
    for query_id in range(3):
        window.add(part(query_id), fleet)
    assert ids(window) == [0]
    fleet.add(0, "cpu", 1)
    window.resize(fleet)
    window.refill(fleet)
    assert ids(window) == [0, 1]


def test_a_withdrawn_query_leaves_with_all_its_parts() -> None:
    window, fleet = window_for(workers=1)
    for query_id in (0, 1, 0, 2, 0):
        window.add(part(query_id), fleet)
    window.withdraw(0)
    window.refill(fleet)
    assert ids(window) == [1, 2]
    assert [sub_query.query.query_id for sub_query in window.withdraw_all()] == [1, 2]
    assert len(window) == 0


@given(st.lists(st.integers(0, 9)), st.integers(0, 3), st.data())
def test_the_order_of_arrival_is_kept_and_nothing_is_lost(
    arrivals: list[int], workers: int, data: st.DataObject
) -> None:
    window, fleet = window_for(workers)
    left = []
    for query_id in arrivals:
        window.add(part(query_id), fleet)
        if window.entries and data.draw(st.booleans()):
            left.append(window.entries.pop(0).sub_query.query.query_id)
            window.refill(fleet)
    left += [sub_query.query.query_id for sub_query in window.withdraw_all()]
    assert left == arrivals


def test_without_keeps_the_order() -> None:
    queue = deque([part(1), part(2), part(1, 10), part(3)])
    assert [sub_query.query.query_id for sub_query in without(queue, 1)] == [2, 3]
