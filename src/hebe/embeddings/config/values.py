"""Values of a configuration that no number of the machine holds: refused, and shown to whoever wrote them."""

from __future__ import annotations

import sys

_MOST_SHOWN = 80


def as_float(value: float) -> float:
    """`value` as a float. Raises ValueError saying what it must be if it is a whole number beyond all of them."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"must be a number of at most {sys.float_info.max:.3g}") from None


def as_int(value: int) -> int:
    """`value`, which must have at most 64 bits. Raises ValueError saying so."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("must be a whole number of 64 bits")
    return value


def shown(value: object) -> str:
    """`value` as a message has it: no more than its beginning."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of thousands of digits, as one in hexadecimals may have
        return "a whole number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
