import threading

from hebe.embeddings.background import BackgroundWork


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
