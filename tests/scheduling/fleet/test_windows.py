from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import ArrivalWindow, LateQueries, without

from .two_types import fleet_of


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


@dataclass
class Entry:
    sub_query: SubQuery


def late(*query_ids: int, idle_share: float = 0.2) -> LateQueries:
    queries = LateQueries(idle_share)
    for query_id in query_ids:
        queries.add(SubQuery(Query(query_id, 10, 0.0), 0, 10))
    return queries


def test_they_go_while_more_than_a_share_of_the_workers_is_idle() -> None:
    fleet = fleet_of(0, 5, FirstComeFirstServed())
    assert not late().may_go(fleet)
    assert late(1).may_go(fleet)
    for _ in range(4):
        fleet.take(1)
    assert not late(1).may_go(fleet)
    assert late(1, idle_share=0.1).may_go(fleet)


def test_who_has_been_late_longest_goes_first_and_its_rest_stays_first() -> None:
    queries = late(1, 2)
    part = queries.take()
    queries.put_back(SubQuery(part.query, 4, 10))
    taken = [queries.take() for _ in range(2)]
    assert [(each.query.query_id, each.start) for each in taken] == [(1, 4), (2, 0)]


def test_they_are_given_up_in_that_order_and_withdrawn_one_by_one_or_all() -> None:
    fleet = fleet_of(0, 1, FirstComeFirstServed())
    window: ArrivalWindow[Entry] = ArrivalWindow(2, lambda sub_query, _: Entry(sub_query))
    for query_id, deadline_s in ((1, 1.0), (5, 1.0), (6, 9.0)):
        window.add(SubQuery(Query(query_id, 10, 0.0, deadline_s), 10, 20), fleet)
    queries = late(1, 2, 3, 1, 2, 4)
    assert queries.give_up(window, 0.0).query_id == 1  # type: ignore[union-attr]
    assert len(queries) == 4, "all parts of it"
    queries.withdraw(2)
    assert [part.query.query_id for part in queries.withdraw_all()] == [3, 4]
    window.refill(fleet)
    assert queries.give_up(window, 2.0).query_id == 5  # type: ignore[union-attr]
    assert (queries.give_up(window, 2.0), len(window)) == (None, 1)
