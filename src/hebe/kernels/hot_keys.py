"""Which keys of a batch read a hot row, and which row that is among the hot ones (Hercules IV.B, Hot-SparseNet).

Hot rows of a table stand in order of key. For every 64 keys the map has two words: which of them are hot, one bit each,
and how many keys before them are. That is 2 bits a row of the table and one cache line a key, whatever is hot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hebe.kernels.compiled import array_type, compile_kernel

KEY_COLUMN, LOOKUPS, ROWS, MAP_START = range(4)
PLAN_COLUMNS = 4
"""Columns of a plan, which has a row a feature: first key column, keys per item, rows of the table, and the row of the
map at which that of the table begins."""

COLD = -2
"""In place of a hot row's number: the key has a row, which is not a hot one."""

IntArray = npt.NDArray[np.int64]
MapArray = npt.NDArray[np.uint64]

_WORD_BITS = 64


def map_words(rows: int) -> int:
    """Rows of the map of a table of `rows` rows."""
    return -(-rows // _WORD_BITS)


def map_hot_rows(rows: int, hot: IntArray) -> MapArray:
    """The map, uint64 `[map_words(rows), 2]`, of a table of `rows` rows of which `hot` are hot: int64, ascending.

    Raises ValueError for keys that are no row, come twice or out of order.
    """
    if hot.size and (hot[0] < 0 or hot[-1] >= rows or (np.diff(hot) <= 0).any()):
        raise ValueError(f"hot rows must be ascending and lie in [0, {rows})")
    words = np.zeros((map_words(rows), 2), np.uint64)
    np.bitwise_or.at(words[:, 0], hot // _WORD_BITS, np.uint64(1) << (hot % _WORD_BITS).astype(np.uint64))
    words[1:, 1] = np.cumsum(np.bitwise_count(words[:-1, 0]), dtype=np.uint64)
    return words


@cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)
def _bits_set(_typing: Any, _word: Any) -> Any:
    """How many bits of a uint64 are set."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(word, [word]), "llvm.ctpop.i64"
        )
        return builder.call(function, arguments)

    return types.uint64(types.uint64), codegen


def _split(keys, plan, words, cold, hot):  # type: ignore[no-untyped-def]
    for feature in range(plan.shape[0]):
        least = 0
        for column in range(PLAN_COLUMNS):
            least = min(least, plan[feature, column])
        ends = plan[feature, MAP_START] + (plan[feature, ROWS] + 63) // 64
        if least < 0 or plan[feature, KEY_COLUMN] + plan[feature, LOOKUPS] > keys.shape[1] or ends > words.shape[0]:
            return -1, 0
    one = np.uint64(1)
    found = 0
    all_hot = 0
    for item in range(keys.shape[0]):
        for feature in range(plan.shape[0]):
            first = plan[feature, KEY_COLUMN]
            rows = np.uint64(plan[feature, ROWS])
            start = plan[feature, MAP_START]
            for position in range(first, first + plan[feature, LOOKUPS]):
                key = keys[item, position]
                place = np.int64(-1)
                if np.uint64(key) < rows:
                    word = start + (key >> 6)
                    bits = words[word, 0]
                    bit = one << np.uint64(key & 63)
                    is_hot = (bits & bit) != 0
                    # Both are computed and one is picked, as half the branches would be guessed wrong.
                    number = np.int64(words[word, 1] + _bits_set(bits & (bit - one)))
                    place = number if is_hot else np.int64(COLD)
                    key = -1 if is_hot else key
                    found += 1
                    all_hot += 1 if is_hot else 0
                hot[item, position] = place
                cold[item, position] = key
    return found, all_hot


@functools.cache
def _kernel() -> Callable[..., tuple[int, int]]:
    read, written = array_type(types.int64, 2), array_type(types.int64, 2, writable=True)
    counts = types.Tuple([types.intp, types.intp])  # type: ignore[no-untyped-call]
    return compile_kernel(_split, counts(read, read, array_type(types.uint64, 2), written, written))


def split_hot_keys(keys: IntArray, plan: IntArray, words: MapArray, cold: IntArray, hot: IntArray) -> tuple[int, int]:
    """Part the key matrix `keys`, int64 `[n, lookups_per_item]`, into what is left to the whole tables and the rest.

    `cold[:n]` becomes the keys with -1 for hot ones; it may be `keys` itself. `hot[:n]` becomes the numbers of hot
    rows, `COLD` where a key has a row that is not hot, and -1 for what is no row's key: padding, and keys out of range,
    which stay in `cold` to be refused by the lookup.

    `words` are the tables' maps one after another; all arrays C-contiguous. Returns how many keys had a row, and of how
    many it is hot. Releases the GIL and allocates nothing. Raises ValueError for arrays of the wrong shape, TypeError
    for arrays of another kind.
    """
    for what, out in (("cold", cold), ("hot", hot)):
        if len(out) < len(keys) or out.shape[1:] != keys.shape[1:]:
            raise ValueError(f"keys {list(keys.shape)}, {what} {list(out.shape)}: must have the same columns and rows")
    found, all_hot = _kernel()(keys, plan, words, cold, hot)
    if found < 0:
        raise ValueError(f"the plan reaches past {keys.shape[1]} keys an item or a map of {len(words)} words")
    return found, all_hot


def split_hot_keys_reference(
    keys: IntArray, plan: IntArray, hot_rows: list[IntArray], cold: IntArray, hot: IntArray
) -> tuple[int, int]:
    """`split_hot_keys` in plain Python, for `hot_rows` by feature: what the kernel must agree with."""
    found = all_hot = 0
    for entry, hottest in zip(plan.tolist(), hot_rows, strict=True):
        numbers = {key: number for number, key in enumerate(hottest.tolist())}
        for item, item_keys in enumerate(keys.tolist()):
            for position in range(entry[KEY_COLUMN], entry[KEY_COLUMN] + entry[LOOKUPS]):
                key = item_keys[position]
                is_row, is_hot = 0 <= key < entry[ROWS], key in numbers
                cold[item, position] = -1 if is_hot else key
                hot[item, position] = numbers.get(key, COLD if is_row else -1)
                found += is_row
                all_hot += is_hot
    return found, all_hot


def warm_up() -> None:
    """Compile the kernel now, or load it from disk, so that no query waits for it."""
    _kernel()
