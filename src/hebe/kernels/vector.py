"""Float32 vectors as numba values: what the lookup kernel needs so that a row stays in registers.

Numba has no vector type, and its plain loops over rows of a width known only at run time become byte-wise
copies and memory accumulators. Here a vector of `width` float32 is one LLVM value: the compiler splits it over as
many registers as the machine has (four of AVX-512, eight of AVX2, sixteen of NEON for 64 floats).

Memory is addressed as `array[index : index + width]` of a one-dimensional float32 array, unchecked, unaligned.
Numba's cache on disk does not see this file: after a change here, save the kernels that use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

_FLOAT = ir.FloatType()

# Numba's own types describe the two-argument definition below rather than the call in a kernel.
_Definition = Callable[[Callable[..., Any]], Callable[..., Any]]
_intrinsic = cast(_Definition, intrinsic)
_intrinsic_of_literals = cast(_Definition, intrinsic(prefer_literal=True))


class VectorType(types.Type):
    """The numba type of `width` float32 held in registers."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"float32x{width}")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A `VectorType` is LLVM's `<width x float>`."""

    def __init__(self, manager: Any, numba_type: VectorType) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            manager, numba_type, ir.VectorType(_FLOAT, numba_type.width)
        )


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, pointee: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), pointee.as_pointer())


@_intrinsic_of_literals
def zeros(_typing: Any, width: Any) -> Any:
    """A vector of `width` (a literal) zeros."""
    vector = VectorType(width.literal_value)

    def codegen(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
        return ir.Constant(ir.VectorType(_FLOAT, vector.width), [0.0] * vector.width)

    return vector(width), codegen


@_intrinsic_of_literals
def load(_typing: Any, array: Any, _index: Any, width: Any) -> Any:
    """The vector `array[index : index + width]`; `width` is a literal."""
    vector = VectorType(width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_FLOAT, vector.width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        return builder.load(pointer, align=4)

    return vector(array, types.intp, width), codegen


@_intrinsic
def store(_typing: Any, array: Any, _index: Any, vector: Any) -> Any:
    """Write `vector` to `array[index : index + width]`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_FLOAT, vector.width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        builder.store(arguments[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@_intrinsic
def add(_typing: Any, left: Any, right: Any) -> Any:
    """`left + right`, element by element."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return left(left, right), codegen


@_intrinsic
def divide(_typing: Any, vector: Any, _divisor: Any) -> Any:
    """Each element of `vector` over the scalar `divisor`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value, divisor = arguments
        lane = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(value.type, ir.Undefined), divisor, lane)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), value.type.count), [0] * value.type.count)
        return builder.fdiv(value, builder.shuffle_vector(one, one, mask))

    return vector(vector, types.float32), codegen


@_intrinsic
def prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Ask for the cache line that holds `array[index]`, to be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], ir.IntType(8))
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word]), "llvm.prefetch.p0i8"
        )
        read, keep_near, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep_near, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@_intrinsic
def copy(_typing: Any, source: Any, _start: Any, target: Any, _at: Any, _count: Any) -> Any:
    """Copy `source[start : start + count]` to `target[at : at + count]`; they do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        read = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], byte)
        write = _pointer(context, builder, signature.args[2], arguments[2], arguments[3], byte)
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, write, read, arguments[4], 4, align=4
        )
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), codegen
