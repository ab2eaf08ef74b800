"""A fast event loop for the load generator, which Ctrl-C and signals ask to stop rather than tear down."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any, TypeVar

Result = TypeVar("Result")

OnInterrupt = Callable[[BaseException], object]
"""Told what is to end the program once what was measured is shown: KeyboardInterrupt, or what else a signal raised."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Ctrl-C came before there was anything to return."""


def run_interruptible(
    main: Callable[[asyncio.Event], Awaitable[Result]],
    catch_interrupt: bool,
    on_interrupt: OnInterrupt | None = None,
) -> Result:
    """Run `main` in a new, fast event loop.

    What the handlers of SIGINT, SIGTERM and SIGHUP raise meanwhile cancels `main`, and is raised once the loop has
    ended. If it is to be caught, it sets the event of `main` instead; if that has a result all the same, it is not
    raised, but `on_interrupt` is told. Handlers that raise nothing act as ever.

    Raises KeyboardInterrupt where `main` raises `Interrupted` without a signal.
    """
    endings = _Endings(again=not catch_interrupt)

    async def guarded() -> Result:
        stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        endings.ask = partial(loop.call_soon_threadsafe, stop.set if catch_interrupt else task.cancel)
        try:
            if endings.raised:
                endings.ask()
            return await main(stop)
        finally:
            endings.ask = _nothing

    try:
        with endings, asyncio.Runner(loop_factory=_fast_loop()) as runner:
            result = runner.run(guarded())
    except BaseException as fault:
        if endings.raised:
            raise endings.raised[0] from fault
        if isinstance(fault, Interrupted):
            raise KeyboardInterrupt from None
        raise
    if endings.raised:
        if not catch_interrupt:
            raise endings.raised[0]
        if on_interrupt is not None:
            on_interrupt(endings.raised[0])
    return result


def _nothing() -> None:
    """Whom to ask while `main` does not run."""


class _Endings:
    """Keeps what signals' handlers raise: a loop takes what is raised amid a callback for a fault of that, and goes on.

    With `again`, the second signal raises all the same: `main` may be at something that does not let the loop go on.
    """

    def __init__(self, *, again: bool) -> None:
        self.raised: list[BaseException] = []
        self.ask: Callable[[], object] = _nothing
        self._again = again
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may
        for number in _ENDING:
            before = signal.getsignal(number)
            if callable(before):  # neither ignored, nor left to the system, which ends the process surely
                self._before[number] = before
                signal.signal(number, self._came)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _came(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before[number](number, frame)
        except BaseException as end:
            self.raised.append(end)
            self.ask()
            if self._again and len(self.raised) > 1:
                raise


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists (everywhere but on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
