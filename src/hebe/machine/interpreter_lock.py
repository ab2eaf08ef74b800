"""How long a thread may keep the interpreter lock when another wants it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_SWITCH_INTERVAL_S = 0.001
"""A worker needs it for some ten microseconds a batch and should not wait for 5 ms, as is usual. But who is made to
give it up is mostly in the midst of deciding, and what others report is not decided about until it is back. With
sixteen workers a fifth of this gave a tenth more where the front end had cores of its own, and a tenth less where it
had none."""


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
