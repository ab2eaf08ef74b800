"""What was made of bytes that came more than once, for when they come again.

Many clients say the same again and again: the same head of a request, the same JSON before tensors of the same shapes.
Nothing is kept of what comes once, as where each request has an id.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_Value = TypeVar("_Value")

_MOST_SEEN = 8192


class Repeated(Generic[_Value]):
    """At most `most` values, of texts of at most `most_bytes`. Not thread-safe."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[bytes, _Value] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes) -> _Value | None:
        """What was kept of `text`."""
        return self._kept.get(text) if len(text) <= self._most_bytes else None

    def comes_again(self, text: bytes) -> bool:
        """Whether `text`, of which nothing is kept, came before, so that it pays to keep what is made of it."""
        if len(text) > self._most_bytes or text in self._kept:
            return False
        mark = hash(text)
        if mark in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def forget(self, text: bytes) -> None:
        """Keep nothing of `text` any more."""
        self._kept.pop(text, None)

    def keep(self, text: bytes, value: _Value) -> None:
        """Keep this of `text`, instead of what has been kept longest if that is much."""
        if len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[text] = value
