"""What waits with the policies that decide about a window, whatever they decide."""

from dataclasses import dataclass

import pytest

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import WindowPolicy


@dataclass
class Prepared:
    sub_query: SubQuery


class Policy(WindowPolicy[Prepared]):
    """One query a worker in its window; those that the test names are late."""

    def __init__(self) -> None:
        super().__init__(1, lambda sub_query, _: Prepared(sub_query), idle_share=0.4)

    def set_aside(self, *query_ids: int) -> None:
        for entry in self._window.entries:
            if entry.sub_query.query.query_id in query_ids:
                self._late.add(entry.sub_query)
        self._window.entries = [e for e in self._window.entries if e.sub_query.query.query_id not in query_ids]


@pytest.fixture
def policy() -> Policy:
    """Of two workers: queries 0 to 4 have come, 0 is late, 1 is in the window, the others are behind it."""
    fleet = Fleet(["cpu"])
    fleet.add(0, "cpu", 2)
    policy = Policy()
    policy._window.resize(fleet)
    for query_id in range(5):
        policy.arrived(SubQuery(Query(query_id, 10, 0.0, deadline_s=1.0 + query_id), 0, 10), fleet, 0.0)
    policy.set_aside(0)
    return policy


def ids(parts: list[SubQuery]) -> list[int]:
    return [part.query.query_id for part in parts]


def test_all_that_waits_is_counted_wherever_it_waits(policy: Policy) -> None:
    assert policy.waiting == 5
    policy.withdraw(0)
    policy.withdraw(3)
    policy.withdraw(99)
    assert policy.waiting == 3
    assert ids(policy.withdraw_all()) == [1, 2, 4]
    assert policy.waiting == 0


def test_the_late_are_given_up_before_the_overdue_and_others_not_at_all(policy: Policy) -> None:
    given_up = [query.query_id for _ in range(3) if (query := policy.give_up(2.5)) is not None]
    assert given_up == [0, 1]
    assert policy.give_up(2.5) is None
    assert ids(policy.withdraw_all()) == [2, 3, 4]
