import threading

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.drains import Drains

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
            dict.fromkeys(ours, left), lambda at, end, _left: self.applied[at] >= end, self.ends.__getitem__, idle=idle
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


def test_a_partition_that_comes_is_waited_for_and_one_that_is_lost_is_not():
    waiting = Waiting()
    waiting.note(ONE)
    waiting.note(TWO)
    waiting.note(TWO)
    assert not waiting.is_done(), "the other came meanwhile"
    waiting.note()
    assert not waiting.is_done(), "none is ours"
    waiting.note(ONE)
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
