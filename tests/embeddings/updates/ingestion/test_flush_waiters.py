import threading

import pytest

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion.flush_waiters import Advance, Drains

ONE, TWO = TopicPartition("m", "users", 0), TopicPartition("m", "users", 1)
TIMEOUT_S = 20.0


class Waiting:
    """One who waits, and an ingestion of two partitions whose state is set."""

    def __init__(self):
        self.drains, self.answers = Drains(), []
        self.ends, self.applied = {ONE: 5, TWO: 7}, {ONE: 5, TWO: 6}
        begun, wait = threading.Event(), self.drains._changed.wait_for
        self.drains._changed.wait_for = lambda *arguments: begun.set() or wait(*arguments)
        self.thread = threading.Thread(target=lambda: self.answers.append(self.drains.wait(TIMEOUT_S)))
        self.thread.start()
        assert begun.wait(TIMEOUT_S)
        assert self.drains

    def note(self, *ours, idle=False, left=1):
        self.drains.note(
            dict.fromkeys(ours, left), lambda at, end: self.applied[at] >= end, self.ends.__getitem__, idle=idle
        )

    def is_done(self):
        return all(drain.done for drain in self.drains._waiting)

    def ends_well(self):
        self.thread.join(TIMEOUT_S)
        assert self.answers == [True]
        assert not self.drains


def test_done_is_what_was_there_at_the_beginning_whatever_came_since():
    waiting = Waiting()
    waiting.note(ONE, TWO)
    waiting.ends = {ONE: 500, TWO: 500}
    waiting.note(ONE, TWO)
    assert not waiting.is_done()
    waiting.applied[TWO] = 7
    waiting.note(ONE, TWO)
    waiting.ends_well()


def test_nothing_is_done_before_the_poll_that_follows():
    waiting = Waiting()
    waiting.applied[TWO] = 7
    waiting.note(ONE, TWO)
    assert not waiting.is_done()
    waiting.note(ONE, TWO)
    waiting.ends_well()


def test_a_partition_that_comes_is_waited_for():
    waiting = Waiting()
    waiting.note(ONE)
    waiting.note(TWO)
    waiting.note(TWO)
    assert not waiting.is_done(), "the other came meanwhile"
    waiting.note()
    assert not waiting.is_done(), "there is none"
    waiting.note(ONE)
    waiting.ends_well()


def test_what_ends_with_no_message_is_done_once_the_log_knows_that():
    """As marks of transactions, while other partitions are never idle."""
    waiting = Waiting()
    waiting.note(ONE, TWO)
    waiting.ends[TWO] = 6
    waiting.note(ONE, TWO)
    waiting.note(ONE, TWO)
    assert not waiting.is_done(), "it may be messages that are left"
    waiting.note(ONE, TWO, left=0)
    waiting.note(ONE, TWO, left=0)
    waiting.ends_well()


def test_two_polls_without_news_are_enough_where_nothing_is_left():
    waiting = Waiting()
    waiting.note(idle=True, left=0)
    waiting.note(ONE, TWO, idle=True, left=1)
    assert not waiting.is_done()
    waiting.note(ONE, TWO, idle=True, left=0)
    waiting.ends_well()


def test_who_waits_too_long_is_told():
    drains = Drains()
    assert not drains.wait(0.0)
    assert not drains


def test_who_sees_it_go_on_waits_on_for_what_there_was_at_the_beginning():
    drains, told = Drains(), []

    def goes_on():
        told.append([dict(each.ends) for each in drains._waiting])
        drains.note({ONE: 1}, lambda _at, _end: len(told) == 3, lambda _at: 5 + len(told), idle=False)
        return len(told) < 9

    assert drains.wait(0.0, goes_on)
    assert told == [[{}], [{ONE: 6}], [{ONE: 6}]]
    assert not drains.wait(0.0, lambda: bool(told.clear()))
    with pytest.raises(ZeroDivisionError):
        drains.wait(0.0, lambda: 1 / 0)
    assert not drains


def test_what_comes_further_now_and_then_goes_on_and_what_is_read_or_applied_once_more_does_not():
    now_s, told = 1000.0, []
    advance = Advance(lambda: now_s)
    advance.note(ONE, 5)
    goes_on = advance.goes_on(10.0, lambda: told.append(0))
    for at, offset, applied in ((ONE, 6, False), (TWO, 0, False), (ONE, 5, True), (ONE, 6, True)):
        now_s += 9.0
        assert goes_on()
        advance.note(at, offset, applied=applied)
        now_s += 9.0
        assert goes_on()
    advance.note(ONE, 6, applied=True)
    advance.note(ONE, 5)
    assert goes_on()
    now_s += 10.0
    assert not goes_on()
    advance.note(ONE, 7)
    assert goes_on()
    assert len(told) == 11
