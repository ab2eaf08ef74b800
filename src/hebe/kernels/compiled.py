"""How every numba kernel of the house is compiled: once, without the GIL, kept on disk for the next process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba import types
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature
from numba.core.typeinfer import register_dispatcher

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

    Takes seconds the first time on a machine and milliseconds afterwards: of processes that begin at once, one compiles
    and the others wait for it. Where no cache can be written (read-only installation without a home directory, full
    disk) it is compiled in every process.
    """
    if (kept := _kept(_kernel, function, signature, options)) is not None:
        return kept  # type: ignore[no-any-return]
    kernel: Callable[..., Any] = numba.njit(signature, **options)(function)
    return kernel


def compile_callback(function: Callable[..., Any], signature: Any, options: dict[str, Any] = OPTIONS) -> Any:
    """As `compile_kernel`, a function of C at the `address` of what is returned, for as long as that lives. It raises
    nothing: what goes wrong in it is not told.
    """
    if (kept := _kept(_callback, function, signature, options)) is not None:
        return kept
    return numba.cfunc(signature, **options)(function)


def _kept(
    begin: Callable[..., tuple[Any, Callable[[], object]]],
    function: Callable[..., Any],
    signature: Any,
    options: dict[str, Any],
) -> Any:
    """`function` compiled, or as it was kept on disk, as `begin` begins it; what is kept and cannot be used is
    forgotten. None where it cannot be kept.

    numba takes what it kept for valid as long as the function's own file is the same. What that calls from other files
    is compiled into it, so all sources of the kernels must be.
    """
    with _one_process_at_a_time(function.__code__.co_filename):
        for _ in range(2):  # again without what was kept, if that cannot be read
            with contextlib.suppress(Exception):
                compiled, finish = begin(_named_for(function, options), signature, options)
                files = compiled._cache._cache_file
                files._source_stamp = (files._source_stamp, _sources_digest())
                try:
                    finish()
                except Exception:
                    # A machine that loses power may leave files of no length, or of zeros, which numba raises for, each
                    # time.
                    Path(files._index_path).unlink(missing_ok=True)
                    raise
                return compiled
    return None


def _kernel(
    function: Callable[..., Any], signature: Any, options: dict[str, Any]
) -> tuple[Callable[..., Any], Callable[[], None]]:
    kernel: Any = numba.njit(cache=True, **options)(function)

    def finish() -> None:
        with register_dispatcher(kernel):
            kernel.compile(signature)
        kernel.disable_compile()

    return kernel, finish


def _callback(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    normalized = normalize_signature(signature)  # type: ignore[no-untyped-call]
    callback = CFunc(function, normalized, {}, {"nopython": True, **options})
    callback.enable_caching()
    return callback, callback.compile


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


@functools.cache
def _sources_digest() -> str:
    """Of the sources of all kernels: the files of this folder and of those below it, with their names."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        # With its length, so that no line can move from one file to another unseen.
        digest.update(f"{path.relative_to(folder)}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()


@contextlib.contextmanager
def _one_process_at_a_time(source: str) -> Iterator[None]:
    """Hold the lock of a source file, which is let go of if this process dies; where it cannot be had, do without."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held.enter_context(open(source, "rb")), fcntl.LOCK_EX)
        yield
