from __future__ import annotations

import asyncio
import os
import threading

import pytest

from hebe.runtime.pinning import available_cores
from hebe.serving.own_thread import giving_way, in_own_thread


def _niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_what_gives_way_has_the_lowest_priority_and_its_cores_alone_for_itself():
    own, cores = _niceness(), available_cores()
    seen = giving_way(lambda: (_niceness(), available_cores(), threading.current_thread()), cores[:1])
    assert seen[:2] == (19, cores[:1])
    assert not seen[2].is_alive() or seen[2].join(10.0) is None
    assert (_niceness(), available_cores()) == (own, cores)
    with pytest.raises(ZeroDivisionError):
        giving_way(lambda: 1 // 0, cores)


async def test_what_is_returned_and_raised_comes_back():
    assert await in_own_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_own_thread(divmod, 7, 0)


async def test_any_number_of_works_leave_asyncios_threads_alone():
    goes_on = threading.Event()
    works = [asyncio.ensure_future(in_own_thread(goes_on.wait, 60.0)) for _ in range(40)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(str), 30.0) == ""
        assert not any(work.done() for work in works)
    finally:
        goes_on.set()
    assert await asyncio.gather(*works) == [True] * 40


async def test_it_ends_with_its_work():
    seen = [await in_own_thread(threading.current_thread) for _ in range(2)]
    assert not any(thread.is_alive() for thread in seen)
    assert seen[0] is not seen[1]
