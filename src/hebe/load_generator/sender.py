"""What the open loop asks of a protocol: send now, tell what came of it."""

from __future__ import annotations

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

OnSent = Callable[[int], None]
"""Called with a query's index when its first byte is handed to the system."""

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
        """Open connections, or channels."""
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
