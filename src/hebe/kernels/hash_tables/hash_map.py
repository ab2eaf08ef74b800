"""A hash map of rows in partitions, by what can be done with it; `hash_map_partition` says how it lies in memory.

Memory comes from the caller, by address. Growing adds chunks and copies no row; slots are made anew beside the old
ones, of which queries know nothing until both are exchanged. Any thread may call any kernel at any time. Queries of a
partition run together; writers of one follow each other, and have it for themselves for a few rows at a time. The plain
reference is `hash_map_reference`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import BORROWING, OPTIONS, array_type, compile_kernel
from hebe.kernels.hash_tables.hash_map_partition import (
    ACCESS_LOCK,
    BITS,
    CHUNKS,
    CLOCK,
    CLOSED,
    COUNT,
    EVICT_LEAST_USED,
    FREE,
    HEADER_WORDS,
    KEY,
    MARGIN,
    MARK,
    NO_LIMIT,
    POLICY,
    ROWS,
    SIZE,
    SLICE_ROWS,
    SLOT_BYTES,
    SLOTS,
    TIME,
    USED,
    WRITER_LOCK,
    add,
    find,
    lock_exclusive,
    lock_shared,
    most_keys_within,
    prefetch_slot,
    prune,
    record_address,
    remove,
    row_address,
    row_in,
    unlock_exclusive,
    unlock_shared,
)
from hebe.kernels.hash_tables.xxh64 import hash_key
from hebe.kernels.primitives.atomic import fetch_add
from hebe.kernels.primitives.raw_memory import (
    add_to_shared_word,
    copy_bytes,
    load_word,
    prefetch_soon,
    store_shared_word,
    store_word,
)

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]
RowArray = npt.NDArray[np.float32]
FoundMask = npt.NDArray[np.bool_]

DONE, NEEDS_SLOTS, NEEDS_ROWS, MAP_CLOSED = range(4)
"""What `insert` says."""

OVERSHOOT_ROWS = 1024
"""A call may bring a partition so far above its margin, or to twice that if less, before it is pruned; at the end of a
call it never is."""

_ROWS_AHEAD = 16
_MOST_LINES_AHEAD = 16
_LINE_BYTES = 64

_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(**BORROWING)


@_inlined
def _partition_of(hashed, partitions):  # type: ignore[no-untyped-def]
    if partitions & (partitions - 1) == 0:
        return np.int64(hashed & np.uint64(partitions - 1))
    return np.int64(hashed % np.uint64(partitions))


def _group_keys(keys, partitions):  # type: ignore[no-untyped-def]
    """Positions and hashes of `keys` by partition, in order of the call within each; where each partition starts."""
    order = np.empty(keys.size, np.int64)
    hashes = np.empty(keys.size, np.uint64)
    unordered = np.empty(keys.size, np.uint64)
    starts = np.zeros(partitions + 1, np.int64)
    for position in range(keys.size):
        hashed = hash_key(keys[position])
        unordered[position] = hashed
        starts[_partition_of(hashed, partitions) + 1] += 1
    for partition in range(partitions):
        starts[partition + 1] += starts[partition]
    for position in range(keys.size):
        hashed = unordered[position]
        partition = _partition_of(hashed, partitions)
        index = starts[partition]
        order[index] = position
        hashes[index] = hashed
        starts[partition] = index + 1
    for partition in range(partitions, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
    return order, hashes, starts


_group = numba.njit(**OPTIONS)(_group_keys)


@_inlined
def _find_row(slots, bits, chunks, key, hashed, chunk_bits, row_bytes, lines):  # type: ignore[no-untyped-def]
    """Where the row of `key` lies, 0 if nowhere; and ask for its first `lines` cache lines."""
    slot = find(slots, bits, key, hashed)
    if slot < 0:
        return 0
    address = row_address(chunks, row_in(slots, slot), chunk_bits, row_bytes)
    for line in range(lines):
        prefetch_soon(address + line * _LINE_BYTES)
    return address


@_inlined
def _copy_found(  # type: ignore[no-untyped-def]
    header, chunk_bits, row_bytes, keys, order, hashes, starts, addresses, target, found
):
    """Copy the rows of keys `order`, which are grouped; that of key i goes to `target + i * row_bytes`."""
    lines = min((row_bytes + _LINE_BYTES - 1) // _LINE_BYTES, _MOST_LINES_AHEAD)
    count = 0
    for partition in range(starts.size - 1):
        first, stop = starts[partition], starts[partition + 1]
        if first == stop:
            continue
        at = partition * HEADER_WORDS
        lock_shared(header, at + ACCESS_LOCK)
        slots, bits, chunks = header[at + SLOTS], header[at + BITS], header[at + CHUNKS]
        if slots == 0:
            closed = header[at + CLOSED]
            unlock_shared(header, at + ACCESS_LOCK)
            if closed:
                return -1
            for index in range(first, stop):
                found[order[index]] = False
            continue
        for index in range(first, min(first + 2 * _ROWS_AHEAD, stop)):
            prefetch_slot(slots, bits, hashes[index])
        for index in range(first, min(first + _ROWS_AHEAD, stop)):
            key = keys[order[index]]
            addresses[index] = _find_row(slots, bits, chunks, key, hashes[index], chunk_bits, row_bytes, lines)
        for index in range(first, stop):
            if index + 2 * _ROWS_AHEAD < stop:
                prefetch_slot(slots, bits, hashes[index + 2 * _ROWS_AHEAD])
            ahead = index + _ROWS_AHEAD
            if ahead < stop:
                key = keys[order[ahead]]
                addresses[ahead] = _find_row(slots, bits, chunks, key, hashes[ahead], chunk_bits, row_bytes, lines)
            position = order[index]
            if addresses[index] != 0:
                copy_bytes(target + position * row_bytes, addresses[index], row_bytes)
                found[position] = True
                count += 1
            else:
                found[position] = False
        unlock_shared(header, at + ACCESS_LOCK)
    return count


def _query(header, chunk_bits, keys, rows, found):  # type: ignore[no-untyped-def]
    order, hashes, starts = _group(keys, header.size // HEADER_WORDS)
    addresses, target = np.empty(keys.size, np.int64), np.int64(rows.ctypes.data)
    return _copy_found(header, chunk_bits, 4 * rows.shape[1], keys, order, hashes, starts, addresses, target, found)


def _fill_tables(  # type: ignore[no-untyped-def]
    headers, plan, numbers, keys, starts, rows, bases, wanted, found
):
    partitions = headers.shape[1] // HEADER_WORDS
    places, chosen, addresses = np.empty((3, keys.size), np.int64)
    count = 0
    for number in range(numbers.size):
        size = 0
        for place in range(starts[number], starts[number + 1]):
            if wanted[place]:
                places[size] = place
                chosen[size] = keys[place]
                size += 1
        if size == 0:
            continue
        order, hashes, parts = _group(chosen[:size], partitions)
        for index in range(size):
            order[index] = places[order[index]]
        table = numbers[number]
        chunk_bits, row_bytes = plan[table, 0], 4 * plan[table, 1]
        target = np.int64(rows.ctypes.data) + 4 * bases[number] - starts[number] * row_bytes
        had = _copy_found(headers[table], chunk_bits, row_bytes, keys, order, hashes, parts, addresses, target, found)
        if had < 0:
            return -1
        count += had
    return count


def _insert(header, chunk_bits, keys, rows, order, hashes, starts, partition, index):  # type: ignore[no-untyped-def]
    row_bytes = 4 * rows.shape[1]
    source = np.int64(rows.ctypes.data)
    status = DONE
    while status == DONE and partition < starts.size - 1:
        first, stop = max(index, starts[partition]), starts[partition + 1]
        if first == stop:
            partition += 1
            continue
        at = partition * HEADER_WORDS
        lock_exclusive(header, at + WRITER_LOCK)
        time = fetch_add(header, at + CLOCK, stop - first) + 1 - first
        most = min(header[at + MARGIN], NO_LIMIT - OVERSHOOT_ROWS)
        most += min(most, OVERSHOOT_ROWS)
        index = first
        while index < stop and status == DONE:
            lock_exclusive(header, at + ACCESS_LOCK)
            slots, bits = header[at + SLOTS], header[at + BITS]
            if header[at + CLOSED]:
                status = MAP_CLOSED
            elif slots == 0:
                status = NEEDS_SLOTS
            limit = most_keys_within(bits)
            slice_stop = min(stop, index + SLICE_ROWS)
            while status == DONE and index < slice_stop and header[at + SIZE] <= most:
                if index + _ROWS_AHEAD < stop:
                    prefetch_slot(slots, bits, hashes[index + _ROWS_AHEAD])
                position = order[index]
                slot = find(slots, bits, keys[position], hashes[index])
                if slot >= 0:
                    row = row_in(slots, slot)
                else:
                    if header[at + SIZE] >= limit:
                        status = NEEDS_SLOTS
                        break
                    if header[at + FREE] == 0 and header[at + USED] == header[at + ROWS]:
                        status = NEEDS_ROWS
                        break
                    row = add(header, at, ~slot, keys[position], chunk_bits, row_bytes)
                address = row_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
                copy_bytes(address, source + position * row_bytes, row_bytes)
                store_word(record_address(header, at, row, chunk_bits, row_bytes) + TIME, time + index)
                index += 1
            unlock_exclusive(header, at + ACCESS_LOCK)
            if status == DONE and header[at + SIZE] > most:
                prune(header, at, chunk_bits, row_bytes)
        if status == DONE:
            if header[at + SIZE] > header[at + MARGIN]:
                prune(header, at, chunk_bits, row_bytes)
            partition += 1
        unlock_exclusive(header, at + WRITER_LOCK)
    return status, partition, index


def _update(header, chunk_bits, keys, rows):  # type: ignore[no-untyped-def]
    partitions = header.size // HEADER_WORDS
    order, hashes, starts = _group(keys, partitions)
    places = np.empty(keys.size, np.int64)
    row_bytes = 4 * rows.shape[1]
    source = np.int64(rows.ctypes.data)
    updated = 0
    for partition in range(partitions):
        first, stop = starts[partition], starts[partition + 1]
        if first == stop:
            continue
        at = partition * HEADER_WORDS
        lock_exclusive(header, at + WRITER_LOCK)
        slots, bits = header[at + SLOTS], header[at + BITS]  # exchanged only under the writers' lock
        closed, marked = header[at + CLOSED], 0
        if slots == 0:
            stop = first
        while first < stop:
            lock_exclusive(header, at + ACCESS_LOCK)
            slice_stop = min(stop, first + SLICE_ROWS)
            while first < slice_stop:
                if first + _ROWS_AHEAD < stop:
                    prefetch_slot(slots, bits, hashes[first + _ROWS_AHEAD])
                position = order[first]
                slot = find(slots, bits, keys[position], hashes[first])
                first += 1
                if slot < 0:
                    continue
                row = row_in(slots, slot)
                address = row_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
                copy_bytes(address, source + position * row_bytes, row_bytes)
                place = slots + slot * SLOT_BYTES + 8
                if load_word(place) & MARK == 0:
                    store_word(place, load_word(place) | MARK)
                    places[marked] = place
                    marked += 1
            unlock_exclusive(header, at + ACCESS_LOCK)
        for mark in range(marked):
            store_shared_word(places[mark], load_word(places[mark]) - MARK)
        unlock_exclusive(header, at + WRITER_LOCK)
        if closed:
            return -1
        updated += marked
    return updated


def _delete(header, chunk_bits, row_bytes, keys):  # type: ignore[no-untyped-def]
    partitions = header.size // HEADER_WORDS
    order, hashes, starts = _group(keys, partitions)
    deleted = 0
    for partition in range(partitions):
        first, stop = starts[partition], starts[partition + 1]
        if first == stop:
            continue
        at = partition * HEADER_WORDS
        lock_exclusive(header, at + WRITER_LOCK)
        slots, bits = header[at + SLOTS], header[at + BITS]
        closed = header[at + CLOSED]
        if slots == 0:
            stop = first
        while first < stop:
            lock_exclusive(header, at + ACCESS_LOCK)
            slice_stop = min(stop, first + SLICE_ROWS)
            while first < slice_stop:
                slot = find(slots, bits, keys[order[first]], hashes[first])
                if slot >= 0:
                    remove(header, at, slot, chunk_bits, row_bytes)
                    deleted += 1
                first += 1
            unlock_exclusive(header, at + ACCESS_LOCK)
        unlock_exclusive(header, at + WRITER_LOCK)
        if closed:
            return -1
    return deleted


def _touch(header, chunk_bits, row_bytes, keys):  # type: ignore[no-untyped-def]
    partitions = header.size // HEADER_WORDS
    order, hashes, starts = _group(keys, partitions)
    touched = 0
    for partition in range(partitions):
        first, stop = starts[partition], starts[partition + 1]
        if first == stop:
            continue
        at = partition * HEADER_WORDS
        lock_shared(header, at + ACCESS_LOCK)
        slots, bits = header[at + SLOTS], header[at + BITS]
        closed = header[at + CLOSED]
        if slots == 0:
            stop = first
        time = fetch_add(header, at + CLOCK, stop - first) + 1 - first
        for index in range(first, stop):
            if index + _ROWS_AHEAD < stop:
                prefetch_slot(slots, bits, hashes[index + _ROWS_AHEAD])
            slot = find(slots, bits, keys[order[index]], hashes[index])
            if slot >= 0:
                record = record_address(header, at, row_in(slots, slot), chunk_bits, row_bytes)
                store_shared_word(record + TIME, time + index)
                if header[at + POLICY] == EVICT_LEAST_USED:
                    add_to_shared_word(record + COUNT, 1)
                touched += 1
        unlock_shared(header, at + ACCESS_LOCK)
        if closed:
            return -1
    return touched


def _prune_partition(header, chunk_bits, row_bytes, partition):  # type: ignore[no-untyped-def]
    at = partition * HEADER_WORDS
    lock_exclusive(header, at + WRITER_LOCK)
    above = header[at + SIZE] > header[at + MARGIN]
    if above:
        prune(header, at, chunk_bits, row_bytes)
    unlock_exclusive(header, at + WRITER_LOCK)
    return above


def _dump(header, chunk_bits, row_bytes, partition, row, keys):  # type: ignore[no-untyped-def]
    count = 0
    while count < keys.size and partition < header.size // HEADER_WORDS:
        at = partition * HEADER_WORDS
        lock_shared(header, at + ACCESS_LOCK)
        closed, used = header[at + CLOSED], header[at + USED]
        stop = min(used, row + OVERSHOOT_ROWS)
        while row < stop and count < keys.size:
            record = record_address(header, at, row, chunk_bits, row_bytes)
            if load_word(record + TIME) != 0:
                keys[count] = load_word(record + KEY)
                count += 1
            row += 1
        unlock_shared(header, at + ACCESS_LOCK)
        if closed:
            return -1, partition, row
        if row >= used:
            partition += 1
            row = 0
    return count, partition, row


def _exchange_slots(header, partition, slots, bits):  # type: ignore[no-untyped-def]
    at = partition * HEADER_WORDS
    lock_exclusive(header, at + WRITER_LOCK)
    old, old_bits = header[at + SLOTS], header[at + BITS]
    wanted = header[at + CLOSED] == 0 and (old == 0 or old_bits < bits)
    if wanted:
        if old != 0:
            for slot in range(1 << old_bits):
                place = load_word(old + slot * SLOT_BYTES + 8)
                if place != 0:
                    key = load_word(old + slot * SLOT_BYTES)
                    new = ~find(slots, bits, key, hash_key(key))
                    store_word(slots + new * SLOT_BYTES, key)
                    store_word(slots + new * SLOT_BYTES + 8, place)
        lock_exclusive(header, at + ACCESS_LOCK)
        header[at + SLOTS] = slots
        header[at + BITS] = bits
        unlock_exclusive(header, at + ACCESS_LOCK)
    unlock_exclusive(header, at + WRITER_LOCK)
    return wanted


def _exchange_chunks(header, partition, chunks, rows):  # type: ignore[no-untyped-def]
    at = partition * HEADER_WORDS
    lock_exclusive(header, at + WRITER_LOCK)
    lock_exclusive(header, at + ACCESS_LOCK)
    wanted = header[at + CLOSED] == 0
    if wanted:
        header[at + CHUNKS] = chunks
        header[at + ROWS] = rows
    unlock_exclusive(header, at + ACCESS_LOCK)
    unlock_exclusive(header, at + WRITER_LOCK)
    return wanted


def _close(header):  # type: ignore[no-untyped-def]
    for partition in range(header.size // HEADER_WORDS):
        at = partition * HEADER_WORDS
        lock_exclusive(header, at + WRITER_LOCK)
        lock_exclusive(header, at + ACCESS_LOCK)
        header[at + CLOSED] = 1
        for field in (SLOTS, BITS, CHUNKS, ROWS, USED, FREE, SIZE):
            header[at + field] = 0
        unlock_exclusive(header, at + ACCESS_LOCK)
        unlock_exclusive(header, at + WRITER_LOCK)


class Kernels(NamedTuple):
    """What can be done with a map. `header` is its flat array, `chunk_bits` the logarithm of the rows of a chunk."""

    group: Callable[[IntArray, int], tuple[IntArray, HashArray, IntArray]]
    """`(keys, partitions)`: positions by partition, their hashes, and where each partition starts."""
    query: Callable[[IntArray, int, IntArray, RowArray, FoundMask], int]
    """`(header, chunk_bits, keys, rows, found)`: how many were found; -1: the map is closed."""
    fill_tables: Callable[..., int]
    """`(headers, plan, numbers, keys, starts, rows, bases, wanted, found)`: as `query`, of maps number `numbers`;
    `headers` has one each, `plan` its `chunk_bits` and dim. See `HashMapStore.fill_tables`."""
    insert: Callable[..., tuple[int, int, int]]
    """`(header, chunk_bits, keys, rows, *group(keys), partition, index)`, from that place on: `DONE`, or what is
    missing in which partition, and the place to go on from."""
    update: Callable[[IntArray, int, IntArray, RowArray], int]
    """`(header, chunk_bits, keys, rows)`: how many distinct keys were present; -1: the map is closed."""
    delete: Callable[[IntArray, int, int, IntArray], int]
    """`(header, chunk_bits, row_bytes, keys)`: as `update`."""
    touch: Callable[[IntArray, int, int, IntArray], int]
    """`(header, chunk_bits, row_bytes, keys)`: accesses counted; -1: the map is closed."""
    prune: Callable[[IntArray, int, int, int], bool]
    """`(header, chunk_bits, row_bytes, partition)`: at once, if it is above its margin; says whether it was."""
    dump: Callable[[IntArray, int, int, int, int, IntArray], tuple[int, int, int]]
    """`(header, chunk_bits, row_bytes, partition, row, keys)`, from that place on: how many keys were written (-1: the
    map is closed), and the place to go on from; nothing is left when the partition is past the last."""
    exchange_slots: Callable[[IntArray, int, int, int], bool]
    """`(header, partition, address, bits)`: move to 2**bits empty slots, if that is more; says whether."""
    exchange_chunks: Callable[[IntArray, int, int, int], bool]
    """`(header, partition, address, rows)`: of the chunks' addresses; false: the map is closed."""
    close: Callable[[IntArray], None]
    """`(header)`: when it returns no kernel reads or writes any memory but the header."""


@functools.cache
def kernels() -> Kernels:
    """All kernels, compiled now or loaded from disk."""
    word, flag = types.int64, types.boolean
    header = array_type(word, 1, writable=True)
    keys, source = array_type(word, 1), array_type(types.float32, 2)
    order, hashes = array_type(word, 1, writable=True), array_type(types.uint64, 1, writable=True)
    target, found = array_type(types.float32, 2, writable=True), array_type(flag, 1, writable=True)
    headers, plan = array_type(word, 2, writable=True), array_type(word, 2)
    flat, wanted = array_type(types.float32, 1, writable=True), array_type(flag, 1)

    def several(*members: Any) -> Any:
        return types.Tuple(members)  # type: ignore[no-untyped-call]

    place = several(word, word, word)
    return Kernels(
        group=compile_kernel(_group_keys, several(order, hashes, order)(keys, word)),
        query=compile_kernel(_query, word(header, word, keys, target, found)),
        fill_tables=compile_kernel(_fill_tables, word(headers, plan, keys, keys, keys, flat, keys, wanted, found)),
        insert=compile_kernel(_insert, place(header, word, keys, source, order, hashes, order, word, word)),
        update=compile_kernel(_update, word(header, word, keys, source)),
        delete=compile_kernel(_delete, word(header, word, word, keys)),
        touch=compile_kernel(_touch, word(header, word, word, keys)),
        prune=compile_kernel(_prune_partition, flag(header, word, word, word)),
        dump=compile_kernel(_dump, place(header, word, word, word, word, order)),
        exchange_slots=compile_kernel(_exchange_slots, flag(header, word, word, word)),
        exchange_chunks=compile_kernel(_exchange_chunks, flag(header, word, word, word)),
        close=compile_kernel(_close, types.void(header)),
    )
