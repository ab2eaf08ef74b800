"""What is asked of Redis and what it answers, apart from the client library that carries both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

KEY_BYTES = 8

Reply = int | bytes | None | list["Reply"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. All its Redis keys are in the hash slot of `key`."""

    key: bytes
    arguments: tuple[bytes, ...]


def elements(values: npt.NDArray[np.generic]) -> list[bytes]:
    """The little-endian bytes of each item of `values` `[n]`, or of each of its rows if they are `[n, dim]`."""
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    size = little_endian.itemsize * (little_endian.shape[1] if little_endian.ndim == 2 else 1)
    taken: list[bytes] = little_endian.view(f"V{size}").reshape(-1).tolist()
    return taken


def pairs(first: Iterable[bytes], second: Iterable[bytes]) -> Sequence[bytes]:
    """One of each in turn, until one of them ends."""
    return list(chain.from_iterable(zip(first, second)))  # noqa: B905 - one of them may be `repeat`
