"""What the connections of one HTTP server share, and the timer that ends those that take too long."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol

from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.http1.head import Heads
from hebe.serving.http1.messages import Handler, HttpLimits

_READ_BYTES = 64 * 1024
_UNDISTURBED_S = 1.0
"""How long a connection may always wait for its client, or shake hands."""


class OpenConnection(Protocol):
    """What the connections of a server ask of one of them."""

    give_up_s: float

    @property
    def waits_since_s(self) -> float:
        """Since when it waits for its client; infinity where it does not."""
        ...

    def give_place(self) -> None:
        """End it in favour of another."""
        ...

    def out_of_time(self) -> None:
        """`give_up_s` has come."""
        ...

    def finish(self) -> None:
        """End it after the request in flight."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...


class HttpConnections:
    """The connections of one server: what they share, and the timer that ends those that take too long."""

    def __init__(self, handler: Handler, limits: HttpLimits, clock: Callable[[], float], budget: ByteBudget) -> None:
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.budget = budget
        self.heads = Heads()
        self.open: set[OpenConnection] = set()
        self.turned_away: set[OpenConnection] = set()
        """Of those that are open, who was told on arrival that there is no place, and has time to read it."""
        self.handshakes: dict[asyncio.Task[None], float] = {}
        """Of connections that are not open yet, where there is TLS, and since when, in this order."""
        self.stopping = False
        self.date_header = b""
        self.scratch = memoryview(bytearray(_READ_BYTES))
        """Where heads are read to. One for all: reading and taking are one step of the event loop."""
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Connections that are open, or are being opened."""
        return len(self.open) + len(self.handshakes)

    def free_place(self) -> bool:
        """Where all places are taken, end what has waited longest for its client, if anything has for a while.

        Else whoever opens connections and does nothing with them would keep everybody out.
        """
        longest = min(self.open, key=lambda connection: connection.waits_since_s, default=None)
        since_s = math.inf if longest is None else longest.waits_since_s
        handshake, begun_s = next(iter(self.handshakes.items()), (None, math.inf))
        if self.clock() - min(since_s, begun_s) < _UNDISTURBED_S:
            return False
        if handshake is not None and begun_s < since_s:
            del self.handshakes[handshake]
            handshake.cancel()
        elif longest is not None:
            longest.give_place()
        return True

    def shaken(self, handshake: asyncio.Task[None]) -> None:
        """A handshake is over, well or not."""
        self.handshakes.pop(handshake, None)

    def start(self) -> None:
        """Begin watching the time; needs a running loop."""
        self._sweep()

    def _sweep(self) -> None:
        now = self.clock()
        self.date_header = b"date: " + formatdate(time.time(), usegmt=True).encode() + b"\r\n"
        for connection in list(self.open):
            if now >= connection.give_up_s:
                connection.out_of_time()
        self._sweeper = asyncio.get_running_loop().call_later(0.25, self._sweep)

    async def stop(self, grace_s: float) -> None:
        """Let requests under way finish for at most `grace_s`, then close everything."""
        self.stopping = True
        handshakes = list(self.handshakes)
        for handshake in handshakes:
            handshake.cancel()
        if handshakes:
            await asyncio.wait(handshakes)
        for connection in list(self.open):
            connection.finish()
        end_s = self.clock() + grace_s
        while self.open and self.clock() < end_s:
            await asyncio.sleep(0.02)
        for connection in list(self.open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
