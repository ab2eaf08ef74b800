"""How a slab cache lies in memory (HPS 4.1): slots of key, counter and row, 32 to a slab, some slabs to a slabset.

    tags    one byte a slot: 0 where it is empty, else 1 to 255 from the key's hash; a slabset's are side by side
    state   int64s of each slabset: its version, which is odd while a thread changes it, then a stale bit for each slot
    slots   int64s of each slot: its key, and the iteration that last asked for it
    rows    the slot's row, in its format, from a multiple of 4 bytes on

All begin on a cache line. Memory of zeros is an empty cache.

Tags are compared 32 at once (`matching_tags`): a hash table's first, cheapest look at its slots. Numba's cache on disk
does not see this file: after a change here, save the kernels that use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hebe.kernels.lookup.row_format import ByteArray, RowFormat

SLOTS_PER_SLAB = 32
CACHE_LINE_BYTES = 64
MOST_SETS = 1 << 31

IntArray = npt.NDArray[np.int64]


class SlabArrays(NamedTuple):
    """Views of a cache's memory: uint8, int64, int64, uint8."""

    tags: ByteArray
    state: IntArray
    slots: IntArray
    rows: ByteArray


@dataclass(frozen=True, slots=True)
class SlabGeometry:
    """`sets` slabsets of `slabs_per_set` slabs for rows of `dim` numbers. Raises ValueError naming a bad field."""

    sets: int
    slabs_per_set: int
    dim: int
    row_format: RowFormat = RowFormat.FP32

    def __post_init__(self) -> None:
        for name, value, most in (
            ("sets", self.sets, MOST_SETS),
            ("slabs_per_set", self.slabs_per_set, 64),
            ("dim", self.dim, 1 << 16),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [1, {most}]")

    @property
    def slots_per_set(self) -> int:
        """Slots of a slabset."""
        return SLOTS_PER_SLAB * self.slabs_per_set

    @property
    def slots(self) -> int:
        """Slots in all: the most rows that it holds."""
        return self.sets * self.slots_per_set

    @property
    def state_words(self) -> int:
        """Words of state of a slabset."""
        return 1 + -(-self.slots_per_set // 64)

    @property
    def stride_bytes(self) -> int:
        """From one row to the next."""
        return -(-self.row_format.row_bytes(self.dim) // 4) * 4

    @property
    def section_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of tags, state, slots and rows, each filled up to a whole cache line."""
        sizes = (self.slots, 8 * self.sets * self.state_words, 16 * self.slots, self.slots * self.stride_bytes)
        tags, state, slots, rows = (-(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for size in sizes)
        return tags, state, slots, rows

    @property
    def memory_bytes(self) -> int:
        """Bytes of the whole cache."""
        return sum(self.section_bytes)

    def arrays(self, memory: ByteArray) -> SlabArrays:
        """The cache's parts as views of `memory`, uint8 `[memory_bytes]`, which begins on a cache line."""
        if memory.shape != (self.memory_bytes,) or memory.dtype != np.uint8:
            raise ValueError(f"memory is {memory.dtype} {list(memory.shape)}: must be uint8 [{self.memory_bytes}]")
        ends = np.cumsum(self.section_bytes).tolist()
        tags, state, slots, rows = (
            memory[end - size : end] for end, size in zip(ends, self.section_bytes, strict=True)
        )
        return SlabArrays(tags, state.view(np.int64), slots.view(np.int64), rows)


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
