"""A fair lock of readers and writers, for kernels: in turn of arrival, so nobody starves.

A lock is three int64 zeros of an array, from index `at` on. Readers that follow each other are in together; a writer
is alone. Whoever waits sleeps after a while, so that an owner of lower priority gets the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from hebe.kernels.compiled import BORROWING
from hebe.kernels.primitives.atomic import fetch_add, load_acquire, wait

LOCK_WORDS = 3

_TICKETS, _READERS, _WRITERS = range(LOCK_WORDS)
"""Next ticket to draw; the ticket that may read; the ticket that may write: all before it have left."""

_WAITS_BEFORE_SLEEP = 200
_SLEEP_US = 50

_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(**BORROWING)


@_inlined
def _wait_for(words, at, ticket):  # type: ignore[no-untyped-def]
    waits = 0
    while load_acquire(words, at) != ticket:
        if waits < _WAITS_BEFORE_SLEEP:
            wait(waits)
        else:
            _usleep(_SLEEP_US)
        waits += 1


@_inlined
def lock_shared(words, at):  # type: ignore[no-untyped-def]
    """Wait until no writer that came before is in."""
    ticket = fetch_add(words, at + _TICKETS, 1)
    _wait_for(words, at + _READERS, ticket)
    fetch_add(words, at + _READERS, 1)


@_inlined
def unlock_shared(words, at):  # type: ignore[no-untyped-def]
    """Leave after `lock_shared`."""
    fetch_add(words, at + _WRITERS, 1)


@_inlined
def lock_exclusive(words, at):  # type: ignore[no-untyped-def]
    """Wait until nobody who came before is in."""
    ticket = fetch_add(words, at + _TICKETS, 1)
    _wait_for(words, at + _WRITERS, ticket)


@_inlined
def unlock_exclusive(words, at):  # type: ignore[no-untyped-def]
    """Leave after `lock_exclusive`."""
    fetch_add(words, at + _READERS, 1)
    fetch_add(words, at + _WRITERS, 1)
