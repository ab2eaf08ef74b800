"""How every numba kernel of the house is compiled: once, without the GIL, kept on disk for the next process."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numba
from numba import types
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature
from numba.core.typeinfer import register_dispatcher

from hebe.kernels.kernel_cache import cache_of, compiling

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}

LOCKED: dict[str, Any] = {**OPTIONS, "nogil": False}
"""For what takes less time than to wait for the interpreter lock, which whoever lets go of it has to."""

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

    Takes seconds the first time on a machine and milliseconds afterwards (`kernel_cache`): of processes that begin at
    once, one compiles and the others wait for it. Where no cache can be written it is compiled in every process.
    """
    kernel: Any = numba.njit(**options)(_named_for(function, options))
    with _one_process_at_a_time(function.__code__.co_filename), register_dispatcher(kernel):
        cache = cache_of(kernel.py_func)
        if cache is not None:
            kernel._cache = cache
        else:
            compiling(kept=False)
        kernel.compile(signature)
    kernel.disable_compile()
    return kernel  # type: ignore[no-any-return]


def compile_callback(function: Callable[..., Any], signature: Any, options: dict[str, Any] = OPTIONS) -> Any:
    """As `compile_kernel`, a function of C at the `address` of what is returned, for as long as that lives. It raises
    nothing: what goes wrong in it is not told.
    """
    named = _named_for(function, options)
    normalized = normalize_signature(signature)  # type: ignore[no-untyped-call]
    callback: Any = CFunc(named, normalized, {}, {"nopython": True, **options})
    with _one_process_at_a_time(function.__code__.co_filename):
        cache = cache_of(named)
        if cache is not None:
            callback._cache = cache
        else:
            compiling(kept=False)
        callback.compile()
    return callback


def _named_for(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """`function`, under a name of its own for other options than usual: numba keeps what it compiled by the name, and
    would take what it kept with other options for the same.
    """
    others = [f"{name}={value}" for name, value in options.items() if OPTIONS.get(name) != value]
    if not others:
        return function
    named = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    named.__qualname__ = ".".join([function.__qualname__, *others])
    return named


@contextlib.contextmanager
def _one_process_at_a_time(source: str) -> Iterator[None]:
    """Hold the lock of a source file, which is let go of if this process dies; where it cannot be had, do without."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held.enter_context(open(source, "rb")), fcntl.LOCK_EX)
        yield
