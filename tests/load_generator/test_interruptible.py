import asyncio
import signal
import threading

import pytest

from hebe.load_generator.interruptible import Interrupted, run_interruptible


def test_what_main_returns_or_raises_is_what_comes_of_it():
    async def main(stop):
        assert not stop.is_set()
        await asyncio.sleep(0)
        return 7

    async def fails(_stop):
        raise ValueError("no")

    assert run_interruptible(main, catch_interrupt=True) == 7
    with pytest.raises(ValueError, match="no"):
        run_interruptible(fails, catch_interrupt=True)


def test_ctrl_c_asks_it_to_stop_and_is_as_it_was_afterwards():
    before = signal.getsignal(signal.SIGINT)

    async def main(stop):
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(stop.wait(), 10)
        return "what was measured"

    assert run_interruptible(main, catch_interrupt=True) == "what was measured"
    assert signal.getsignal(signal.SIGINT) is before


def test_with_nothing_to_return_it_ends_as_ctrl_c_would():
    async def main(_stop):
        raise Interrupted

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main, catch_interrupt=True)


def test_ctrl_c_that_is_not_to_be_caught_ends_it():
    async def main(stop):
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(stop.wait(), 10)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main, catch_interrupt=False)


def test_in_another_thread_signals_are_left_alone():
    found = []

    async def main(_stop):
        found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run_interruptible, args=(main, True))
    thread.start()
    thread.join()
    assert found == [before]
