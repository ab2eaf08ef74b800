"""How much memory the bodies of requests may take at once."""

from __future__ import annotations

from hebe.serving.requests.errors import ErrorKind, RequestError

REQUESTS_IN_BUDGET = 16
"""Requests of the largest size for which there is room unless something else is said."""


class ByteBudget:
    """Counts the bytes of requests that are being received, decoded or answered, over both protocols.

    Used on the event loop's thread only.
    """

    __slots__ = ("held_bytes", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count `size_bytes` more, which are there already. Raises `RequestError` OVERLOADED if that is too much."""
        if self.held_bytes + size_bytes > self.most_bytes:
            raise RequestError(
                ErrorKind.OVERLOADED,
                f"the requests under way take {self.held_bytes} of at most {self.most_bytes} bytes; try again later",
                retry_after_s=1.0,
                reason="bytes_in_flight",
            )
        self.held_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Give back what was taken."""
        self.held_bytes -= size_bytes
