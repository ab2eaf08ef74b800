"""A fast event loop for the load generator, which Ctrl-C asks to stop rather than tears down."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class Interrupted(Exception):
    """Ctrl-C came before there was anything to return."""


def run_interruptible(main: Callable[[asyncio.Event], Awaitable[Result]], catch_interrupt: bool) -> Result:
    """Run `main` in a new, fast event loop; Ctrl-C sets its event if it is to be caught.

    Raises KeyboardInterrupt where `main` raises `Interrupted`.
    """

    async def guarded() -> Result:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        catch = catch_interrupt and threading.current_thread() is threading.main_thread()
        if catch:
            loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            return await main(stop)
        finally:
            if catch:
                loop.remove_signal_handler(signal.SIGINT)

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        try:
            return runner.run(guarded())
        except Interrupted:
            raise KeyboardInterrupt from None


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists (everywhere but on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
