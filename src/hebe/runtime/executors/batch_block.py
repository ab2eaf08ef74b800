"""The block of words that an op worker shares which runs from batch to batch in compiled code (`kernels.batch_loop`):
what it looks up where, its share of the batch that it runs next, and what came of that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hebe.embeddings.batches.key_matrix import place_dense, place_described, place_keys
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.kernels.lookup import fused_lookup
from hebe.kernels.lookup.batch_loop import BATCH, BLOCK_WORDS, END, Word
from hebe.kernels.lookup.fused_lookup import LookupWord
from hebe.kernels.lookup.padding import NO_COPIES
from hebe.query import FloatArray, KeyArray, SubQuery
from hebe.spec import ModelSpec

__all__ = ["BATCH_MESSAGE", "END_MESSAGE", "BatchBlock", "BatchTimes"]

BATCH_MESSAGE, END_MESSAGE = (np.int64(message).tobytes() for message in (BATCH, END))
"""What is written to the worker's inbox."""

_NANO = 1e-9
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch was begun, its rows had been looked up, and all was done: seconds of the monotonic clock."""

    began_s: float
    looked_up_s: float
    ended_s: float


class BatchBlock:
    """That of one op worker, over its buffers: `keys` int64 `[n, lookups_per_item]`, `dense` float32 `[n, dense_dim]`,
    `sparse` float32 `[n, sparse_width]` and `lengths` int64 `[n, sequences]`, all C-contiguous.

    `inbox` is the file that it reads messages from, and `others` are those to which it passes them on; `left`, int64
    `[1]`, counts those who are not done with their share; `release_address` is that of what lets go of a tensor. Raises
    ValueError where rows are not all resident (`EmbeddingHierarchy.looks_up_alone`).
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        keys: KeyArray,
        dense: FloatArray,
        sparse: FloatArray,
        lengths: KeyArray,
        *,
        inbox: int,
        others: Sequence[int] = (),
        left: KeyArray,
        release_address: int,
    ) -> None:
        self.spec, self._hierarchy = spec, hierarchy
        self._keys, self._dense, self._dense_at = keys, dense, dense.ctypes.data
        self._words: KeyArray = np.zeros(BLOCK_WORDS, np.int64)
        columns, sequences = 0, []
        for feature in spec.features:
            if not feature.pooling.reduces:
                sequences.append((columns, feature.lookups))
            columns += feature.lookups
        described = np.array(sequences, np.int64).reshape(-1, 2)
        looked_up = hierarchy.lookup_arrays()
        tables, plan, look_up = looked_up.tables, looked_up.plan, fused_lookup.look_up(looked_up.row_format)
        files = np.array(others, np.int64)
        self._alive = (sparse, lengths, described, tables, plan, look_up, files, left)
        system = ctypes.CDLL(None)
        for word, value in {
            Word.INBOX: inbox,
            Word.OTHERS: files.ctypes.data,
            Word.LEFT: left.ctypes.data,
            Word.OUTBOX: -1,
            Word.READ: _address_of(system.read),
            Word.WRITE: _address_of(system.write),
            Word.CLOCK: _address_of(system.clock_gettime),
            Word.RELEASE: release_address,
            Word.LOOK_UP: look_up.address,
            LookupWord.KEYS: keys.ctypes.data,
            LookupWord.KEY_COLUMNS: columns,
            LookupWord.SUMS: sparse.ctypes.data,
            LookupWord.SUM_COLUMNS: sparse.shape[1],
            Word.LENGTHS: lengths.ctypes.data,
            Word.SEQUENCES: described.ctypes.data,
            Word.SEQUENCE_COUNT: len(described),
            LookupWord.TABLES: tables.ctypes.data,
            LookupWord.TABLE_BYTES: tables.size,
            LookupWord.PLAN: plan.ctypes.data,
            LookupWord.FEATURES: plan.shape[0],
            LookupWord.PLAN_COLUMNS: plan.shape[1],
        }.items():
            self._words[word] = value

    @property
    def address(self) -> int:
        """Of the words, for as long as this lives."""
        return self._words.ctypes.data

    def tell(self, outbox: int, name: int) -> None:
        """Have it write `name` to the file `outbox` after each batch from now on, if it is the last to be done."""
        self._words[Word.NAME], self._words[Word.OUTBOX] = name, outbox

    @property
    def under_way(self) -> bool:
        """Whether a batch was begun that has not been told of."""
        return bool(self._words[Word.UNDER_WAY])

    def share_with(self, others: int) -> None:
        """Have it pass on what starts the next batch to the first so many of the others."""
        self._words[Word.OTHER_COUNT] = others

    def place(self, sub_queries: Sequence[SubQuery], items: int) -> None:
        """Describe a batch, or this share of one, of no more `items` than there is room for, whose queries must live
        until it has been told of. Nothing may be under way.

        Raises as `place_keys` and `place_dense` do, and `StoreError` where the tables are closed.
        """
        self._hierarchy.check_open()
        if items > len(self._keys):
            raise ValueError(f"batch of {items} items, but this executor holds at most {len(self._keys)}")
        copies: list[KeyArray] = []
        pads: list[tuple[int, ...]] = []
        moves: list[int] = []
        row, width = 0, self.spec.dense_dim
        for part in sub_queries:
            query, start, stop = part.query, part.start, part.stop
            if query.described is not None:
                copies.append(place_described(self._keys, row, query.described, start, stop))
            else:
                copies.append(place_keys(self._keys, row, query.features, start, stop, self.spec, pads))
            if query.dense is not None:
                numbers = query.dense
                if _is_plain(numbers, (query.items, width)):
                    item_bytes = _NUMBER_BYTES * width
                    source = numbers.ctypes.data + start * item_bytes
                    moves += (self._dense_at + row * item_bytes, source, part.items * item_bytes)
                else:
                    place_dense(self._dense, row, numbers, start, stop)
            row += part.items
        all_copies = copies[0] if len(copies) == 1 else np.concatenate(copies or [NO_COPIES])
        all_pads = np.array(pads, np.int64)
        all_moves = np.array(moves, np.int64)
        self._described = all_copies, all_pads, all_moves
        words = self._words
        words[LookupWord.ITEMS] = items
        words[LookupWord.COPIES], words[LookupWord.COPY_COUNT] = all_copies.ctypes.data, len(all_copies)
        words[Word.PADS], words[Word.PAD_COUNT] = all_pads.ctypes.data, len(pads)
        words[Word.MOVES], words[Word.MOVE_COUNT] = all_moves.ctypes.data, len(moves) // 3

    def looked_up(self) -> tuple[int, int]:
        """How many keys of the last batch were found, and how many refused. Raises ValueError where nothing fits."""
        found, refused = self._words[[LookupWord.FOUND, LookupWord.REFUSED]].tolist()
        if found < 0:
            raise ValueError(f"model {self.spec.name}: the plan of its lookups does not fit its tables")
        return found, refused

    def times(self) -> BatchTimes:
        """Where the time of the last batch went."""
        words = self._words[Word.BEGAN_S : Word.ENDED_NS + 1].tolist()
        return BatchTimes(*(seconds + _NANO * rest for seconds, rest in zip(words[::2], words[1::2], strict=True)))


def _is_plain(numbers: FloatArray, shape: tuple[int, int]) -> bool:
    return numbers.dtype == np.float32 and numbers.flags.c_contiguous and numbers.shape == shape


def _address_of(function: ctypes._NamedFuncPointer) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
