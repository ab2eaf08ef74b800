import asyncio
import time
from types import SimpleNamespace

import pytest

from hebe.load_generator.open_loop import precise_timer
from hebe.load_generator.open_loop.precise_timer import PreciseTimer


@pytest.fixture(params=["this system", "a system without timerfd"], autouse=True)
def system(request, monkeypatch):
    if request.param != "this system":
        monkeypatch.setattr(precise_timer, "sys", SimpleNamespace(platform="other"))


async def test_calls_back_when_due_and_not_before():
    fired = asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), fired.set)
    due_s = time.monotonic() + 0.02
    timer.arm(due_s)
    await asyncio.wait_for(fired.wait(), 5)
    assert time.monotonic() >= due_s - 0.002  # event loops round down by up to a millisecond
    timer.close()


async def test_the_past_is_now():
    fired = asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), fired.set)
    for when_s in (0.0, time.monotonic() - 1):
        fired.clear()
        timer.arm(when_s)
        await asyncio.wait_for(fired.wait(), 5)
    timer.close()


async def test_arming_again_replaces_and_closing_ends():
    calls = []
    timer = PreciseTimer(asyncio.get_running_loop(), lambda: calls.append(time.monotonic()))
    now = time.monotonic()
    timer.arm(now + 0.01)
    timer.arm(now + 0.04)
    await asyncio.sleep(0.1)
    assert len(calls) == 1
    assert calls[0] >= now + 0.038
    timer.arm(time.monotonic() + 0.01)
    timer.close()
    await asyncio.sleep(0.03)
    assert len(calls) == 1
