"""What a long plan or simulation reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """So many of `total` steps of a stage are done; `total` is None while nobody knows it.

    `queries` is how many a stage simulates in all its steps together; None where it simulates none.
    """

    stage: str
    done: int
    total: int | None
    queries: int | None = None


OnProgress = Callable[[Progress], object]
"""Receives every step; `print` is one. It is called in the thread that plans."""


def ignore(_progress: Progress) -> None:
    """For callers that do not want to know."""
