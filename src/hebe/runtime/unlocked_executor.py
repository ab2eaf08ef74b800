"""Runs batches of one model without the interpreter lock: from one batch to the next in compiled code.

For models of which all rows are resident, on the host, on one core: then a batch is one compiled lookup and one call of
the scripted DenseNet. `ModelExecutor` does the same for all others, and is what this one's scores are compared with.
"""

from __future__ import annotations

import ctypes
import os
import threading

from hebe.embeddings.batch_block import BATCH_MESSAGE, END_MESSAGE, BatchBlock
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.models.batch_op import release_address
from hebe.models.scripted_net import ServedNet
from hebe.query import Batch
from hebe.runtime.batch_outcome import BatchOutcome, DenseInputs
from hebe.runtime.dense_executor import HostScores
from hebe.spec import ModelSpec

_system = ctypes.PyDLL(None)
"""Whose functions are called with the interpreter lock in hand: writing a word to a pipe takes less than to have the
lock again."""


def write_message(file: int, message: bytes) -> None:
    """Write a message of one word to a pipe that has room for it."""
    _system.write(file, message, len(message))


class UnlockedExecutor:
    """Buffers for batches of up to `max_items`, and pipes. One thread calls `run_batches` or `run`; another one
    gives it batches, one after the other.

    Raises ValueError where rows are not all resident, OSError where no file may be opened.
    """

    def __init__(self, spec: ModelSpec, hierarchy: EmbeddingHierarchy, net: ServedNet, max_items: int) -> None:
        self.max_items = max_items
        self._net = net
        self._inputs = inputs = DenseInputs(spec, max_items)
        self._scores = HostScores(spec, max_items)
        self._closing = threading.Lock()
        self._closed = False
        self._inbox, self._orders = os.pipe()
        self._block = BatchBlock(
            spec, hierarchy, inputs.keys, inputs.dense, inputs.sparse, inputs.lengths,
            inbox=self._inbox, release_address=release_address(),
        )  # fmt: skip
        self._items = 0
        self._fault: Exception | None = None

    def tell(self, outbox: int, name: int) -> None:
        """From now on write `name` to `outbox` after each batch."""
        self._block.tell(outbox, name)

    def place(self, batch: Batch) -> None:
        """Prepare for a batch, whose queries must live until it has been told of. Raises as `BatchBlock.place` does."""
        self._items = batch.items
        self._block.place(batch.sub_queries, batch.items)

    def start(self) -> None:
        """Run the batch that was placed."""
        self._order(BATCH_MESSAGE)

    def end(self) -> None:
        """Let `run_batches` return once it has run what it was given."""
        self._order(END_MESSAGE)

    def _order(self, message: bytes) -> None:
        with self._closing:
            if not self._closed:
                write_message(self._orders, message)

    def run_batches(self) -> bool:
        """Run batches until told to end, and return True; False where one failed, of which it is to be told."""
        try:
            self._net.run_batches(self._block.address, self._scores.tensor, *self._inputs.tensors)
        except Exception as fault:
            if not self._block.under_way:  # it is no batch's fault
                raise
            self._fault = fault
            self._block.abandon()
            return False
        return True

    def outcome(self) -> BatchOutcome:
        """What came of the last batch; its scores are overwritten by the next one's. Raises what it raised."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        lookup, times = self._block.lookup(), self._block.times()
        return BatchOutcome(self._scores.array[: self._items], times.sparse_s, times.dense_s, lookup)

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = ()) -> BatchOutcome:  # noqa: ARG002
        """Score a batch on the calling thread. Raises what it raises."""
        self.place(batch)
        self.start()
        self.end()
        if not self.run_batches():
            self.run_batches()  # to the end
        return self.outcome()

    def rehearse(self, batch: Batch) -> BatchOutcome:
        """`run`: nothing is handed on."""
        return self.run(batch)

    def close(self) -> None:
        """Close the pipe; nothing runs any more."""
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._inbox)
                os.close(self._orders)

    def __del__(self) -> None:
        """Close it where no worker came to."""
        if hasattr(self, "_orders"):
            self.close()
