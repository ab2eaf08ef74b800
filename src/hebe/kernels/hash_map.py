"""A hash map of rows in partitions: open addressing beside rows that stay where they are.

A partition has slots (key, place; linear probing, deletion by shifting back, so no tombstones) and chunks of rows. A
row's number within its partition is fixed while its key is present; its chunk holds the row and, behind all rows of
the chunk, a record of three words: key, time of last access, count of accesses. Growing adds chunks and copies no
row; slots are made anew beside the old ones, of which queries know nothing until both are exchanged.

Memory comes from the caller, by address (`HEADER_WORDS` int64 for each partition in one flat array of zeros). Any
thread may call any kernel at any time. Queries of a partition run together; a writer has a partition for itself for
`SLICE_ROWS` rows at a time, and writers of one partition follow each other. The plain reference is
`HashMapReference`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.addressed import (
    add_to_shared_word,
    copy_bytes,
    load_word,
    prefetch_at,
    store_shared_word,
    store_word,
)
from hebe.kernels.atomic import fetch_add
from hebe.kernels.compiled import OPTIONS, array_type, compile_kernel
from hebe.kernels.partition_lock import lock_exclusive, lock_shared, unlock_exclusive, unlock_shared
from hebe.kernels.xxh64 import hash_key

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]
RowArray = npt.NDArray[np.float32]
FoundMask = npt.NDArray[np.bool_]

HEADER_WORDS = 32
ACCESS_LOCK, WRITER_LOCK = 0, 8
"""Words of a header where its two locks begin: of queries against a writer, and of writers among themselves."""

SLOTS, BITS, CHUNKS, ROWS, USED, FREE, SIZE, CLOSED = range(16, 24)
"""Address of the slots (0: none yet) and the logarithm of their number; address of the chunks' addresses; rows that
these hold, of them ever used, the last one given back (plus one), present; and whether the map is closed."""
CLOCK, MARGIN, TARGET, POLICY, SEED, EVICTED = range(24, 30)
"""Accesses so far; most rows; rows that pruning leaves; a policy; chance; rows evicted so far."""

EVICT_RANDOM, EVICT_LEAST_USED, EVICT_OLDEST = range(3)

DONE, NEEDS_SLOTS, NEEDS_ROWS, MAP_CLOSED = range(4)
"""What a writing kernel says."""

SLOT_BYTES = 16
RECORD_BYTES = 24
FEWEST_BITS = 4
SLICE_ROWS = 32
OVERSHOOT_ROWS = 1024
"""A call may bring a partition so far above its margin, or to twice that if less, before it is pruned; at the end of a
call it never is."""

NO_LIMIT = 2**63 - 1

_KEY, _TIME, _COUNT = 0, 8, 16
_MARK = 1 << 62  # of a count: this call has seen the row
_TIME_BITS = 43
_ROWS_AHEAD = 10
_MOST_LINES_AHEAD = 16
_LINE_BYTES = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(**OPTIONS)


def most_keys(bits: int) -> int:
    """How many keys 2**bits slots take before there must be more: three quarters."""
    return (1 << bits) - (1 << bits - 2)


_most_keys = numba.njit(**OPTIONS)(most_keys)


@_inlined
def _find(slots, bits, key, hashed):  # type: ignore[no-untyped-def]
    """The slot of `key`, or ~ of the empty one where it would be."""
    mask = (1 << bits) - 1
    slot = np.int64(hashed >> np.uint64(64 - bits))
    while load_word(slots + slot * SLOT_BYTES + 8) != 0:
        if load_word(slots + slot * SLOT_BYTES) == key:
            return slot
        slot = (slot + 1) & mask
    return ~slot


@_inlined
def _row_address(chunks, row, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    return load_word(chunks + 8 * (row >> chunk_bits)) + (row & ((1 << chunk_bits) - 1)) * row_bytes


@_inlined
def _record_address(chunks, row, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    within = row & ((1 << chunk_bits) - 1)
    return load_word(chunks + 8 * (row >> chunk_bits)) + (row_bytes << chunk_bits) + within * RECORD_BYTES


@_inlined
def _row_in(slots, slot):  # type: ignore[no-untyped-def]
    return load_word(slots + slot * SLOT_BYTES + 8) - 1


@_inlined
def _prefetch_slot(slots, bits, hashed):  # type: ignore[no-untyped-def]
    prefetch_at(slots + np.int64(hashed >> np.uint64(64 - bits)) * SLOT_BYTES)


@_inlined
def _remove(header, at, slot, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Empty a slot, move up those that were displaced past it, and give its row back."""
    slots, bits = header[at + SLOTS], header[at + BITS]
    mask = (1 << bits) - 1
    row = _row_in(slots, slot)
    hole = slot
    while True:
        slot = (slot + 1) & mask
        place = load_word(slots + slot * SLOT_BYTES + 8)
        if place == 0:
            break
        key = load_word(slots + slot * SLOT_BYTES)
        home = np.int64(hash_key(key) >> np.uint64(64 - bits))
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            store_word(slots + hole * SLOT_BYTES, key)
            store_word(slots + hole * SLOT_BYTES + 8, place)
            hole = slot
    store_word(slots + hole * SLOT_BYTES + 8, 0)
    record = _record_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
    store_word(record + _KEY, header[at + FREE])
    store_word(record + _TIME, 0)
    header[at + FREE] = row + 1
    header[at + SIZE] -= 1


@_inlined
def _add(header, at, slot, key, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Give `key` the empty `slot` and a row that is not in use, of which there is one; returns the row."""
    row = header[at + FREE] - 1
    if row < 0:
        row = header[at + USED]
        header[at + USED] = row + 1
        record = _record_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
    else:
        record = _record_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
        header[at + FREE] = load_word(record + _KEY)
    store_word(record + _KEY, key)
    store_word(record + _COUNT, 1)
    store_word(header[at + SLOTS] + slot * SLOT_BYTES, key)
    store_word(header[at + SLOTS] + slot * SLOT_BYTES + 8, row + 1)
    header[at + SIZE] += 1
    return row


@_inlined
def _rank(header, at, record):  # type: ignore[no-untyped-def]
    """Rows of the lowest rank are evicted first."""
    time = load_word(record + _TIME)
    if header[at + POLICY] == EVICT_OLDEST:
        return time
    if header[at + POLICY] == EVICT_LEAST_USED:
        count = load_word(record + _COUNT)
        recent = max(0, time - max(0, header[at + CLOCK] - (1 << _TIME_BITS) + 1))
        return (min(count, (1 << (63 - _TIME_BITS)) - 1) << _TIME_BITS) | recent
    chance = np.uint64(header[at + SEED]) + np.uint64(header[at + EVICTED]) * _GOLDEN
    return np.int64(hash_key(np.int64(np.uint64(load_word(record + _KEY)) ^ chance)) >> np.uint64(1))


@_inlined
def _prune(header, at, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Evict down to the target; the caller has the writers' lock. Queries go on meanwhile."""
    size = header[at + SIZE]
    victims = size - header[at + TARGET]
    chunks = header[at + CHUNKS]
    ranks = np.empty(size, np.int64)
    rows = np.empty(size, np.int64)
    present = 0
    for row in range(header[at + USED]):
        record = _record_address(chunks, row, chunk_bits, row_bytes)
        if load_word(record + _TIME) != 0:
            ranks[present] = _rank(header, at, record)
            rows[present] = row
            present += 1
    last = np.partition(ranks, victims - 1)[victims - 1]
    evicted = 0
    position = 0
    while evicted < victims:
        lock_exclusive(header, at + ACCESS_LOCK)
        stop = min(size, position + SLICE_ROWS)
        while position < stop and evicted < victims:
            if ranks[position] <= last:
                key = load_word(_record_address(chunks, rows[position], chunk_bits, row_bytes) + _KEY)
                slot = _find(header[at + SLOTS], header[at + BITS], key, hash_key(key))
                _remove(header, at, slot, chunk_bits, row_bytes)
                evicted += 1
            position += 1
        unlock_exclusive(header, at + ACCESS_LOCK)
    header[at + EVICTED] += evicted


def _group_keys(keys, partitions):  # type: ignore[no-untyped-def]
    """Positions and hashes of `keys` by partition, in order of the call within each; where each partition starts."""
    order = np.empty(keys.size, np.int64)
    hashes = np.empty(keys.size, np.uint64)
    starts = np.zeros(partitions + 1, np.int64)
    mask = np.uint64(partitions - 1)
    masked = partitions & (partitions - 1) == 0
    unordered = np.empty(keys.size, np.uint64)
    for position in range(keys.size):
        hashed = hash_key(keys[position])
        unordered[position] = hashed
        partition = np.int64((hashed & mask) if masked else hashed % np.uint64(partitions))
        starts[partition + 1] += 1
    for partition in range(partitions):
        starts[partition + 1] += starts[partition]
    for position in range(keys.size):
        hashed = unordered[position]
        partition = np.int64((hashed & mask) if masked else hashed % np.uint64(partitions))
        order[starts[partition]] = position
        hashes[starts[partition]] = hashed
        starts[partition] += 1
    for partition in range(partitions, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
    return order, hashes, starts


_group = numba.njit(**OPTIONS)(_group_keys)


@_inlined
def _find_row(slots, bits, chunks, key, hashed, chunk_bits, row_bytes, lines):  # type: ignore[no-untyped-def]
    """Where the row of `key` lies, 0 if nowhere; and ask for its first `lines` cache lines."""
    slot = _find(slots, bits, key, hashed)
    if slot < 0:
        return 0
    address = _row_address(chunks, _row_in(slots, slot), chunk_bits, row_bytes)
    for line in range(lines):
        prefetch_at(address + line * _LINE_BYTES)
    return address


def _query(header, chunk_bits, keys, rows, found):  # type: ignore[no-untyped-def]
    partitions = header.size // HEADER_WORDS
    order, hashes, starts = _group(keys, partitions)
    addresses = np.empty(keys.size, np.int64)
    row_bytes = 4 * rows.shape[1]
    lines = min((row_bytes + _LINE_BYTES - 1) // _LINE_BYTES, _MOST_LINES_AHEAD)
    target = np.int64(rows.ctypes.data)
    count = 0
    for partition in range(partitions):
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
            _prefetch_slot(slots, bits, hashes[index])
        for index in range(first, min(first + _ROWS_AHEAD, stop)):
            key = keys[order[index]]
            addresses[index] = _find_row(slots, bits, chunks, key, hashes[index], chunk_bits, row_bytes, lines)
        for index in range(first, stop):
            if index + 2 * _ROWS_AHEAD < stop:
                _prefetch_slot(slots, bits, hashes[index + 2 * _ROWS_AHEAD])
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
            limit = _most_keys(bits)
            slice_stop = min(stop, index + SLICE_ROWS)
            while status == DONE and index < slice_stop and header[at + SIZE] <= most:
                if index + _ROWS_AHEAD < stop:
                    _prefetch_slot(slots, bits, hashes[index + _ROWS_AHEAD])
                position = order[index]
                slot = _find(slots, bits, keys[position], hashes[index])
                if slot >= 0:
                    row = _row_in(slots, slot)
                else:
                    if header[at + SIZE] >= limit:
                        status = NEEDS_SLOTS
                        break
                    if header[at + FREE] == 0 and header[at + USED] == header[at + ROWS]:
                        status = NEEDS_ROWS
                        break
                    row = _add(header, at, ~slot, keys[position], chunk_bits, row_bytes)
                address = _row_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
                copy_bytes(address, source + position * row_bytes, row_bytes)
                store_word(_record_address(header[at + CHUNKS], row, chunk_bits, row_bytes) + _TIME, time + index)
                index += 1
            unlock_exclusive(header, at + ACCESS_LOCK)
            if status == DONE and header[at + SIZE] > most:
                _prune(header, at, chunk_bits, row_bytes)
        if status == DONE:
            if header[at + SIZE] > header[at + MARGIN]:
                _prune(header, at, chunk_bits, row_bytes)
            partition += 1
        unlock_exclusive(header, at + WRITER_LOCK)
    return status, partition, index


def _update(header, chunk_bits, keys, rows):  # type: ignore[no-untyped-def]
    partitions = header.size // HEADER_WORDS
    order, hashes, starts = _group(keys, partitions)
    records = np.empty(keys.size, np.int64)
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
                    _prefetch_slot(slots, bits, hashes[first + _ROWS_AHEAD])
                position = order[first]
                slot = _find(slots, bits, keys[position], hashes[first])
                first += 1
                if slot < 0:
                    continue
                row = _row_in(slots, slot)
                address = _row_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
                copy_bytes(address, source + position * row_bytes, row_bytes)
                record = _record_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
                count = load_word(record + _COUNT)
                if count & _MARK == 0:
                    store_word(record + _COUNT, count | _MARK)
                    records[marked] = record
                    marked += 1
            unlock_exclusive(header, at + ACCESS_LOCK)
        for mark in range(marked):
            add_to_shared_word(records[mark] + _COUNT, -_MARK)
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
                slot = _find(slots, bits, keys[order[first]], hashes[first])
                if slot >= 0:
                    _remove(header, at, slot, chunk_bits, row_bytes)
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
                _prefetch_slot(slots, bits, hashes[index + _ROWS_AHEAD])
            slot = _find(slots, bits, keys[order[index]], hashes[index])
            if slot >= 0:
                record = _record_address(header[at + CHUNKS], _row_in(slots, slot), chunk_bits, row_bytes)
                store_shared_word(record + _TIME, time + index)
                add_to_shared_word(record + _COUNT, 1)
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
        _prune(header, at, chunk_bits, row_bytes)
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
            record = _record_address(header[at + CHUNKS], row, chunk_bits, row_bytes)
            if load_word(record + _TIME) != 0:
                keys[count] = load_word(record + _KEY)
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
                    new = ~_find(slots, bits, key, hash_key(key))
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

    def several(*members: Any) -> Any:
        return types.Tuple(members)  # type: ignore[no-untyped-call]

    place = several(word, word, word)
    return Kernels(
        group=compile_kernel(_group_keys, several(order, hashes, order)(keys, word)),
        query=compile_kernel(_query, word(header, word, keys, target, found)),
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
