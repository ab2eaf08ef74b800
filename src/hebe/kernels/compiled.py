"""How every numba kernel of the house is compiled: once, without the GIL, kept on disk for the next process."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba import types

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}

BORROWING: dict[str, Any] = {**OPTIONS, "_nrt": False}
"""Options for kernels that call others, and for what they call: numba counts no references to their arrays, which it
does otherwise, in two atomic operations an array a call, inlined or not. Such kernels cannot allocate."""


def array_type(scalar: Any, dimensions: int, *, writable: bool = False) -> Any:
    """The numba type of a C-contiguous array argument.

    One that is only read may be read-only and unaligned, as views of received bytes are; numba converts the
    other kinds to it at no cost, so each kernel needs one signature.
    """
    return types.Array(scalar, dimensions, "C", readonly=not writable, aligned=writable)


def compile_kernel(
    function: Callable[..., Any], signature: Any, options: dict[str, Any] = OPTIONS
) -> Callable[..., Any]:
    """Compile `function` for exactly one `signature`; other argument types raise TypeError when it is called.

    Takes seconds the first time on a machine and milliseconds afterwards: of processes that begin at once, one compiles
    and the others wait for it. Where no cache can be written (read-only installation without a home directory, full
    disk) it is compiled in every process.
    """
    kernel: Callable[..., Any]
    try:
        with _one_process_at_a_time(function.__code__.co_filename):
            kernel = numba.njit(signature, cache=True, **options)(function)
    except (RuntimeError, OSError):
        kernel = numba.njit(signature, **options)(function)
    return kernel


@contextlib.contextmanager
def _one_process_at_a_time(source: str) -> Iterator[None]:
    """Hold the lock of a source file, which is let go of if this process dies; where it cannot be had, do without."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held.enter_context(open(source, "rb")), fcntl.LOCK_EX)
        yield
