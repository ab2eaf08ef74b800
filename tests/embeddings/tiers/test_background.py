import logging
import threading
import weakref

import pytest

from hebe.embeddings.tiers import background
from hebe.embeddings.tiers.background import BackgroundWork, FaultLog


def test_runs_in_order_drops_beyond_its_depth_and_survives_faults() -> None:
    faults: list[Exception] = []
    work = BackgroundWork("test", threads=1, depth=2, on_fault=faults.append)
    begun, go_on, done = threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        go_on.wait()

    def fail() -> None:
        raise ValueError("no")

    assert work.submit(hold)
    begun.wait()
    assert work.submit(fail)
    assert work.submit(lambda: done.append(2))
    assert not work.submit(lambda: done.append(3))
    assert (work.waiting, work.dropped) == (2, 1)
    go_on.set()
    work.drain()
    assert done == [2]
    assert [str(fault) for fault in faults] == ["no"]
    work.close()
    assert not work.submit(lambda: done.append(4))


def test_what_holds_more_memory_than_there_is_to_hold_is_dropped() -> None:
    work, begun, go_on = BackgroundWork("test", 1, 100, print), threading.Event(), threading.Event()
    half = background.MOST_HELD_BYTES // 2

    def hold() -> None:
        begun.set()
        go_on.wait()

    assert work.submit(hold, half)
    begun.wait()
    assert work.submit(lambda: None, half), "what is under way holds its memory, too"
    assert not work.submit(lambda: None, 1)
    assert work.submit(lambda: None), "what holds none"
    go_on.set()
    work.drain()
    assert work.submit(lambda: None, 5 * half), "one alone, or such ones would never be done"
    work.drain()
    assert work.submit(lambda: None, half)
    assert work.dropped == 1
    work.close()


def test_what_is_done_is_held_no_longer() -> None:
    class Rows:
        pass

    def work_on(rows: Rows):
        return lambda: rows

    work, rows = BackgroundWork("test", 1, 100, print), Rows()
    gone = weakref.ref(rows)
    work.submit(work_on(rows))
    del rows
    work.drain()
    assert gone() is None
    work.close()


def test_threads_are_begun_by_the_first_who_needs_them(threads_begun) -> None:
    """Priority and cores of a thread are those of the one that starts it."""
    work = BackgroundWork("test", 3, 10, print)
    assert not threads_begun()
    work.drain()
    assert work.submit(lambda: None)
    assert len(threads_begun()) == 3
    work.drain()
    work.close()
    work.close()
    assert not threads_begun()
    assert not work.submit(lambda: None)
    unused = BackgroundWork("test", 3, 10, print)
    unused.close()
    assert not unused.submit(lambda: None)
    assert not threads_begun()


def test_threads_can_be_begun_before_anybody_needs_them(threads_begun) -> None:
    """So that they have not the one core of the worker whose query comes first."""
    work = BackgroundWork("test", 3, 10, print)
    work.start()
    work.start()
    assert len(threads_begun()) == 3
    assert work.submit(lambda: None)
    work.drain()
    assert len(threads_begun()) == 3
    work.close()


def test_what_faults_say_is_told_once_a_minute_with_how_often_it_came(caplog: pytest.LogCaptureFixture) -> None:
    """A Redis without memory refuses thousands of rows a second."""
    now_s = 0.0
    told = FaultLog("it failed", lambda: now_s)
    with caplog.at_level(logging.WARNING, "hebe.tiers"):
        for tenth in range(1201):
            now_s = tenth / 10
            told(ValueError("full"))
            told(ValueError("no user"))
    assert [record.getMessage() for record in caplog.records] == [
        "it failed: full",
        "it failed: no user",
        "it failed: full (and 599 times since this was told)",
        "it failed: no user (and 599 times since this was told)",
        "it failed: full (and 599 times since this was told)",
        "it failed: no user (and 599 times since this was told)",
    ]


def test_a_fault_without_words_is_told_by_its_name(caplog) -> None:
    FaultLog("it failed")(MemoryError())
    assert caplog.messages == ["it failed: MemoryError"]


def test_faults_that_differ_each_time_are_not_remembered_without_end(monkeypatch, caplog) -> None:
    monkeypatch.setattr(background, "_MOST_TOLD", 3)
    told = FaultLog("it failed", lambda: 0.0)
    for number in range(10):
        for _ in range(2):
            told(ValueError(f"at {number}"))
    assert len(caplog.records) == 10
    assert len(told._told) <= 3


def test_work_that_no_thread_is_there_for_is_dropped_until_there_is_one(threads_refused, threads_begun) -> None:
    work, done = BackgroundWork("test", 2, 10, print), []
    threads_refused.add("hebe-test-")
    assert not work.submit(lambda: done.append(1))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        work.start()
    assert (work.waiting, work.dropped) == (0, 1)
    threads_refused.clear()
    threads_refused.add("hebe-test-1")
    assert work.submit(lambda: done.append(2))
    assert threads_begun() == ["hebe-test-0"]
    threads_refused.clear()
    assert work.submit(lambda: done.append(3))
    work.drain()
    assert done == [2, 3]
    assert threads_begun() == ["hebe-test-0", "hebe-test-1"]
    work.close()
    assert not threads_begun()


def test_it_is_closed_where_a_thread_could_not_be_started(threads_refused, threads_begun) -> None:
    work = BackgroundWork("test", 2, 10, print)
    threads_refused.add("hebe-test-1")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        work.start()
    work.close()
    assert not threads_begun()
