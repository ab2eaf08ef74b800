"""What the kernel tells in files: lists of numbers, as in "0-3,8", and why a file cannot be read."""

from __future__ import annotations


def listed_ranges(text: str) -> list[tuple[int, int]]:
    """First and last of each range, in the order of the list: of cores, or of places of bits.

    Raises ValueError for anything else.
    """
    ranges = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        ranges.append((int(first), int(last or first)))
    return ranges


def why_unreadable(fault: OSError | ValueError, if_refused: str) -> str:
    """What to say of a fault: of one that this user may not read, with `if_refused`, which says what would help."""
    if isinstance(fault, PermissionError):
        return f"{fault.filename} {if_refused}"
    if isinstance(fault, OSError):
        return f"{fault.filename}: {fault.strerror or type(fault).__name__}"
    return str(fault)
