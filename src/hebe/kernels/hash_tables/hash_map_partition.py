"""One partition of a hash map of rows: slots for keys, and rows that stay where they are.

Slots (key, place) are probed linearly; deletion moves back what it would part from its home, so there are no
tombstones. A row's number within its partition is fixed while its key is present. Rows lie in chunks of a power of two;
behind its rows a chunk has a record for each: key, time of last access and, where the least used are to be evicted,
count of accesses.

A partition is `HEADER_WORDS` int64 of a flat array, from index `at` on; zeros and its limits are an empty one. What is
here is for kernels, which hold the locks that it says.

Locks are fair to readers and writers: they enter in turn of arrival, so nobody starves. A lock is three int64 zeros of
an array, from index `at` on. Readers that follow each other are in together; a writer is alone. Whoever waits sleeps
after a while, so that an owner of lower priority gets the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from hebe.kernels.compiled import BORROWING, OPTIONS
from hebe.kernels.hash_tables.xxh64 import hash_key
from hebe.kernels.primitives.atomic import fetch_add, load_acquire, wait
from hebe.kernels.primitives.raw_memory import load_word, prefetch_at, store_word

LOCK_WORDS = 3

_TICKETS, _READERS, _WRITERS = range(LOCK_WORDS)
"""Next ticket to draw; the ticket that may read; the ticket that may write: all before it have left."""

_WAITS_BEFORE_SLEEP = 200
_SLEEP_US = 50

_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(**BORROWING)


@_inlined
def _wait_for(words, at, ticket):  # type: ignore[no-untyped-def]
    waits = 0
    while load_acquire(words, at) != ticket:
        if waits < _WAITS_BEFORE_SLEEP:
            wait(waits)
        else:
            _usleep(_SLEEP_US)
        waits += 1


@_inlined
def lock_shared(words, at):  # type: ignore[no-untyped-def]
    """Wait until no writer that came before is in."""
    ticket = fetch_add(words, at + _TICKETS, 1)
    _wait_for(words, at + _READERS, ticket)
    fetch_add(words, at + _READERS, 1)


@_inlined
def unlock_shared(words, at):  # type: ignore[no-untyped-def]
    """Leave after `lock_shared`."""
    fetch_add(words, at + _WRITERS, 1)


@_inlined
def lock_exclusive(words, at):  # type: ignore[no-untyped-def]
    """Wait until nobody who came before is in."""
    ticket = fetch_add(words, at + _TICKETS, 1)
    _wait_for(words, at + _WRITERS, ticket)


@_inlined
def unlock_exclusive(words, at):  # type: ignore[no-untyped-def]
    """Leave after `lock_exclusive`."""
    fetch_add(words, at + _READERS, 1)
    fetch_add(words, at + _WRITERS, 1)


HEADER_WORDS = 32
ACCESS_LOCK, WRITER_LOCK = 0, 8
"""Words of a header where its two locks begin: of queries against a writer, and of writers among themselves."""

SLOTS, BITS, CHUNKS, ROWS, USED, FREE, SIZE, CLOSED = range(16, 24)
"""Address of the slots (0: none yet) and the logarithm of their number; address of the chunks' addresses; rows that
these hold, of them ever used, the last one given back (plus one), present; and whether the map is closed."""
CLOCK, MARGIN, TARGET, POLICY, SEED, EVICTED = range(24, 30)
"""Accesses so far; most rows; rows that pruning leaves; a policy; chance; rows evicted so far."""

EVICT_RANDOM, EVICT_LEAST_USED, EVICT_OLDEST = range(3)

SLOT_BYTES = 16
FEWEST_BITS = 4
SLICE_ROWS = 32
"""A writer has a partition for itself for so many rows at a time."""
NO_LIMIT = 2**63 - 1

KEY, TIME, COUNT = 0, 8, 16
"""Where the words of a record lie. The time of a row not in use is 0, its key the one given back before it."""
MARK = 1 << 62
"""Of a slot's place: the writer that has the partition has seen its key."""
_TIME_BITS = 43
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def most_keys(bits: int) -> int:
    """How many keys 2**bits slots take before there must be more: three quarters."""
    return (1 << bits) - (1 << bits - 2)


most_keys_within = _inlined(most_keys)
"""`most_keys`, to be called within kernels."""


def record_bytes(policy: int) -> int:
    """What the record of a row takes: without a count where no policy asks for it."""
    return COUNT + 8 if policy == EVICT_LEAST_USED else COUNT


_record_bytes = _inlined(record_bytes)


@_inlined
def find(slots, bits, key, hashed):  # type: ignore[no-untyped-def]
    """The slot of `key`, or ~ of the empty one where it would be."""
    mask = (1 << bits) - 1
    slot = np.int64(hashed >> np.uint64(64 - bits))
    while load_word(slots + slot * SLOT_BYTES + 8) != 0:
        if load_word(slots + slot * SLOT_BYTES) == key:
            return slot
        slot = (slot + 1) & mask
    return ~slot


@_inlined
def row_address(chunks, row, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Where the floats of a row begin."""
    return load_word(chunks + 8 * (row >> chunk_bits)) + (row & ((1 << chunk_bits) - 1)) * row_bytes


@_inlined
def record_address(header, at, row, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Where the record of a row begins."""
    within = row & ((1 << chunk_bits) - 1)
    chunk = load_word(header[at + CHUNKS] + 8 * (row >> chunk_bits))
    return chunk + (row_bytes << chunk_bits) + within * _record_bytes(header[at + POLICY])


@_inlined
def row_in(slots, slot):  # type: ignore[no-untyped-def]
    """The row of an occupied slot."""
    return (load_word(slots + slot * SLOT_BYTES + 8) & (MARK - 1)) - 1


@_inlined
def prefetch_slot(slots, bits, hashed):  # type: ignore[no-untyped-def]
    """Ask for the slot where the search for a key begins."""
    prefetch_at(slots + np.int64(hashed >> np.uint64(64 - bits)) * SLOT_BYTES)


@_inlined
def remove(header, at, slot, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Empty a slot, move up those that were displaced past it, and give its row back."""
    slots, bits = header[at + SLOTS], header[at + BITS]
    mask = (1 << bits) - 1
    row = row_in(slots, slot)
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
    record = record_address(header, at, row, chunk_bits, row_bytes)
    store_word(record + KEY, header[at + FREE])
    store_word(record + TIME, 0)
    header[at + FREE] = row + 1
    header[at + SIZE] -= 1


@_inlined
def add(header, at, slot, key, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Give `key` the empty `slot` and a row that is not in use, of which there is one; returns the row."""
    row = header[at + FREE] - 1
    if row < 0:
        row = header[at + USED]
        header[at + USED] = row + 1
        record = record_address(header, at, row, chunk_bits, row_bytes)
    else:
        record = record_address(header, at, row, chunk_bits, row_bytes)
        header[at + FREE] = load_word(record + KEY)
    store_word(record + KEY, key)
    if header[at + POLICY] == EVICT_LEAST_USED:
        store_word(record + COUNT, 1)
    store_word(header[at + SLOTS] + slot * SLOT_BYTES, key)
    store_word(header[at + SLOTS] + slot * SLOT_BYTES + 8, row + 1)
    header[at + SIZE] += 1
    return row


@_inlined
def _rank(header, at, record):  # type: ignore[no-untyped-def]
    """Rows of the lowest rank are evicted first."""
    time = load_word(record + TIME)
    if header[at + POLICY] == EVICT_OLDEST:
        return time
    if header[at + POLICY] == EVICT_LEAST_USED:
        count = load_word(record + COUNT)
        recent = max(0, time - max(0, header[at + CLOCK] - (1 << _TIME_BITS) + 1))
        return (min(count, (1 << (63 - _TIME_BITS)) - 1) << _TIME_BITS) | recent
    chance = np.uint64(header[at + SEED]) + np.uint64(header[at + EVICTED]) * _GOLDEN
    return np.int64(hash_key(np.int64(np.uint64(load_word(record + KEY)) ^ chance)) >> np.uint64(1))


@numba.njit(**OPTIONS)
def prune(header, at, chunk_bits, row_bytes):  # type: ignore[no-untyped-def]
    """Evict down to the target; the caller has the writers' lock. Queries go on meanwhile."""
    size = header[at + SIZE]
    victims = size - header[at + TARGET]
    ranks = np.empty(size, np.int64)
    rows = np.empty(size, np.int64)
    present = 0
    for row in range(header[at + USED]):
        record = record_address(header, at, row, chunk_bits, row_bytes)
        if load_word(record + TIME) != 0:
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
                key = load_word(record_address(header, at, rows[position], chunk_bits, row_bytes) + KEY)
                slot = find(header[at + SLOTS], header[at + BITS], key, hash_key(key))
                remove(header, at, slot, chunk_bits, row_bytes)
                evicted += 1
            position += 1
        unlock_exclusive(header, at + ACCESS_LOCK)
    header[at + EVICTED] += evicted
