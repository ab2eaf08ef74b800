import math

from hypothesis import given
from hypothesis import strategies as st

from hebe.simulation.event_queue import EventQueue


@given(st.lists(st.integers(0, 5)))
def test_events_come_in_time_and_at_one_time_in_the_order_they_were_announced(times: list[int]) -> None:
    events: EventQueue[int] = EventQueue()
    for number, at in enumerate(times):
        events.push(float(at), number)
    assert len(events) == len(times)
    popped = []
    while events:
        assert events.next_s <= max(times)
        popped.append(events.pop())
    assert popped == sorted((float(at), number) for number, at in enumerate(times))
    assert events.next_s == math.inf


def test_events_of_one_time_need_not_be_comparable() -> None:
    events: EventQueue[object] = EventQueue()
    first, second = object(), object()
    events.push(1.0, first)
    events.push(1.0, second)
    assert [events.pop()[1], events.pop()[1]] == [first, second]
