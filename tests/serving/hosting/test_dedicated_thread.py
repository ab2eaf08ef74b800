from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from hebe.machine.pinning import available_cores
from hebe.serving.hosting.dedicated_thread import InTurn, at_work, giving_way, in_own_thread


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


_HANGING = """
import asyncio, contextlib, time
from hebe.serving.hosting.dedicated_thread import InTurn, at_work, in_own_thread

async def main():
    turns = InTurn("hebe-turns")
    for hangs in (in_own_thread(time.sleep, 600.0), turns.do(lambda: time.sleep(600.0))):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hangs, 0.05)
    turns.close()

asyncio.run(main())
print("at work:", at_work())
"""


def test_python_ends_though_works_hang():
    """As where a file system does that a model is loaded from."""
    ended = subprocess.run([sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=120.0)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at work: True\n", "")


async def test_works_in_turn_run_on_one_thread_one_after_the_other():
    turns, seen = InTurn("hebe-turns"), []
    goes_on = threading.Event()
    works = [asyncio.ensure_future(turns.do(lambda: goes_on.wait(60.0)))]
    works += [asyncio.ensure_future(turns.do(lambda each=each: seen.append(each))) for each in range(3)]
    await asyncio.sleep(0)
    while not at_work():
        await asyncio.sleep(0.001)
    assert seen == []
    works[2].cancel()
    await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.gather(works[0], works[1], works[3]) == [True, None, None]
    assert seen == [0, 2]
    with pytest.raises(ZeroDivisionError):
        await turns.do(lambda: 1 // 0)
    first, second = [await turns.do(threading.current_thread) for _ in range(2)]
    assert first is second
    turns.close()
    assert not first.is_alive(), "nothing was under way"


async def test_works_whose_turn_has_not_come_are_cancelled_by_closing():
    turns, goes_on = InTurn("hebe-turns"), threading.Event()
    under_way = asyncio.ensure_future(turns.do(lambda: goes_on.wait(60.0)))
    await asyncio.sleep(0)
    while not at_work():
        await asyncio.sleep(0.001)
    waits = asyncio.ensure_future(turns.do(lambda: 0))
    await asyncio.sleep(0)
    turns.close()
    with pytest.raises(asyncio.CancelledError):
        await waits
    with pytest.raises(RuntimeError, match="hebe-turns is closed"):
        await turns.do(lambda: 0)
    goes_on.set()
    assert await under_way


async def test_a_work_that_nobody_waits_for_any_more_goes_on():
    goes_on, done = threading.Event(), threading.Event()

    def work():
        goes_on.wait(60.0)
        done.set()

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(in_own_thread(work), 0.01)
    assert not done.is_set()
    goes_on.set()
    assert await asyncio.to_thread(done.wait, 30.0)


@pytest.mark.parametrize("run", ["own", "turn", "gently"])
async def test_nothing_holds_what_a_work_that_raised_had(run):
    """Open files among it: they are closed before the next garbage collection."""

    class Held:
        pass

    held = []

    def work():
        mine = Held()
        held.append(weakref.ref(mine))
        raise ZeroDivisionError

    turns = InTurn("hebe-turns")
    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            if run == "own":
                await in_own_thread(work)
            elif run == "turn":
                await turns.do(work)
            else:
                giving_way(work, available_cores())
        await turns.do(lambda: None)
        assert held[0]() is None
    finally:
        gc.enable()
        turns.close()
