from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.access import refusal_throttle as refusal_pace
from hebe.serving.access.refusal_throttle import RefusalPace


class Front:
    """An event loop with a pace: time passes, of which the thread works a part."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked_s = 3.0
        self.pace = RefusalPace(lambda: self.now, lambda: self.worked_s)

    def refuse(self, gone_s: float, worked_s: float, workers: int = 1) -> float:
        self.now += gone_s
        self.worked_s += worked_s
        return self.pace.refused(workers)


def test_who_is_refused_now_and_then_is_not_left_alone_however_much_else_is_done():
    front = Front()
    for _ in range(1000):
        for _ in range(9):
            front.pace.answered()
        assert front.refuse(gone_s=0.01, worked_s=0.009) == 0.0


def test_what_was_done_before_the_first_refusal_is_no_work_on_it():
    front = Front()
    assert front.refuse(gone_s=60.0, worked_s=50.0) == 0.0
    assert front.refuse(gone_s=2.0, worked_s=1.9) == 0.0


def test_so_much_is_refused_at_once_and_then_as_much_as_the_share_allows():
    front = Front()
    rests = [front.refuse(gone_s=0.001, worked_s=0.001) for _ in range(100)]
    at_once = sum(rest_s == 0 for rest_s in rests)
    each_s = 0.001 * (1 - refusal_pace._SHARE)
    assert at_once == pytest.approx(refusal_pace._AT_ONCE_S / each_s, abs=2)
    assert rests[at_once:] == sorted(rests[at_once:])
    assert rests[-1] == pytest.approx((99 * each_s - refusal_pace._AT_ONCE_S) / refusal_pace._SHARE, rel=0.01)


def test_nobody_is_left_alone_for_longer_than_he_is_told_to_wait():
    front = Front()
    assert max(front.refuse(gone_s=0.01, worked_s=0.01) for _ in range(1000)) == refusal_pace._MOST_REST_S


def test_of_many_workers_one_thread_cannot_take_more_than_may_be_lost():
    front = Front()
    for _ in range(1000):
        assert front.refuse(gone_s=0.001, worked_s=0.001, workers=8) == 0.0


@given(st.integers(1, 50), st.floats(1e-5, 5e-3), st.integers(1, 4))
def test_clients_who_ask_again_when_they_may_keep_the_thread_busy_for_its_share_of_the_time(clients, cost_s, workers):
    front = Front()
    ready_s = [front.now] * clients
    began_s, began_worked_s = 0.0, 0.0
    for count in range(clients * 60):
        if count == clients * 40:  # what was refused at once is behind
            began_s, began_worked_s = front.now, front.worked_s
        client = ready_s.index(min(ready_s))
        front.now = max(front.now, ready_s[client])
        ready_s[client] = front.refuse(cost_s, cost_s, workers) + front.now
    most = workers * refusal_pace._SHARE
    capped = clients * cost_s > 0.9 * most * refusal_pace._MOST_REST_S
    share = (front.worked_s - began_worked_s) / (front.now - began_s)
    assert capped or share <= most * 1.1 + refusal_pace._AT_ONCE_S / (front.now - began_s)
