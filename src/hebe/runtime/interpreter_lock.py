"""How long a thread may keep the interpreter lock when another wants it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_SWITCH_INTERVAL_S = 0.0001
"""A worker needs it for microseconds per batch and should not wait for the event loop's usual 5 ms."""


def hand_over_soon() -> None:
    """Let no thread of this process wait for long; for programs that serve, when they start."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


@contextlib.contextmanager
def handed_over_soon() -> Iterator[None]:
    """`hand_over_soon`, and afterwards as it was."""
    before_s = sys.getswitchinterval()
    hand_over_soon()
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
