"""Float32 vectors as numba values: what the kernels over rows need so that a row stays in registers.

Numba has no vector type, and its plain loops over rows of a width known only at run time become byte-wise
copies and memory accumulators. Here a vector of `width` float32 is one LLVM value: the compiler splits it over as
many registers as the machine has (four of AVX-512, eight of AVX2, sixteen of NEON for 64 floats).

Memory is addressed as `array[index]` of a one-dimensional array of floats or of bytes, unchecked, unaligned: of bytes,
an index counts these, whatever is read there. Narrower numbers are widened when loaded and rounded when stored.
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

_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_BYTE, _SHORT, _WORD = ir.IntType(8), ir.IntType(16), ir.IntType(32)

FLOAT16_MAX = 65504.0
INT8_MAX = 127.0
INFINITE_BITS = 0x7F800000
"""The bits of infinity; those of any finite magnitude are fewer, those of any NaN more."""

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


def _spread(builder: Any, scalar: Any, width: int) -> Any:
    """A vector with `scalar` in each place."""
    one = builder.insert_element(
        ir.Constant(ir.VectorType(scalar.type, width), ir.Undefined), scalar, ir.Constant(_WORD, 0)
    )
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_WORD, width), [0] * width))


def _call(builder: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    """A call of one of LLVM's own functions, of the type of its first argument unless said otherwise."""
    result = result or arguments[0].type
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(result, [argument.type for argument in arguments]), name
    )
    return builder.call(function, arguments)


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
        return builder.load(pointer, align=1)

    return vector(array, types.intp, width), codegen


@_intrinsic
def store(_typing: Any, array: Any, _index: Any, vector: Any) -> Any:
    """Write `vector` to `array[index : index + width]`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_FLOAT, vector.width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        builder.store(arguments[2], pointer, align=1)
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
        return builder.fdiv(value, _spread(builder, divisor, value.type.count))

    return vector(vector, types.float32), codegen


@_intrinsic
def multiply(_typing: Any, vector: Any, _factor: Any) -> Any:
    """Each element of `vector` times the scalar `factor`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value, factor = arguments
        return builder.fmul(value, _spread(builder, factor, value.type.count))

    return vector(vector, types.float32), codegen


@_intrinsic
def add_multiple(_typing: Any, total: Any, vector: Any, _factor: Any) -> Any:
    """`total + vector * factor`, rounded once where the machine can."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums, value, factor = arguments
        width = value.type.count
        return _call(builder, f"llvm.fmuladd.v{width}f32", [value, _spread(builder, factor, width), sums])

    return total(total, vector, types.float32), codegen


@_intrinsic
def load_float(_typing: Any, array: Any, _index: Any) -> Any:
    """The one float32 at `array[index]`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], _FLOAT)
        return builder.load(pointer, align=1)

    return types.float32(array, types.intp), codegen


@_intrinsic
def store_float(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Write the one float32 `value` at `array[index]`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], _FLOAT)
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), codegen


def _converts_halves(context: Any) -> bool:
    """Whether the machine that is compiled for converts float16 itself. Else LLVM would call what is not there."""
    triple, _, features = context.codegen().magic_tuple()
    return "+f16c" in features or not triple.startswith(("x86", "i686"))


def _same(vector_type: Any, number: Any) -> Any:
    return ir.Constant(vector_type, [number] * vector_type.count)


_BIAS = 112 << 23
"""What the exponent of a float32 has more than that of the float16 of the same value, in place."""


def _widened(context: Any, builder: Any, halves: Any) -> Any:
    """The float32 of float16 given as int16."""
    width = halves.type.count
    floats, words = ir.VectorType(_FLOAT, width), ir.VectorType(_WORD, width)
    if _converts_halves(context):
        return builder.fpext(builder.bitcast(halves, ir.VectorType(_HALF, width)), floats)
    bits = builder.zext(halves, words)
    sign = builder.shl(builder.and_(bits, _same(words, 0x8000)), _same(words, 16))
    magnitude = builder.shl(builder.and_(bits, _same(words, 0x7FFF)), _same(words, 13))
    exponent = builder.and_(magnitude, _same(words, 0x7C00 << 13))
    number = builder.add(magnitude, _same(words, _BIAS))
    infinite = builder.icmp_unsigned("==", exponent, _same(words, 0x7C00 << 13))
    number = builder.select(infinite, builder.add(number, _same(words, _BIAS)), number)
    # Below the normal ones: as if there were a leading one, which is then taken off.
    small = builder.bitcast(builder.add(number, _same(words, 1 << 23)), floats)
    small = builder.bitcast(builder.fsub(small, _same(floats, 2.0**-14)), words)
    number = builder.select(builder.icmp_unsigned("==", exponent, _same(words, 0)), small, number)
    return builder.bitcast(builder.or_(number, sign), floats)


def _narrowed(context: Any, builder: Any, value: Any) -> Any:
    """The float16, as int16, nearest to float32 within its range or not finite."""
    width = value.type.count
    shorts, words = ir.VectorType(_SHORT, width), ir.VectorType(_WORD, width)
    if _converts_halves(context):
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(_HALF, width)), shorts)
    bits = builder.bitcast(value, words)
    magnitude = builder.and_(bits, _same(words, 0x7FFFFFFF))
    sign = builder.lshr(builder.xor(bits, magnitude), _same(words, 16))
    odd = builder.and_(builder.lshr(magnitude, _same(words, 13)), _same(words, 1))
    rounded = builder.add(builder.add(magnitude, odd), _same(words, 0xFFF - _BIAS))
    half = builder.lshr(rounded, _same(words, 13))
    # Below the normal ones: the last place of a half is that of a float32 of 0.5, where adding it rounds.
    small = builder.fadd(builder.bitcast(magnitude, value.type), _same(value.type, 0.5))
    small = builder.and_(builder.bitcast(small, words), _same(words, 0x7FFF))
    half = builder.select(builder.icmp_unsigned("<", magnitude, _same(words, 113 << 23)), small, half)
    infinite = builder.icmp_unsigned(">=", magnitude, _same(words, INFINITE_BITS))
    nan = builder.icmp_unsigned(">", magnitude, _same(words, INFINITE_BITS))
    half = builder.select(infinite, builder.select(nan, _same(words, 0x7E00), _same(words, 0x7C00)), half)
    return builder.trunc(builder.or_(half, sign), shorts)


@_intrinsic_of_literals
def load_float16(_typing: Any, array: Any, _index: Any, width: Any) -> Any:
    """The vector of `width` (a literal) float16 that begins at `array[index]`."""
    vector = VectorType(width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_SHORT, vector.width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        return _widened(context, builder, builder.load(pointer, align=1))

    return vector(array, types.intp, width), codegen


@_intrinsic_of_literals
def load_int8(_typing: Any, array: Any, _index: Any, width: Any) -> Any:
    """The vector of `width` (a literal) int8 that begins at `array[index]`."""
    vector = VectorType(width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_BYTE, vector.width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        return builder.sitofp(builder.load(pointer, align=1), ir.VectorType(_FLOAT, vector.width))

    return vector(array, types.intp, width), codegen


def _clip(builder: Any, value: Any, most: float) -> Any:
    """`value` brought into [-most, most]; NaN stays."""
    for limit, beyond in ((most, ">"), (-most, "<")):
        limits = ir.Constant(value.type, [limit] * value.type.count)
        value = builder.select(builder.fcmp_ordered(beyond, value, limits), limits, value)
    return value


@_intrinsic
def store_float16(_typing: Any, array: Any, _index: Any, vector: Any) -> Any:
    """Write `vector` as float16 from `array[index]` on: finite numbers beyond the largest become that."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[2]
        width = value.type.count
        magnitude = _call(builder, f"llvm.fabs.v{width}f32", [value])
        infinite = builder.fcmp_ordered("==", magnitude, ir.Constant(value.type, [float("inf")] * width))
        value = builder.select(infinite, value, _clip(builder, value, FLOAT16_MAX))
        halves = _narrowed(context, builder, value)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], halves.type)
        builder.store(halves, pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@_intrinsic
def store_int8(_typing: Any, array: Any, _index: Any, vector: Any) -> Any:
    """Write `vector`, finite numbers, as int8 from `array[index]` on: to nearest, at most 127 either way."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[2]
        width = value.type.count
        rounded = _call(builder, f"llvm.rint.v{width}f32", [_clip(builder, value, INT8_MAX)])
        pointee = ir.VectorType(_BYTE, width)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        words = builder.fptosi(rounded, ir.VectorType(_WORD, width))
        builder.store(builder.trunc(words, pointee), pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@_intrinsic_of_literals
def peak_bits(_typing: Any, array: Any, _index: Any, width: Any) -> Any:
    """The largest magnitude of `width` (a literal) float32 from `array[index]` on, as its bits, an int32.

    `INFINITE_BITS` or more if one of them is not finite: bits of magnitudes are in the order of these.
    """
    number = width.literal_value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointee = ir.VectorType(_WORD, number)
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], pointee)
        bits = builder.and_(builder.load(pointer, align=1), ir.Constant(pointee, [0x7FFFFFFF] * number))
        return _call(builder, f"llvm.vector.reduce.umax.v{number}i32", [bits], _WORD)

    return types.int32(array, types.intp, width), codegen


@_intrinsic
def float_of_bits(_typing: Any, _bits: Any) -> Any:
    """The float32 that has these bits, an int32."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), codegen


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
            builder, write, read, arguments[4], 4, align=1
        )
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), codegen
