from __future__ import annotations

import ctypes
import os
import time

import numpy as np
import pytest

from hebe.kernels.lookup.batch_loop import BATCH, BLOCK_WORDS, END, Word, next_batch
from hebe.kernels.lookup.feature_plan import COPY, PLAN_COLUMNS, POOL_SUM
from hebe.kernels.lookup.fused_lookup import LookupWord, fused_lookup_reference, look_up
from hebe.kernels.lookup.padding import describe_copies, describe_pad
from hebe.kernels.lookup.row_format import RowFormat, encode_rows

ITEMS, ROWS, DIM = 5, 50, 4
NAME = 77


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


class Worker:
    """A block over buffers of its own: a pooled feature of 3 keys, jagged, and a copied one of 2, fixed."""

    def __init__(self, row_format: RowFormat = RowFormat.FP32) -> None:
        rng = np.random.default_rng(0)
        self.row_format = row_format
        self.plan = np.zeros((2, PLAN_COLUMNS), np.int64)
        table = np.empty((2 * ROWS, row_format.row_bytes(DIM)), np.uint8)
        encode_rows(row_format, rng.standard_normal((2 * ROWS, DIM)).astype(np.float32), table)
        self.tables = table.reshape(-1)
        self.plan[0] = 0, 3, 0, DIM, ROWS, 0, POOL_SUM
        self.plan[1] = 3, 2, ROWS * row_format.row_bytes(DIM), DIM, ROWS, DIM, COPY
        self.keys = np.full((ITEMS + 1, 5), -7)
        self.out = np.full((ITEMS + 1, 3 * DIM), np.nan, np.float32)
        self.dense = np.zeros((ITEMS + 1, 2), np.float32)
        self.lengths = np.full((ITEMS + 1, 1), -7)
        self.sequences = np.array([[3, 2]])
        self.inbox, self.orders = os.pipe()
        self.told, self.outbox = os.pipe()
        self.released = 0
        self.release = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self._let_go)
        self.block = np.zeros(BLOCK_WORDS, np.int64)
        self.left = np.zeros(1, np.int64)
        libc = ctypes.CDLL(None)
        self.look_up = look_up(row_format)
        self.put(
            INBOX=self.inbox, LEFT=self.left.ctypes.data,
            OUTBOX=self.outbox, NAME=NAME, READ=address_of(libc.read), WRITE=address_of(libc.write),
            CLOCK=address_of(libc.clock_gettime), RELEASE=address_of(self.release), LOOK_UP=self.look_up.address,
            KEYS=self.keys.ctypes.data, KEY_COLUMNS=5, SUMS=self.out.ctypes.data, SUM_COLUMNS=3 * DIM,
            LENGTHS=self.lengths.ctypes.data, SEQUENCES=self.sequences.ctypes.data, SEQUENCE_COUNT=1,
            TABLES=self.tables.ctypes.data, TABLE_BYTES=self.tables.size, PLAN=self.plan.ctypes.data, FEATURES=2,
            PLAN_COLUMNS=PLAN_COLUMNS,
        )  # fmt: skip

    def _let_go(self, tensor: int) -> int:
        self.released += tensor
        return 0

    def put(self, **words: int) -> None:
        for word, value in words.items():
            self.block[(LookupWord if word in LookupWord.__members__ else Word)[word]] = value

    def place(self, fixed: np.ndarray, left: int = 1) -> None:
        """A batch of two keys of the jagged feature for each second item, and these of the fixed one, of which so many
        are not done with their share."""
        self.left[0] = left
        self.values, self.offsets = np.arange(6) + 10, np.array([0, 0, 2, 2, 4, 6])
        self.copies = describe_copies([fixed], [3], 0, ITEMS, self.keys, 0)
        self.pads = np.array([describe_pad(self.values, self.offsets, 0, ITEMS, 3, self.keys, 0, 0)])
        # Received bytes lie at any address.
        self.numbers = np.frombuffer(b"abc" + np.arange(2 * ITEMS, dtype=np.float32).tobytes(), np.uint8)
        self.moves = np.array([self.dense.ctypes.data, self.numbers.ctypes.data + 3, self.numbers.size - 3])
        self.put(
            ITEMS=ITEMS, COPIES=self.copies.ctypes.data, COPY_COUNT=1, PADS=self.pads.ctypes.data, PAD_COUNT=1,
            MOVES=self.moves.ctypes.data, MOVE_COUNT=1,
        )  # fmt: skip

    def order(self, message: int) -> None:
        os.write(self.orders, np.int64(message).tobytes())

    def next_batch(self) -> int:
        """As torch calls it, with two tensors, 5 and 6."""
        stack = np.array([self.block.ctypes.data, 5, 6])
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(next_batch().address)(
            stack.ctypes.data, 3, 1
        )
        return int(stack[0])

    def messages(self) -> list[int]:
        os.set_blocking(self.told, False)
        try:
            return np.frombuffer(os.read(self.told, 800), np.int64).tolist()
        except BlockingIOError:
            return []

    def close(self) -> None:
        for file in (self.inbox, self.orders, self.told, self.outbox):
            os.close(file)


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()


def fixed_keys() -> np.ndarray:
    return np.random.default_rng(1).integers(0, ROWS, (ITEMS, 2))


@pytest.mark.parametrize("row_format", [RowFormat.FP32, RowFormat.INT8])
def test_the_next_batch_is_looked_up_as_by_the_reference(row_format):
    worker = Worker(row_format)
    fixed = fixed_keys()
    worker.place(fixed)
    worker.order(BATCH)
    began_s = time.monotonic()
    assert worker.next_batch() == ITEMS
    jagged = [[-1, -1, -1], [10, 11, -1], [-1, -1, -1], [12, 13, -1], [14, 15, -1]]
    assert worker.keys[:ITEMS].tolist() == np.hstack([jagged, fixed]).tolist()
    expected = np.full_like(worker.out, np.nan)
    found, _ = fused_lookup_reference(
        worker.tables, np.empty(0, np.float32), worker.keys[:ITEMS], worker.plan, expected, row_format
    )
    np.testing.assert_allclose(worker.out, expected, rtol=1e-5, atol=1e-6)  # NaN past the batch in both
    assert worker.dense.tolist() == [*np.arange(2.0 * ITEMS).reshape(-1, 2).tolist(), [0, 0]]
    assert worker.lengths.ravel().tolist() == [2] * ITEMS + [-7]
    assert (worker.block[LookupWord.FOUND], worker.block[LookupWord.REFUSED]) == (found, 0)
    assert worker.released == 5 + 6
    assert worker.messages() == []  # it is under way
    worker.order(END)
    assert worker.next_batch() == 0
    assert worker.messages() == [NAME]
    seconds = worker.block[[Word.BEGAN_S, Word.LOOKED_UP_S, Word.ENDED_S]]
    times = seconds + 1e-9 * worker.block[[Word.BEGAN_NS, Word.LOOKED_UP_NS, Word.ENDED_NS]]
    in_order = [began_s, *times, time.monotonic()]
    assert in_order == sorted(in_order)
    worker.close()


def test_a_batch_whose_lookup_fails_is_told_of_at_once_and_the_next_one_awaited(worker):
    fixed = fixed_keys()
    fixed[2, 1] = ROWS
    worker.place(fixed)
    worker.order(BATCH)
    worker.order(END)
    assert worker.next_batch() == 0
    assert worker.block[LookupWord.REFUSED] == 1
    assert worker.messages() == [NAME]
    worker.plan[0, 0] = 9  # past the key matrix
    worker.place(fixed_keys())
    worker.order(BATCH)
    worker.order(END)
    assert worker.next_batch() == 0
    assert worker.block[LookupWord.FOUND] < 0
    assert worker.messages() == [NAME]


def test_the_others_are_sent_what_starts_a_batch_and_who_is_done_last_tells(worker):
    (told, other), more = os.pipe(), os.open(os.devnull, os.O_WRONLY)
    files = np.array([other, more])
    worker.put(OTHERS=files.ctypes.data, OTHER_COUNT=1)
    for left, told_of in ((2, []), (1, [NAME])):
        worker.place(fixed_keys(), left)
        worker.order(BATCH)
        worker.order(END)
        assert [worker.next_batch(), worker.next_batch()] == [ITEMS, 0]
        assert os.read(told, 100) == np.int64(BATCH).tobytes()  # and no END
        assert worker.messages() == told_of
        assert worker.left[0] == left - 1
    for file in (told, other, more):
        os.close(file)


def test_nobody_is_told_where_there_is_no_outbox(worker):
    worker.put(OUTBOX=-1)
    worker.place(fixed_keys())
    for message in (BATCH, END):
        worker.order(message)
    assert [worker.next_batch(), worker.next_batch()] == [ITEMS, 0]
    assert worker.messages() == []
    assert not worker.block[Word.UNDER_WAY]


def test_an_inbox_that_is_closed_ends_it(worker):
    os.close(worker.orders)
    assert worker.next_batch() == 0
    worker.orders = os.open(os.devnull, os.O_RDONLY)
