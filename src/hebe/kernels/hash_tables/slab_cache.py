"""The slab hash of HPS section 4 on the host: Query, Replace, Update and Dump (Algorithms 2 to 4), in batches.

A key belongs to one slabset and lies in any of its slots; probing begins with the key's own first slab. All slabs of
the set are probed, tags first, so that a deletion may leave a hole anywhere. The least recently used row gives way: the
one whose counter, the number of the last query that asked for it, is lowest.

Mutual exclusion is by slabset. A writer takes the set's version from even to odd, changes it, and makes it even again.
A reader changes nothing but the counter: it notes the version, copies the row aside, and takes the copy only if the
version is still the same, so that any number of threads read hot rows without waiting for one another. Calls hold no
other lock, release the GIL, and use little memory but the caller's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import BORROWING, array_type, compile_kernel
from hebe.kernels.hash_tables.slab_geometry import SLOTS_PER_SLAB, IntArray, SlabGeometry, lowest_bit, matching_tags
from hebe.kernels.lookup.row_format import FP32_CODE, ByteArray, decode_row, encode_row
from hebe.kernels.primitives import atomic, vector

FloatArray = npt.NDArray[np.float32]
MaskArray = npt.NDArray[np.bool_]

ITERATION, SIZE, HITS, MISSES, EVICTIONS, UNHELD = range(6)
"""Running totals: queries, rows present, keys found and not found by queries, rows that gave way to others, and rows
written that the row format could not hold."""
TOTALS = 6

REPLACE, INSERT, UPDATE = range(3)

_SETS, _SLABS, DIM, _CODE, _STRIDE, _WORDS = range(6)
SHAPE = 6

_TAGS_AHEAD = 16
_ROWS_AHEAD = 8
RING = 32
"""Tags are asked for so many keys ahead of the one in hand, and rows, once their tags are there, so many."""
_MOST_LINES_AHEAD = 16
"""Of a wide row; the rest follows by itself."""

_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_33, _32, _16, _8 = np.uint64(33), np.uint64(32), np.uint64(16), np.uint64(8)
_LOW_16, _LOW_8 = np.uint64(0xFFFF), np.uint64(0xFF)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

_inlined = numba.njit(forceinline=True, **BORROWING)


@_inlined
def _hash(key):  # type: ignore[no-untyped-def]
    """MurmurHash3's finaliser: 64 bits of which each depends on all bits of the key."""
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> _33)) * _MIX_1
    mixed = (mixed ^ (mixed >> _33)) * _MIX_2
    return mixed ^ (mixed >> _33)


@_inlined
def _set_of(mixed, sets):  # type: ignore[no-untyped-def]
    return np.intp(((mixed >> _32) * np.uint64(sets)) >> _32)


@_inlined
def _slab_of(mixed, slabs):  # type: ignore[no-untyped-def]
    return np.intp((((mixed >> _8) & _LOW_16) * np.uint64(slabs)) >> _16)


@_inlined
def _tag_of(mixed):  # type: ignore[no-untyped-def]
    return np.uint8(max(mixed & _LOW_8, np.uint64(1)))


@_inlined
def _find(tags, slots, base, first_slab, slabs, tag, key):  # type: ignore[no-untyped-def]
    """The slot of `key` in the slabset that begins at slot `base`, or -1."""
    for step in range(slabs):
        slab = first_slab + step
        if slab >= slabs:
            slab -= slabs
        at = base + slab * SLOTS_PER_SLAB
        mask = matching_tags(tags, at, tag)
        while mask:
            slot = at + lowest_bit(mask)
            if slots[2 * slot] == key:
                return slot
            mask = np.uint32(mask & (mask - 1))
    return -1


@_inlined
def _likely(tags, base, first_slab, slabs, tag):  # type: ignore[no-untyped-def]
    """The first slot in probing order that has `tag`, or -1: nearly always the key's, if it is there."""
    for step in range(slabs):
        slab = first_slab + step
        if slab >= slabs:
            slab -= slabs
        at = base + slab * SLOTS_PER_SLAB
        mask = matching_tags(tags, at, tag)
        if mask:
            return at + lowest_bit(mask)
    return -1


@_inlined
def _slot_to_write(tags, slots, base, first_slab, slabs):  # type: ignore[no-untyped-def]
    """The slot to write: the first empty one in probing order, else the least recently used one."""
    for step in range(slabs):
        slab = first_slab + step
        if slab >= slabs:
            slab -= slabs
        at = base + slab * SLOTS_PER_SLAB
        mask = matching_tags(tags, at, np.uint8(0))
        if mask:
            return at + lowest_bit(mask)
    oldest = base + first_slab * SLOTS_PER_SLAB
    for step in range(slabs):
        slab = first_slab + step
        if slab >= slabs:
            slab -= slabs
        at = base + slab * SLOTS_PER_SLAB
        for slot in range(at, at + SLOTS_PER_SLAB):
            if slots[2 * slot + 1] < slots[2 * oldest + 1]:
                oldest = slot
    return oldest


@_inlined
def _ask_for_tags(tags, state, place, slabs, words):  # type: ignore[no-untyped-def]
    width = slabs * SLOTS_PER_SLAB
    for line in range(0, width, 64):
        vector.prefetch(tags, place * width + line)
    vector.prefetch(state, place * words)


@_inlined
def _ask_for_row(tags, slots, rows, mixed, sets, slabs, stride):  # type: ignore[no-untyped-def]
    """Ask for what is likely the key's slot and row; returns that slot, or -1."""
    base = _set_of(mixed, sets) * slabs * SLOTS_PER_SLAB
    slot = _likely(tags, base, _slab_of(mixed, slabs), slabs, _tag_of(mixed))
    if slot >= 0:
        vector.prefetch(slots, 2 * slot)
        for line in range(slot * stride, slot * stride + min(stride, 64 * _MOST_LINES_AHEAD), 64):
            vector.prefetch(rows, line)
    return slot


@_inlined
def _begin_read(state, at):  # type: ignore[no-untyped-def]
    """The version of a slabset that nobody is changing."""
    spins = 0
    while True:
        version = atomic.load_acquire(state, at)
        if version & 1 == 0:
            return version
        atomic.wait(spins)
        spins += 1


@_inlined
def _still(state, at, version):  # type: ignore[no-untyped-def]
    """Whether all that was read since `_begin_read` belongs together."""
    atomic.fence()
    return atomic.load_acquire(state, at) == version


@_inlined
def _lock(state, at):  # type: ignore[no-untyped-def]
    """Take a slabset; returns its version, now odd."""
    spins = 0
    while True:
        version = atomic.load_acquire(state, at)
        if version & 1 == 0 and atomic.compare_and_swap(state, at, version, version + 1):
            atomic.fence()
            return version + 1
        atomic.wait(spins)
        spins += 1


@_inlined
def _unlock(state, at, version):  # type: ignore[no-untyped-def]
    atomic.store_release(state, at, version + 1)


@_inlined
def _stale_word(place, words, within):  # type: ignore[no-untyped-def]
    return place * words + 1 + (within >> 6)


def _row_reader(width: int) -> Any:
    """Read a float32 row of `width` through registers."""

    @_inlined
    def read(rows, offset, out, target, state, at, version):  # type: ignore[no-untyped-def]
        row = vector.load(rows, offset, width)
        if not _still(state, at, version):
            return False
        vector.store(out, target, row)
        return True

    return read


_read_128 = _row_reader(128)
_read_64 = _row_reader(64)
_read_32 = _row_reader(32)
_read_16 = _row_reader(16)


@_inlined
def _read(rows, offset, code, dim, stride, aside, out, target, state, at, version):  # type: ignore[no-untyped-def]
    """Write the row at `offset` to `out`, unless it was changed meanwhile; returns whether it was whole."""
    if code == FP32_CODE:
        if dim == 128:
            return _read_128(rows, offset, out, target, state, at, version)
        if dim == 64:
            return _read_64(rows, offset, out, target, state, at, version)
        if dim == 32:
            return _read_32(rows, offset, out, target, state, at, version)
        if dim == 16:
            return _read_16(rows, offset, out, target, state, at, version)
    vector.copy(rows, offset, aside, 0, stride // 4)
    if not _still(state, at, version):
        return False
    decode_row(code, aside, 0, out, target, dim)
    return True


def _query(  # type: ignore[no-untyped-def]
    tags, state, slots, rows, totals, shape, ring, aside, keys, out, found, stale, use
):
    # One that is no use of the rows has a number that no row's counter is below.
    iteration = atomic.fetch_add(totals, ITERATION, 1) + 1 if use else 0
    sets, slabs, words = shape[_SETS], shape[_SLABS], shape[_WORDS]
    code, dim, stride = shape[_CODE], shape[DIM], shape[_STRIDE]
    hashes, likely = ring[:RING], ring[RING:]
    count = keys.size
    hits = 0
    for step in range(count + _TAGS_AHEAD):
        if step < count:
            mixed = _hash(keys[step])
            hashes[step % RING] = np.int64(mixed)
            _ask_for_tags(tags, state, _set_of(mixed, sets), slabs, words)
        ahead = step - (_TAGS_AHEAD - _ROWS_AHEAD)
        if 0 <= ahead < count:
            likely[ahead % RING] = _ask_for_row(tags, slots, rows, np.uint64(hashes[ahead % RING]), sets, slabs, stride)
        item = step - _TAGS_AHEAD
        if item < 0:
            continue
        key, mixed, slot = keys[item], np.uint64(hashes[item % RING]), likely[item % RING]
        place = _set_of(mixed, sets)
        base, at = place * slabs * SLOTS_PER_SLAB, place * words
        tag = _tag_of(mixed)
        while True:
            version = _begin_read(state, at)
            if slot < 0 or tags[slot] != tag or slots[2 * slot] != key:
                slot = _find(tags, slots, base, _slab_of(mixed, slabs), slabs, tag, key)
            if slot < 0:
                if not _still(state, at, version):
                    continue
                found[item] = False
                if stale.size:
                    stale[item] = False
                break
            within = slot - base
            flags = state[_stale_word(place, words, within)]
            if not _read(rows, slot * stride, code, dim, stride, aside, out, item * dim, state, at, version):
                continue
            # Of a slot that another thread has meanwhile given to another key, this makes a row look used that is not.
            if slots[2 * slot + 1] < iteration:
                slots[2 * slot + 1] = iteration
            found[item] = True
            if stale.size:
                stale[item] = (flags >> (within & 63)) & 1 != 0
            hits += 1
            break
    if use:
        atomic.fetch_add(totals, HITS, hits)
        atomic.fetch_add(totals, MISSES, count - hits)
    return hits


_query_one = numba.njit(**BORROWING)(_query)


def _query_tables(  # type: ignore[no-untyped-def]
    memory, words, totals, plan, ring, aside, wanted, keys, starts, out, bases, missing, stale, told, use
):
    for number in range(wanted.size):
        table = wanted[number]
        tags, state, slots, rows, end = plan[table, 0], plan[table, 1], plan[table, 2], plan[table, 3], plan[table, 4]
        mine, theirs = starts[number], starts[number + 1]
        told[0, number] = _query_one(
            memory[tags : 8 * state], words[state:slots], words[slots : rows // 8], memory[rows:end],
            totals[table], plan[table, 5:], ring, aside,
            keys[mine:theirs], out[bases[number] : bases[number + 1]], missing[mine:theirs], stale[mine:theirs], use,
        )  # fmt: skip
        old = 0
        for place in range(mine, theirs):
            missing[place] = not missing[place]
            old += stale[place]
        told[1, number] = old


@_inlined
def _clear(seen):  # type: ignore[no-untyped-def]
    """Empty the set of `_first_seen`, of a power of two of places; returns how far hashes are shifted down to these."""
    seen[:] = -1
    bits = 0
    while (1 << bits) < seen.size:
        bits += 1
    return np.uint64(64 - bits)


@_inlined
def _first_seen(seen, shift, slot):  # type: ignore[no-untyped-def]
    """Whether `slot` comes for the first time; `seen` is an open-addressed set, at most half full, of -1s at first."""
    at = np.intp((np.uint64(slot) * _SPREAD) >> shift)
    while seen[at] >= 0:
        if seen[at] == slot:
            return False
        at = (at + 1) & (seen.size - 1)
    seen[at] = slot
    return True


@_inlined
def _write_some(  # type: ignore[no-untyped-def]
    mode, tags, state, slots, rows, totals, shape, scratch, keys, source, places, count
):
    """Of the first `count` of `places`, or of all keys if these are None."""
    iteration = atomic.load_acquire(totals, ITERATION)
    sets, slabs, words = shape[_SETS], shape[_SLABS], shape[_WORDS]
    code, dim, stride = shape[_CODE], shape[DIM], shape[_STRIDE]
    hashes, seen = scratch[:RING], scratch[RING:]
    shift = _clear(seen)
    present = filled = evicted = unheld = 0
    for step in range(count + _TAGS_AHEAD):
        if step < count:
            mixed = _hash(keys[step if places is None else places[step]])
            hashes[step % RING] = np.int64(mixed)
            _ask_for_tags(tags, state, _set_of(mixed, sets), slabs, words)
        ahead = step - (_TAGS_AHEAD - _ROWS_AHEAD)
        if 0 <= ahead < count:
            _ask_for_row(tags, slots, rows, np.uint64(hashes[ahead % RING]), sets, slabs, stride)
        item = step - _TAGS_AHEAD
        if item < 0:
            continue
        at_key = item if places is None else places[item]
        key, mixed = keys[at_key], np.uint64(hashes[item % RING])
        place, first_slab, tag = _set_of(mixed, sets), _slab_of(mixed, slabs), _tag_of(mixed)
        base, at = place * slabs * SLOTS_PER_SLAB, place * words
        version = _lock(state, at)
        slot = _find(tags, slots, base, first_slab, slabs, tag, key)
        was_there = slot >= 0
        if was_there and mode != UPDATE:
            slots[2 * slot + 1] = iteration
        elif not was_there and mode != UPDATE:
            slot = _slot_to_write(tags, slots, base, first_slab, slabs)
            if tags[slot] == 0:
                filled += 1
            else:
                evicted += 1
            tags[slot] = tag
            slots[2 * slot] = key
            slots[2 * slot + 1] = iteration
        if slot >= 0 and not (was_there and mode == REPLACE):
            unheld += encode_row(code, source, at_key * dim, rows, slot * stride, dim)
            within = slot - base
            state[_stale_word(place, words, within)] &= ~(1 << (within & 63))
        _unlock(state, at, version)
        if was_there and (mode != UPDATE or _first_seen(seen, shift, slot)):
            present += 1
    atomic.fetch_add(totals, SIZE, filled)
    atomic.fetch_add(totals, EVICTIONS, evicted)
    atomic.fetch_add(totals, UNHELD, unheld)
    return present


def _write(mode, tags, state, slots, rows, totals, shape, scratch, keys, source):  # type: ignore[no-untyped-def]
    return _write_some(mode, tags, state, slots, rows, totals, shape, scratch, keys, source, None, keys.size)


def _replace_tables(  # type: ignore[no-untyped-def]
    memory, words, totals, plan, ring, places, wanted, keys, starts, source, bases, chosen
):
    for number in range(wanted.size):
        first, count = starts[number], 0
        for place in range(first, starts[number + 1]):
            if chosen[place]:
                places[count] = place - first
                count += 1
        table = wanted[number]
        tags, state, slots, rows, end = plan[table, 0], plan[table, 1], plan[table, 2], plan[table, 3], plan[table, 4]
        _write_some(
            REPLACE, memory[tags : 8 * state], words[state:slots], words[slots : rows // 8], memory[rows:end],
            totals[table], plan[table, 5:], ring, keys[first:], source[bases[number] :], places, count,
        )  # fmt: skip


def _mark(remove, tags, state, slots, totals, shape, seen, keys):  # type: ignore[no-untyped-def]
    """Delete keys, or mark them stale; returns how many distinct ones were there."""
    sets, slabs, words = shape[_SETS], shape[_SLABS], shape[_WORDS]
    shift = _clear(seen)
    marked = 0
    for item in range(keys.size):
        if item + _TAGS_AHEAD < keys.size:
            _ask_for_tags(tags, state, _set_of(_hash(keys[item + _TAGS_AHEAD]), sets), slabs, words)
        mixed = _hash(keys[item])
        place = _set_of(mixed, sets)
        base, at = place * slabs * SLOTS_PER_SLAB, place * words
        version = _lock(state, at)
        slot = _find(tags, slots, base, _slab_of(mixed, slabs), slabs, _tag_of(mixed), keys[item])
        if slot >= 0:
            within = slot - base
            word, bit = _stale_word(place, words, within), 1 << (within & 63)
            if remove:
                tags[slot] = 0
                state[word] &= ~bit
            else:
                state[word] |= bit
        _unlock(state, at, version)
        if slot >= 0 and (remove or _first_seen(seen, shift, slot)):
            marked += 1
    if remove:
        atomic.fetch_add(totals, SIZE, -marked)
    return marked


def _dump(tags, state, slots, shape, cursor, out):  # type: ignore[no-untyped-def]
    width, words = shape[_SLABS] * SLOTS_PER_SLAB, shape[_WORDS]
    count = 0
    while cursor < shape[_SETS] * width and count < out.size:
        place = cursor // width
        while True:
            version = _begin_read(state, place * words)
            slot, taken = cursor, count
            while slot < (place + 1) * width and taken < out.size:
                if tags[slot] != 0:
                    out[taken] = slots[2 * slot]
                    taken += 1
                slot += 1
            if _still(state, place * words, version):
                cursor, count = slot, taken
                break
    return cursor, count


@functools.cache
def tables_kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    """Query and replace, for `slab_caches`; here, since numba's cache on disk sees changes of a kernel's own file."""
    bytes_, words = array_type(types.uint8, 1, writable=True), array_type(types.int64, 1, writable=True)
    totals, plan = array_type(types.int64, 2, writable=True), array_type(types.int64, 2)
    read, floats = array_type(types.int64, 1), array_type(types.float32, 1, writable=True)
    mask = array_type(types.boolean, 1, writable=True)
    source, chosen = array_type(types.float32, 1), array_type(types.boolean, 1)
    query = types.void(
        bytes_, words, totals, plan, words, bytes_, read, read, read, floats, read, mask, mask, totals, types.boolean
    )
    replace = types.void(bytes_, words, totals, plan, words, words, read, read, read, source, read, chosen)
    return compile_kernel(_query_tables, query, BORROWING), compile_kernel(_replace_tables, replace, BORROWING)


@functools.cache
def _kernels() -> tuple[Callable[..., Any], ...]:
    bytes_, words = array_type(types.uint8, 1, writable=True), array_type(types.int64, 1, writable=True)
    shape = keys = array_type(types.int64, 1)
    mask, floats = array_type(types.boolean, 1, writable=True), array_type(types.float32, 1, writable=True)
    source = array_type(types.float32, 1)
    read, number = types.intp, types.intp
    pair = types.Tuple([number, number])  # type: ignore[no-untyped-call]
    return (
        compile_kernel(
            _query,
            read(bytes_, words, words, bytes_, words, shape, words, bytes_, keys, floats, mask, mask, types.boolean),
            BORROWING,
        ),
        compile_kernel(
            _write, number(number, bytes_, words, words, bytes_, words, shape, words, keys, source), BORROWING
        ),
        compile_kernel(_mark, number(types.boolean, bytes_, words, words, words, shape, words, keys), BORROWING),
        compile_kernel(_dump, pair(bytes_, words, words, shape, number, words), BORROWING),
    )


def _seen_places(keys: IntArray) -> int:
    """Places of a set of slots for a call: a power of two, more than twice the keys."""
    return 1 << (2 * keys.size).bit_length()


_NO_MASK: MaskArray = np.empty(0, np.bool_)


class SlabCache:
    """A cache of rows by int64 key in `memory`, uint8 `[geometry.memory_bytes]`, zeros, from a cache line on.

    Any number of threads may call at once. Arrays are C-contiguous: keys int64 `[n]`, rows float32 `[n, dim]`, masks
    bool `[n]`; others raise TypeError, or ValueError where only the shape is wrong. Keys of a call may repeat.
    """

    def __init__(self, geometry: SlabGeometry, memory: ByteArray, totals: IntArray | None = None) -> None:
        self.geometry = geometry
        self.arrays = geometry.arrays(memory)
        self.totals: IntArray = np.zeros(TOTALS, np.int64) if totals is None else totals
        code, stride = geometry.row_format.code, geometry.stride_bytes
        self.shape: IntArray = np.array(
            [geometry.sets, geometry.slabs_per_set, geometry.dim, code, stride, geometry.state_words]
        )

    def query(self, keys: IntArray, rows: FloatArray, found: MaskArray, stale: MaskArray | None = None) -> int:
        """Algorithm 2: copy the rows of those keys that are there, and say which are, and which of these are stale.

        They count as used by this query. Rows of other keys are left as they are. Returns how many were found.
        """
        self._check(keys, rows)
        if found.shape != keys.shape or (stale is not None and stale.shape != keys.shape):
            raise ValueError(f"masks for {keys.size} keys: must be bool [{keys.size}]")
        query, *_ = _kernels()
        mask = _NO_MASK if stale is None else stale
        ring, aside = np.empty(2 * RING, np.int64), np.empty(self.geometry.stride_bytes, np.uint8)
        hits: int = query(*self.arrays, self.totals, self.shape, ring, aside, keys, rows.reshape(-1), found, mask, True)
        return hits

    def replace(self, keys: IntArray, rows: FloatArray) -> int:
        """Algorithm 3: add rows, over the least recently used where a slabset is full; rows that are there stay, and
        count as used by the last query. Returns how many keys were there.
        """
        return self._write(REPLACE, keys, rows)

    def insert(self, keys: IntArray, rows: FloatArray) -> int:
        """`replace`, and rows that are there are written too. The last of repeated keys wins."""
        return self._write(INSERT, keys, rows)

    def update(self, keys: IntArray, rows: FloatArray) -> int:
        """Algorithm 4: write the rows of those keys that are there; returns how many distinct ones were."""
        return self._write(UPDATE, keys, rows)

    def delete(self, keys: IntArray) -> int:
        """Empty the slots of keys; returns how many distinct ones were there."""
        return self._mark(True, keys)

    def mark_stale(self, keys: IntArray) -> int:
        """Mark rows as older than what is known elsewhere, until they are next written; returns as `delete`."""
        return self._mark(False, keys)

    def dump(self, cursor: int, keys: IntArray) -> tuple[int, int]:
        """Fill `keys` with keys that lie at slot `cursor` or after it; returns the cursor to go on from, and how many.

        The walk begins at 0 and is over when the cursor is `geometry.slots`.
        """
        _, _, _, dump = _kernels()
        tags, state, slots, _ = self.arrays
        cursor, count = dump(tags, state, slots, self.shape, cursor, keys)
        return cursor, count

    def by_use(self) -> IntArray:
        """All keys, the most recently used first; of those that come, go or are used meanwhile, not exactly."""
        tags, _, slots, _ = self.arrays
        taken = np.flatnonzero(tags[: self.geometry.slots].copy())  # NumPy raises where they change meanwhile
        keys, used = slots[2 * taken], slots[2 * taken + 1]
        return np.asarray(keys[np.argsort(used, kind="stable")[::-1]])

    def _write(self, mode: int, keys: IntArray, rows: FloatArray) -> int:
        self._check(keys, rows)
        _, write, _, _ = _kernels()
        scratch = np.empty(RING + (_seen_places(keys) if mode == UPDATE else 0), np.int64)
        present: int = write(mode, *self.arrays, self.totals, self.shape, scratch, keys, rows.reshape(-1))
        return present

    def _mark(self, remove: bool, keys: IntArray) -> int:
        _, _, mark, _ = _kernels()
        tags, state, slots, _ = self.arrays
        seen = np.empty(0 if remove else _seen_places(keys), np.int64)
        marked: int = mark(remove, tags, state, slots, self.totals, self.shape, seen, keys)
        return marked

    def _check(self, keys: IntArray, rows: FloatArray) -> None:
        if keys.ndim != 1 or rows.shape != (keys.size, self.geometry.dim):
            raise ValueError(f"rows {list(rows.shape)} for keys {list(keys.shape)}: must be [n, {self.geometry.dim}]")
        if not rows.flags.c_contiguous:  # a flat view of others is a copy, and what is written there is lost
            raise ValueError("rows are not C-contiguous")


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _kernels()
    tables_kernels()
