"""Ports that stay free until a server of a test listens there, and whenever it is started there again."""

from __future__ import annotations

import contextlib
import random
import socket

_LOWEST, _EPHEMERAL = 10_000, 32_768
"""From the second on the kernel gives them to whoever connects, at any time."""

_CHANCE = random.SystemRandom()  # what seeds others would have processes beside each other draw the same


def free_port(*, beside: int = 0) -> int:
    """A port of 127.0.0.1 that nobody listens on; with `beside`, nor so many above it."""
    while True:
        port = _CHANCE.randrange(_LOWEST, _EPHEMERAL - beside)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            if beside:
                second.bind(("127.0.0.1", port + beside))
            return port
