import asyncio
import signal
import socket
import threading

import pytest

from hebe.load_generator.open_loop.interruptible import Interrupted, run_interruptible


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


ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(params=ENDING)
def raising(request):
    """A signal whose handler raises SystemExit, as the command line has it."""

    def leave(number, _frame):
        raise SystemExit(128 + number)

    before = signal.signal(request.param, leave)
    yield request.param
    assert signal.getsignal(request.param) is leave
    signal.signal(request.param, before)


class Receiving(asyncio.Protocol):
    """Gets a signal amid a callback, of which a loop takes whatever is raised for a fault of the connection."""

    def __init__(self, number):
        self.number = number

    def data_received(self, _data):
        signal.raise_signal(self.number)


async def receive(number):
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().create_connection(lambda: Receiving(number), sock=ours)
        theirs.send(b"x")
        await asyncio.sleep(10)
        pytest.fail("the signal was swallowed")


def test_a_signal_amid_a_callback_ends_it(raising):
    with pytest.raises(SystemExit) as end:
        run_interruptible(lambda _stop: receive(raising), catch_interrupt=False)
    assert end.value.code == 128 + raising


def test_a_signal_that_is_caught_leaves_what_was_measured_and_is_told(raising):
    ends = []

    async def main(stop):
        receiving = asyncio.ensure_future(receive(raising))
        await asyncio.wait_for(stop.wait(), 10)
        receiving.cancel()
        return "what was measured"

    assert run_interruptible(main, catch_interrupt=True, on_interrupt=ends.append) == "what was measured"
    assert [end.code for end in ends] == [128 + raising]


def test_a_signal_that_comes_too_late_for_the_result_is_told_all_the_same(raising):
    async def late(_stop):
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, signal.raise_signal, raising)

    ends = []
    run_interruptible(late, catch_interrupt=True, on_interrupt=ends.append)
    assert len(ends) == 1
    with pytest.raises(SystemExit):
        run_interruptible(late, catch_interrupt=False)


def test_with_nothing_measured_it_ends_as_the_signal_would_have_it(raising):
    async def main(_stop):
        signal.raise_signal(raising)
        raise Interrupted

    with pytest.raises(SystemExit):
        run_interruptible(main, catch_interrupt=True)


def test_a_second_signal_ends_what_does_not_let_the_loop_go_on(raising):
    async def main(_stop):
        signal.raise_signal(raising)
        signal.raise_signal(raising)
        pytest.fail("it went on")

    with pytest.raises(SystemExit):
        run_interruptible(main, catch_interrupt=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_handler_that_raises_nothing_and_a_signal_that_is_ignored_end_nothing(number):
    came = []

    async def main(_stop):
        signal.raise_signal(number)
        await asyncio.sleep(0.01)
        return 7

    before = signal.getsignal(number)
    try:
        for handler in (lambda *_: came.append(number), signal.SIG_IGN):
            signal.signal(number, handler)
            assert run_interruptible(main, catch_interrupt=False) == 7
            assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert came == [number]
