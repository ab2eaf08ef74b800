"""Tags of one byte each, 32 compared at once: a hash table's first, cheapest look at its slots.

Numba's cache on disk does not see this file: after a change here, save the kernels that use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

TAGS_AT_ONCE = 32

_BYTES = ir.VectorType(ir.IntType(8), TAGS_AT_ONCE)
_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)


@_intrinsic
def matching_tags(_typing: Any, tags: Any, _index: Any, _tag: Any) -> Any:
    """Which of `tags[index : index + TAGS_AT_ONCE]` (uint8) are `tag`: bit i of an uint32 says so of the i-th."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _BYTES.as_pointer())
        lane = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), arguments[2], lane)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), TAGS_AT_ONCE), [0] * TAGS_AT_ONCE)
        equal = builder.icmp_unsigned("==", builder.load(pointer, align=1), builder.shuffle_vector(one, one, zeros))
        return builder.bitcast(equal, ir.IntType(32))

    return types.uint32(tags, types.intp, types.uint8), codegen


@_intrinsic
def lowest_bit(_typing: Any, _mask: Any) -> Any:
    """The number of the lowest bit set in an uint32 `mask`, which is not 0."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.zext(place, ir.IntType(64))

    return types.int64(types.uint32), codegen
