"""The limits that gRPC calls keep: places for those in flight, and an end for those whose message does not come.

gRPC's own bound counts calls that never send their message with those that are being answered: a thousand of them,
which cost a client nothing, would keep everybody out, health checks among them. So each kind of call has places of its
own. A call that waits for its message loses its place after some time, and before that to a newcomer where there is
none left.

A message is in memory before anything of it is told: gRPC gives it whole or not at all, and keeps what has come of it
from when it is asked for it (before, no more than a window's length). So of each kind only so many messages are asked
for at once; the others' calls wait for their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError

_SWEEP_S = 0.5
_UNDISTURBED_S = 1.0
"""How long a message may always take: it normally comes together with its call."""

_NO_TURN_S = 1.0
"""How long others may wait without any turn coming free before the longest one is ended."""

EndCall = Callable[[Any, RequestError], Awaitable[None]]
"""Ends the call of a context with an error; raises `grpc.aio.BaseError` once it has."""


class CallPlaces:
    """Places for calls of one kind, at most `most`; `what` they are called. `clock` in seconds. `most_bytes`: what gRPC
    lets a message have.

    Of at most `most_receiving` (None: of all) messages are received at once. One that has not come after `patience_s`
    ends its call, by `end_call`, and so does a turn to receive it that has not.
    """

    def __init__(
        self,
        what: str,
        most: int,
        patience_s: float,
        clock: Callable[[], float],
        end_call: EndCall,
        most_receiving: int | None = None,
        *,
        most_bytes: int,
    ) -> None:
        self.what = what
        self.most = most
        self.taken = 0
        self.most_receiving = most if most_receiving is None else min(most, most_receiving)
        self._patience_s = patience_s
        self._clock = clock
        self._end_call = end_call
        self._most_bytes = most_bytes
        self._turns = asyncio.Semaphore(self.most_receiving)
        self._without_turn = 0
        self._turn_given_s = 0.0
        self._waiting: dict[Any, float] = {}  # for their message, since when, in this order
        self._ending: set[asyncio.Task[None]] = set()

    def take(self) -> None:
        """Take a place. Raises `RequestError` RATE_LIMITED if there is none."""
        if self.taken >= self.most and not self._make_room():
            raise RequestError(
                ErrorKind.RATE_LIMITED,
                f"{self.most} {self.what} are under way, as many as may be; end some, or try again later",
                retry_after_s=1.0,
                reason="calls",
            )
        self.taken += 1

    def give(self) -> None:
        """Give a place back."""
        self.taken -= 1

    async def next_message(self, context: Any) -> bytes | None:
        """The next message of a call that has a place; None if there are no more. Raises `RequestError`: no turn."""
        await self._take_turn()
        self._waiting[context] = self._clock()
        try:
            data = await context.read()
        finally:
            self._waiting.pop(context, None)
            self._turns.release()
            self._turn_given_s = self._clock()
        return None if data is grpc.aio.EOF else data

    async def _take_turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            return
        if not self._without_turn:
            self._turn_given_s = self._clock()
        self._without_turn += 1
        try:
            async with asyncio.timeout(self._patience_s):
                await self._turns.acquire()
        except TimeoutError:
            raise RequestError(
                ErrorKind.OVERLOADED,
                f"the messages of {self.most_receiving} other {self.what} are being received, as many as there is "
                "memory for; try again later",
                retry_after_s=1.0,
                reason="bytes_in_flight",
            ) from None
        finally:
            self._without_turn -= 1

    async def message(self, context: Any) -> bytes:
        """The message of a call that has a place. Raises `RequestError` if there is none, or no turn to receive it."""
        data = await self.next_message(context)
        if data is None:
            raise InvalidInput(
                f"the call ended without a message, or with one beyond the limit of {self._most_bytes:,} bytes, whose "
                "size is not told; --max-request-bytes raises the limit",
                reason="no_message",
            )
        return data

    def end_late(self) -> None:
        """End the calls whose message is late, or lasts while others wait for their turn."""
        now = self._clock()
        if self._without_turn and now - self._turn_given_s >= _NO_TURN_S and self._waiting:
            self._turn_given_s = now
            context, since_s = next(iter(self._waiting.items()))
            self._end(context, f"the message did not come within {now - since_s:.1f} s, and others wait to send theirs")
        while self._waiting:
            context, since_s = next(iter(self._waiting.items()))
            if now - since_s < self._patience_s:
                return
            self._end(context, f"no message came within {self._patience_s:g} s")

    def _make_room(self) -> bool:
        """End the call that has waited longest for its message, if there is one that might have had it."""
        context, since_s = next(iter(self._waiting.items()), (None, 0.0))
        waited_s = self._clock() - since_s
        if context is None or waited_s < _UNDISTURBED_S:
            return False
        self._end(context, f"no message came within {waited_s:.1f} s, and others need its place")
        return True

    def _end(self, context: Any, why: str) -> None:
        del self._waiting[context]
        task = asyncio.get_running_loop().create_task(self._tell(context, RequestError(ErrorKind.TIMED_OUT, why)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _tell(self, context: Any, error: RequestError) -> None:
        # The call's own coroutine ends with it: what it reads raises.
        with contextlib.suppress(grpc.aio.BaseError):
            await self._end_call(context, error)


async def end_late_calls(places: list[CallPlaces]) -> None:
    """Look after calls whose message is late, until cancelled: one timer for all of them rather than one for each."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        for kind in places:
            kind.end_late()


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What calls may cost. Times in seconds.

    `max_json_bytes` bounds a message without its raw tensors, which takes as long to read as JSON. Connections beyond
    `max_connections` are closed, and those that have not shaken hands within `handshake_timeout_s`. Beyond `max_calls`
    calls and `max_streams` streams under way, or as many streams as messages can be received at once, further ones are
    refused with RESOURCE_EXHAUSTED; health checks and watches have places of their own, watches those with a token and
    those without each. A message must have come `message_timeout_s` after its turn, that to a health check or watch
    sooner (`health_timeout_s`). A stream is ended when nothing came on it for `stream_idle_s`, a watch when it is
    `watch_age_s` old: its client begins another; both when an answer could not be written within `write_timeout_s`.
    """

    max_request_bytes: int = 64 * 1024 * 1024
    max_json_bytes: int = 8 * 1024 * 1024
    max_calls: int = 1024
    max_streams: int = 512
    max_health_calls: int = 64
    max_watches: int = 64
    max_connections: int = 768
    message_timeout_s: float = 30.0
    health_timeout_s: float = 2.0
    handshake_timeout_s: float = 10.0
    write_timeout_s: float = 30.0
    stream_idle_s: float = 3600.0
    watch_age_s: float = 3600.0
