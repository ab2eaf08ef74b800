"""gRPC for the open loop: many calls at once on a few channels, with messages that are bytes already."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

import grpc
import grpc.aio

from hebe.load_generator.discovery import CHANNEL_OPTIONS, GRPC_SERVICE, call_metadata
from hebe.load_generator.error import LoadError
from hebe.load_generator.request_body import RequestBody
from hebe.load_generator.sender import OnDone, OnSent, Outcome, ignore_done, ignore_sent
from hebe.load_generator.target import Target

REFUSALS = frozenset(
    (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
)
"""A server that answers these declines the query: out of time, over a limit, overloaded.

But UNAVAILABLE is also what the library says of itself where there is no server: see `_lost_connection`.
"""

_NOT_CONNECTED = ("failed to connect to all addresses", "DNS resolution failed")
_CONNECTION_LOST = ("Stream removed", "Socket closed", "recvmsg:", "sendmsg:", "Connection reset", "GOAWAY")
"""How what the library says of itself begins."""

_TOO_LARGE = ("larger than max", "exceeds maximum size")
"""What gRPC's libraries say, with RESOURCE_EXHAUSTED, of a message that is larger than the server takes."""

CHANNELS = 8
"""HTTP/2 carries any number of calls on a connection, but each connection is written and read in order."""

OPEN_TIMEOUT_S = 10.0


class GrpcSender:
    """Sends the requests of `body` to `target`."""

    cpu_clock = staticmethod(time.process_time)
    """By which its work is to be counted: gRPC does most of it in threads of its own."""

    def __init__(self, target: Target, body: RequestBody) -> None:
        self._target = target
        self._body = body
        self._metadata = call_metadata(target)
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = []
        self._next = -1
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.on_sent: OnSent = ignore_sent
        self.on_done: OnDone = ignore_done

    @property
    def connections(self) -> int:
        """Open channels."""
        return len(self._channels)

    @property
    def full(self) -> bool:
        """Whether no further call may be started."""
        return len(self._busy) >= self._target.connections

    async def open(self) -> None:
        """Open the channels and wait until they are connected. Raises `LoadError` if they are not within a while."""
        endpoint = self._target.endpoint
        for number in range(min(CHANNELS, self._target.connections)):
            # Channels with different options do not share a connection.
            options = (*CHANNEL_OPTIONS, ("hebe.channel", number))
            if endpoint.tls:
                credentials = grpc.ssl_channel_credentials(self._target.ca_certificates())
                channel = grpc.aio.secure_channel(endpoint.address, credentials, options)
            else:
                channel = grpc.aio.insecure_channel(endpoint.address, options)
            self._channels.append(channel)
            self._calls.append(channel.unary_unary(GRPC_SERVICE + "ModelInfer"))
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        except TimeoutError:
            raise LoadError(f"{endpoint.url} cannot be reached over gRPC within {OPEN_TIMEOUT_S:g} s") from None

    def send(self, index: int, items: int, offset: int) -> None:
        """Start the call, or line it up if as many as allowed are under way."""
        if self.full:
            self._waiting[index] = (items, offset)
            return
        self._start(index, items, offset)

    def give_up(self, index: int) -> None:
        """Cancel the call."""
        task = self._busy.pop(index, None)
        if task is not None:
            task.cancel()
            self._take_waiting()
        else:
            self._waiting.pop(index, None)

    async def close(self) -> None:
        """Cancel what is under way and close all channels."""
        self._waiting.clear()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))
        self._channels = []

    def _start(self, index: int, items: int, offset: int) -> None:
        self.on_sent(index)
        self._next = (self._next + 1) % len(self._calls)
        request = b"".join(self._body.parts(items, offset))
        self._busy[index] = asyncio.get_running_loop().create_task(self._call(self._next, index, request))

    async def _call(self, channel: int, index: int, request: bytes) -> None:
        outcome, kind, message = Outcome.ANSWERED, "", ""
        try:
            await self._calls[channel](request, metadata=self._metadata)
        except grpc.aio.AioRpcError as fault:
            code, message = fault.code(), fault.details() or ""
            kind = code.name
            if code is grpc.StatusCode.UNAVAILABLE and (lost := _lost_connection(self._channels[channel], message)):
                outcome, kind = Outcome.FAILED, lost
            else:
                outcome = Outcome.REFUSED if code in REFUSALS else Outcome.FAILED
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(words in message for words in _TOO_LARGE):
                    kind = "message too large"
        if self._busy.pop(index, None) is not None:
            self.on_done(index, outcome, kind, message)
            self._take_waiting()

    def _take_waiting(self) -> None:
        if self._waiting and not self.full:
            index, (items, offset) = self._waiting.popitem(last=False)
            self._start(index, items, offset)


def _lost_connection(channel: grpc.aio.Channel, message: str) -> str:
    """What kind of failure an UNAVAILABLE with this message is; empty if the server itself said it.

    The library gives both the same form and no metadata. But a server that says something is connected, while what it
    says of itself has its own words, which come a moment before the channel's state changes.
    """
    if message.startswith(_NOT_CONNECTED):
        return "connection refused" if "refused" in message else "cannot connect"
    connected = channel.get_state() is grpc.ChannelConnectivity.READY
    return "" if connected and not message.startswith(_CONNECTION_LOST) else "connection closed"
