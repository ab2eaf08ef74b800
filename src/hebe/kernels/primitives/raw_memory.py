"""Memory by its address, as numba values: what a structure needs whose parts are not one array.

Addresses are int64 and unchecked; words are int64 at multiples of 8. Numba's cache on disk does not see this file:
after a change here, save the kernels that use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hebe.kernels.compiled import BORROWING

WORD_BYTES = 8
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_inlined = numba.njit(forceinline=True, **BORROWING)
_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)


@_intrinsic
def load_word(_typing: Any, _address: Any) -> Any:
    """The int64 at `address`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=8)

    return types.int64(types.int64), codegen


@_intrinsic
def store_word(_typing: Any, _address: Any, _value: Any) -> Any:
    """Write the int64 `value` at `address`."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@_inlined
def word_in(block, word):  # type: ignore[no-untyped-def]
    """The int64 that is `word`, counted from 0, of those at address `block`."""
    return load_word(block + WORD_BYTES * word)


@_inlined
def put_word(block, word, value):  # type: ignore[no-untyped-def]
    """Write it."""
    store_word(block + WORD_BYTES * word, value)


@_intrinsic
def store_shared_word(_typing: Any, _address: Any, _value: Any) -> Any:
    """Write the int64 `value` at `address` in one piece, whoever else writes there at the same time."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()), "monotonic", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@_intrinsic
def add_to_shared_word(_typing: Any, _address: Any, _amount: Any) -> Any:
    """Add `amount` to the int64 at `address`, losing nothing that others add; returns what was there before. What they
    wrote before they added to it is there by then.
    """

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


def _prefetch(nearness: int) -> Callable[[Any, Any, Any, Any], Any]:
    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), number, number, number]),
            "llvm.prefetch.p0i8",
        )
        read, near, data = (ir.Constant(number, value) for value in (0, nearness, 1))
        builder.call(function, [builder.inttoptr(arguments[0], _BYTE.as_pointer()), read, near, data])
        return context.get_dummy_value()

    return codegen


@_intrinsic
def prefetch_at(_typing: Any, _address: Any) -> Any:
    """Ask for the cache line that holds `address`, to be read next; one that is not mapped does no harm."""
    return types.void(types.int64), _prefetch(nearness=3)


@_intrinsic
def prefetch_soon(_typing: Any, _address: Any) -> Any:
    """As `prefetch_at`, for lines that are too many for the first cache: it stays with the second."""
    return types.void(types.int64), _prefetch(nearness=2)


@_intrinsic
def copy_bytes(_typing: Any, _target: Any, _source: Any, _count: Any) -> Any:
    """Copy `count` bytes from address `source` to address `target`; they do not overlap."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, target, source, arguments[2], 1, align=4
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@_intrinsic
def call_at(_typing: Any, _address: Any, _one: Any, _two: Any, _three: Any) -> Any:
    """Call the C function at `address` with up to three numbers or addresses; what it needs no more it does not see."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function = builder.inttoptr(arguments[0], ir.FunctionType(_WORD, [_WORD] * 3).as_pointer())
        return builder.call(function, arguments[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@_intrinsic
def pointer_to(_typing: Any, _address: Any) -> Any:
    """`address` as numba's `carray` takes it."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE.as_pointer())

    return types.voidptr(types.int64), codegen
