"""What the open loop asks of a protocol: send now, tell what came of it."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from enum import Enum
from typing import Protocol


class Outcome(Enum):
    """What came of one request."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


TOO_LARGE = frozenset(("413", "message too large"))
"""Kinds of refusal that are for the query's size, whatever the load."""

OUT_OF_FILES, OUT_OF_PORTS = "out of open files", "out of ports"
"""Kinds of failure that are for want of a connection that the generator's own system does not give."""

_NOT_CONNECTED = {
    errno.ECONNREFUSED: "connection refused",
    errno.EMFILE: OUT_OF_FILES,
    errno.ENFILE: OUT_OF_FILES,
    errno.EADDRNOTAVAIL: OUT_OF_PORTS,
}
_ERROR_NUMBER = re.compile(r"\[Errno (\d+)\]")


def not_connected_kind(fault: OSError) -> str:
    """The kind of failure that a connection failed to open by: "cannot connect" if it is none of those with a name.

    A host of several addresses fails with an error of its own, which only names those of each of them.
    """
    numbers = {fault.errno} if fault.errno else {int(number) for number in _ERROR_NUMBER.findall(str(fault))}
    return _NOT_CONNECTED.get(numbers.pop(), "cannot connect") if len(numbers) == 1 else "cannot connect"


OnSent = Callable[[int], None]
"""Called with a query's index when its first byte is handed to the system, or, over gRPC, to a connection that may
have to wait until its server takes another call."""

OnDone = Callable[[int, Outcome, str, str], None]
"""Called once for each query: index, outcome, the code or kind ("503", "connection closed"), the server's message."""


def ignore_sent(index: int) -> None:
    """Stands in for `on_sent` until somebody listens."""


def ignore_done(index: int, outcome: Outcome, kind: str, message: str) -> None:
    """Stands in for `on_done` until somebody listens."""


class Sender(Protocol):
    """Sends queries of a pool over one protocol. All methods belong to one event loop."""

    on_sent: OnSent
    on_done: OnDone

    @property
    def connections(self) -> int:
        """Open connections."""
        ...

    @property
    def full(self) -> bool:
        """Whether as many connections, or calls, as allowed are in use."""
        ...

    async def open(self) -> None:
        """Connect. Raises `LoadError` if that fails."""
        ...

    def send(self, index: int, items: int, offset: int) -> None:
        """Send the query, at once or as soon as a connection is free; never waits."""
        ...

    def give_up(self, index: int) -> None:
        """Stop waiting for this query; `on_done` is not called for it any more."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
