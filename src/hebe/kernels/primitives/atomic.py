"""Atomic operations on array elements, for kernels: they release the GIL, so several threads really run at once.

Arrays are one-dimensional, of int32 or int64 (or their unsigned kin), aligned, and addressed as `array[index]`,
unchecked. A lock is taken with `compare_and_swap` and given back with `store_release`; what was written before the
release is seen by whoever takes it next. Numba's cache on disk does not see this file: after a change here, save the
kernels that use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hebe.kernels.compiled import OPTIONS

SPINS_BEFORE_YIELD = 64
"""A thread that waits asks the processor so often, then lets other threads run: its owner may have lost its core."""

_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


def _element(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _integers(array: Any) -> bool:
    return isinstance(array, types.Array) and array.ndim == 1 and isinstance(array.dtype, types.Integer)


@_intrinsic
def compare_and_swap(_typing: Any, array: Any, _index: Any, _expected: Any, _desired: Any) -> Any:
    """Set `array[index]` to `desired` if it is `expected`; returns whether it was. Acquires and releases."""
    if not _integers(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], arguments[0], arguments[1])
        result = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(array, types.intp, array.dtype, array.dtype), codegen


@_intrinsic
def fetch_add(_typing: Any, array: Any, _index: Any, _amount: Any) -> Any:
    """Add `amount` to `array[index]`; returns what was there before. Acquires and releases."""
    if not _integers(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return array.dtype(array, types.intp, array.dtype), codegen


@_intrinsic
def load_acquire(_typing: Any, array: Any, _index: Any) -> Any:
    """`array[index]`; what is read after it is at least as new as what its writer had written before."""
    if not _integers(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(pointer, "acquire", array.dtype.bitwidth // 8)

    return array.dtype(array, types.intp), codegen


@_intrinsic
def store_release(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Set `array[index]` to `value`, after everything that this thread has written or read before."""
    if not _integers(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], pointer, "release", array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@_intrinsic
def fence(_typing: Any) -> Any:
    """Nothing is read or written across this point: no store before it is seen after one that follows it."""

    def codegen(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), codegen


@_intrinsic
def _spin_hint(_typing: Any) -> Any:
    """Tell the processor that this is a waiting loop, where it has an instruction for that."""

    def codegen(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if "x86_64" in builder.module.triple:
            function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@numba.njit(**OPTIONS)
def wait(spins):  # type: ignore[no-untyped-def]
    """Wait a moment for another thread; `spins` is how often this thread has waited for it before."""
    if spins < SPINS_BEFORE_YIELD:
        _spin_hint()
    else:
        _sched_yield()
