from dataclasses import dataclass

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.windows import ArrivalWindow, LateQueries

from .two_types import fleet_of


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
