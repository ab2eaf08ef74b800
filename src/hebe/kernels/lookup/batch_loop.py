"""What a worker does between two runs of the DenseNet, compiled: it tells of the last batch, waits for the next one,
and looks its rows up. A worker that goes from batch to batch so never needs the interpreter lock, for which those of a
server of many cores would mostly wait.

A worker and those who give it batches share a block of words (`Word`). Batches are announced, and told of, by messages
of one word through pipes: a word that was written before the message is there when that has been read. The op workers
of a worker have a block each, for their share of the batch: the first passes the message on to the others, and the one
that is the last to be done tells.

`next_batch` is called as torch calls its ops in compiled code: with the address of the arguments, which is where the
result goes as well.
"""

from __future__ import annotations

import functools
import time
from enum import IntEnum, auto
from typing import Any

import numba
import numpy as np
from numba import types
from numba.np.numpy_support import carray

from hebe.kernels.compiled import BORROWING, OPTIONS, compile_callback
from hebe.kernels.lookup.fused_lookup import LookupWord
from hebe.kernels.lookup.padding import PAD_COLUMNS, copy_unaligned, count_in_column, make_pads
from hebe.kernels.primitives.raw_memory import (
    WORD_BYTES,
    add_to_shared_word,
    call_at,
    load_word,
    pointer_to,
    put_word,
    store_word,
    word_in,
)


class Word(IntEnum):
    """Where what stands in the block that a worker shares, in words of 8 bytes, behind those of its lookup
    (`LookupWord`): a batch fails that has keys which were REFUSED.
    """

    INBOX = len(LookupWord)
    """File to read messages from: `BATCH` or `END`."""
    OTHERS = auto()
    """Address of the files to pass `BATCH` on to, and how many of them have a share of this batch."""
    OTHER_COUNT = auto()
    LEFT = auto()
    """Address of a word that all who share a batch have in common: how many of them are not done with it."""
    OUTBOX = auto()
    """File to write `NAME` to after each batch; -1: to nobody."""
    NAME = auto()
    MESSAGE = auto()
    """Room for one."""
    READ = auto()
    """Address of the system's `read`; so with the next two."""
    WRITE = auto()
    CLOCK = auto()
    RELEASE = auto()
    """Address of what lets go of a tensor that torch has handed over."""
    LOOK_UP = auto()
    """Address of `fused_lookup.look_up` for the tables' row format."""
    UNDER_WAY = auto()
    """1 from when a batch is looked up until it is told of."""
    PADS = auto()
    """Address of the jagged keys still to be padded (`padding`), and how many."""
    PAD_COUNT = auto()
    MOVES = auto()
    """Address of blocks of bytes to be copied, `[target, source, bytes]` each, and how many."""
    MOVE_COUNT = auto()
    LENGTHS = auto()
    """Address of the lengths of sequences; of their `[column of the keys, lookups]`; and how many there are."""
    SEQUENCES = auto()
    SEQUENCE_COUNT = auto()
    BEGAN_S = auto()
    """When the batch was begun, on the monotonic clock: seconds, and nanoseconds beyond them; so with the next two."""
    BEGAN_NS = auto()
    LOOKED_UP_S = auto()
    LOOKED_UP_NS = auto()
    ENDED_S = auto()
    ENDED_NS = auto()


BLOCK_WORDS = len(LookupWord) + len(Word)
END, BATCH = 0, 1
"""Messages to a worker."""

_MONOTONIC = time.CLOCK_MONOTONIC

_inlined = numba.njit(forceinline=True, **BORROWING)


# Of an IntEnum numba knows no arithmetic; of numbers it does.
(_INBOX, _OTHERS, _OTHER_COUNT, _LEFT, _OUTBOX, _NAME, _MESSAGE, _READ, _WRITE, _CLOCK, _RELEASE, _LOOK_UP, _UNDER_WAY,
 _PADS, _PAD_COUNT, _MOVES, _MOVE_COUNT, _LENGTHS, _SEQUENCES, _SEQUENCE_COUNT, _BEGAN_S, _BEGAN_NS, _LOOKED_UP_S,
 _LOOKED_UP_NS, _ENDED_S, _ENDED_NS) = (int(word) for word in Word)  # fmt: skip
_ITEMS, _KEYS, _KEY_COLUMNS, _FOUND, _REFUSED = (
    int(LookupWord[name]) for name in ("ITEMS", "KEYS", "KEY_COLUMNS", "FOUND", "REFUSED")
)


@_inlined
def _note_time(block, word):  # type: ignore[no-untyped-def]
    call_at(word_in(block, _CLOCK), _MONOTONIC, block + WORD_BYTES * word, 0)


@_inlined
def _tell(block):  # type: ignore[no-untyped-def]
    _note_time(block, _ENDED_S)
    put_word(block, _UNDER_WAY, 0)
    outbox = word_in(block, _OUTBOX)
    if add_to_shared_word(word_in(block, _LEFT), -1) == 1 and outbox >= 0:
        call_at(word_in(block, _WRITE), outbox, block + WORD_BYTES * _NAME, WORD_BYTES)


@_inlined
def _pass_on(block):  # type: ignore[no-untyped-def]
    """The message that was read, to the others who have a share of the batch."""
    file = word_in(block, _OTHERS)
    for _ in range(word_in(block, _OTHER_COUNT)):
        call_at(word_in(block, _WRITE), load_word(file), block + WORD_BYTES * _MESSAGE, WORD_BYTES)
        file += WORD_BYTES


@numba.njit(forceinline=True, **OPTIONS)  # `carray` is not for those that borrow
def _fill_buffers(block):  # type: ignore[no-untyped-def]
    """Those of the DenseNet, for the batch in the block."""
    keys = carray(pointer_to(word_in(block, _KEYS)), (word_in(block, _ITEMS), word_in(block, _KEY_COLUMNS)), np.int64)
    pads = carray(pointer_to(word_in(block, _PADS)), (word_in(block, _PAD_COUNT), PAD_COLUMNS), np.int64)
    make_pads(pads, keys)
    call_at(word_in(block, _LOOK_UP), block, 0, 0)
    move = word_in(block, _MOVES)
    for _ in range(word_in(block, _MOVE_COUNT)):
        copy_unaligned(load_word(move), load_word(move + 8), load_word(move + 16))
        move += 3 * WORD_BYTES
    sequences = word_in(block, _SEQUENCE_COUNT)
    lengths = carray(pointer_to(word_in(block, _LENGTHS)), (keys.shape[0], sequences), np.int64)
    described = carray(pointer_to(word_in(block, _SEQUENCES)), (sequences, 2), np.int64)
    for sequence in range(sequences):
        count_in_column(keys, described[sequence, 0], described[sequence, 1], lengths, sequence)


def _next_batch(stack, arguments, _results):  # type: ignore[no-untyped-def]
    block = load_word(stack)
    for argument in range(1, arguments):  # tensors, there to say what changes between two calls
        call_at(word_in(block, _RELEASE), load_word(stack + WORD_BYTES * argument), 0, 0)
    if word_in(block, _UNDER_WAY):
        _tell(block)
    while True:
        read = -1
        while read < 0:  # a signal was handled meanwhile
            read = call_at(word_in(block, _READ), word_in(block, _INBOX), block + WORD_BYTES * _MESSAGE, WORD_BYTES)
        if read != WORD_BYTES or word_in(block, _MESSAGE) != BATCH:
            store_word(stack, 0)
            return
        put_word(block, _UNDER_WAY, 1)
        _note_time(block, _BEGAN_S)
        _pass_on(block)
        _fill_buffers(block)
        _note_time(block, _LOOKED_UP_S)
        if word_in(block, _FOUND) >= 0 and not word_in(block, _REFUSED):
            store_word(stack, word_in(block, _ITEMS))
            return
        _tell(block)


@functools.cache
def next_batch() -> Any:
    """The callback, by its `address`, of an op `(int block, Tensor...) -> int`: tells of the batch that is under way,
    waits for the next one and looks it up; returns its items, 0 where there is none. A batch whose lookup fails is told
    of at once.
    """
    return compile_callback(_next_batch, types.void(types.int64, types.int64, types.int64))
