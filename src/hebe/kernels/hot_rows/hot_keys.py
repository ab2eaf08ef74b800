"""Which keys of a batch read a hot row, and which row that is among the hot ones (Hercules IV.B, Hot-SparseNet).

Hot rows of a table stand in order of key. For every 64 keys the map has two words: which of them are hot, one bit each,
and how many keys before them are. That is 2 bits a row of the table and one cache line a key, whatever is hot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hebe.kernels.compiled import BORROWING, array_type, compile_kernel
from hebe.kernels.lookup.feature_plan import keys_fit
from hebe.kernels.primitives import vector

KEY_COLUMN, LOOKUPS, ROWS, MAP_START, IN_ANY_ORDER = range(5)
PLAN_COLUMNS = 5
"""Columns of a plan, which has a row a feature: first key column, keys per item, rows of the table, the row of the map
at which that of the table begins, and whether an item's keys may change places, as those of rows to be summed may."""

COLD = -2
"""In place of a hot row's number: the key is left to the whole table. It has a row that is not hot, or none, as a new
one may, and counts in a mean."""

IntArray = npt.NDArray[np.int64]
MapArray = npt.NDArray[np.uint64]

_WORD_BITS = 64
_AHEAD = 16
"""The map of a large model is beyond the nearest caches: its words are asked for so many keys ahead."""

_inlined = numba.njit(forceinline=True, **BORROWING)


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


@_inlined
def _find(words, start, key):  # type: ignore[no-untyped-def]
    """Whether the row of `key` is hot, 0 or 1, and how many hot rows are before it."""
    word = start + (np.uint64(key) >> np.uint64(6))
    bits = words[2 * word]
    place = np.uint64(key) & np.uint64(63)
    before = words[2 * word + 1] + _bits_set(bits & ((np.uint64(1) << place) - np.uint64(1)))
    return np.int64((bits >> place) & np.uint64(1)), np.int64(before)


@_inlined
def _ask_for_later(keys, item, position, first, lookups, rows, words, start):  # type: ignore[no-untyped-def]
    """Prefetch the word of the key that comes `_AHEAD` keys later in the feature, of the next item at the farthest."""
    soon = position + min(_AHEAD, lookups)
    if soon >= first + lookups:
        soon -= lookups
        item += 1
        if item == keys.shape[0]:
            return
    key = keys[item, soon]
    if np.uint64(key) < rows:
        vector.prefetch(words, np.intp(2 * (start + (np.uint64(key) >> np.uint64(6)))))


def _split(keys, plan, words, cold, hot):  # type: ignore[no-untyped-def]
    for feature in range(plan.shape[0]):
        ends = plan[feature, MAP_START] + (plan[feature, ROWS] + 63) // 64
        if not keys_fit(plan, feature, PLAN_COLUMNS, keys) or 2 * ends > words.size:
            return -1, 0
    all_found = 0
    all_hot = 0
    for item in range(keys.shape[0]):
        for feature in range(plan.shape[0]):
            first = plan[feature, KEY_COLUMN]
            end = first + plan[feature, LOOKUPS]
            rows = np.uint64(plan[feature, ROWS])
            start = np.uint64(plan[feature, MAP_START])
            found = 0
            hot_end = cold_end = key_end = first
            if plan[feature, IN_ANY_ORDER]:
                for position in range(first, end):
                    _ask_for_later(keys, item, position, first, end - first, rows, words, start)
                    key = keys[item, position]
                    if np.uint64(key) < rows:
                        # Both are written, and the ends say what counts: branches would often be guessed wrong.
                        is_hot, number = _find(words, start, key)
                        cold[item, cold_end] = key
                        cold_end += 1 - is_hot
                        hot[item, hot_end] = number
                        hot_end += is_hot
                        key_end += 1
                        found += 1
                    elif key != -1:
                        cold[item, cold_end] = key
                        cold_end += 1
                        key_end += 1
                cold[item, cold_end:end] = -1
                hot[item, hot_end:key_end] = COLD
                hot[item, key_end:end] = -1
            else:
                for position in range(first, end):
                    _ask_for_later(keys, item, position, first, end - first, rows, words, start)
                    key = keys[item, position]
                    number = np.int64(-1 if key == -1 else COLD)
                    if np.uint64(key) < rows:
                        is_hot, before = _find(words, start, key)
                        number = COLD + is_hot * (before - COLD)
                        key -= is_hot * (key + 1)
                        hot_end += is_hot
                        found += 1
                    hot[item, position] = number
                    cold[item, position] = key
            all_found += found
            all_hot += hot_end - first
    return all_found, all_hot


@functools.cache
def _kernel() -> Callable[..., tuple[int, int]]:
    read, written = array_type(types.int64, 2), array_type(types.int64, 2, writable=True)
    counts = types.Tuple([types.intp, types.intp])  # type: ignore[no-untyped-call]
    return compile_kernel(_split, counts(read, read, array_type(types.uint64, 1), written, written), BORROWING)


def split_hot_keys(keys: IntArray, plan: IntArray, words: MapArray, cold: IntArray, hot: IntArray) -> tuple[int, int]:
    """Part the key matrix `keys`, int64 `[n, lookups_per_item]`, into what is left to the whole tables and the rest.

    `cold[:n]` becomes the keys with -1 for hot ones; it may be `keys` itself. `hot[:n]` becomes the numbers of hot
    rows, `COLD` where a key is left in `cold`, to be refused or answered by the lookup, and -1 for padding.

    Where a feature's keys may change places, those of an item that are left, and the numbers, come before what is none:
    the loops that read them then guess right where they end.

    `words` are the tables' maps one after another; all arrays C-contiguous. Returns how many keys had a row, and of how
    many it is hot. Releases the GIL and allocates nothing. Raises ValueError for arrays of the wrong shape, TypeError
    for arrays of another kind.
    """
    for what, out in (("cold", cold), ("hot", hot)):
        if len(out) < len(keys) or out.shape[1:] != keys.shape[1:]:
            raise ValueError(f"keys {list(keys.shape)}, {what} {list(out.shape)}: must have the same columns and rows")
    found, all_hot = _kernel()(keys, plan, words.reshape(-1), cold, hot)
    if found < 0:
        raise ValueError(f"the plan reaches past {keys.shape[1]} keys an item or a map of {len(words)} words")
    return found, all_hot


def split_hot_keys_reference(
    keys: IntArray, plan: IntArray, hot_rows: list[IntArray], cold: IntArray, hot: IntArray
) -> tuple[int, int]:
    """`split_hot_keys` in plain Python, for `hot_rows` by feature: what the kernel must agree with."""
    all_found = all_hot = 0
    for entry, hottest in zip(plan.tolist(), hot_rows, strict=True):
        first, lookups, rows, _, in_any_order = entry
        number_of = {key: number for number, key in enumerate(hottest.tolist())}
        for item, item_keys in enumerate(keys[:, first : first + lookups].tolist()):
            left = [-1 if key in number_of else key for key in item_keys]
            numbers = [number_of.get(key, -1 if key == -1 else COLD) for key in item_keys]
            all_found += sum(0 <= key < rows for key in item_keys)
            all_hot += sum(number >= 0 for number in numbers)
            if in_any_order:
                left.sort(key=lambda key: key == -1)
                numbers.sort(key=lambda number: (number < 0, number == -1))
            cold[item, first : first + lookups], hot[item, first : first + lookups] = left, numbers
    return all_found, all_hot


def _number(keys, plan, hot):  # type: ignore[no-untyped-def]
    for feature in range(plan.shape[0]):
        if not keys_fit(plan, feature, PLAN_COLUMNS, keys):
            return -1, -1
    found = refused = 0
    for item in range(keys.shape[0]):
        for feature in range(plan.shape[0]):
            first = plan[feature, KEY_COLUMN]
            rows = np.uint64(plan[feature, ROWS])
            for position in range(first, first + plan[feature, LOOKUPS]):
                key = keys[item, position]
                is_row = np.int64(np.uint64(key) < rows)
                found += is_row  # type: ignore[assignment]
                refused += (1 - is_row) * np.int64(key != -1)  # type: ignore[assignment]
                hot[item, position] = key
    return found, refused


@functools.cache
def _numbering_kernel() -> Callable[..., tuple[int, int]]:
    read, written = array_type(types.int64, 2), array_type(types.int64, 2, writable=True)
    counts = types.Tuple([types.intp, types.intp])  # type: ignore[no-untyped-call]
    return compile_kernel(_number, counts(read, read, written), BORROWING)


def number_hot_keys(keys: IntArray, plan: IntArray, hot: IntArray) -> tuple[int, int]:
    """`split_hot_keys` where all rows are hot: a key is its row's number, so `hot[:n]` becomes `keys`, and nothing is
    left to the whole tables.

    Returns how many keys had a row, and how many are out of range; `plan`'s places in the map are not read. Releases
    the GIL and allocates nothing. Raises ValueError for arrays of the wrong shape, TypeError for arrays of another
    kind.
    """
    if len(hot) < len(keys) or hot.shape[1:] != keys.shape[1:]:
        raise ValueError(f"keys {list(keys.shape)}, hot {list(hot.shape)}: must have the same columns and rows")
    found, refused = _numbering_kernel()(keys, plan, hot)
    if found < 0:
        raise ValueError(f"the plan reaches past {keys.shape[1]} keys an item")
    return found, refused


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _kernel()
    _numbering_kernel()
