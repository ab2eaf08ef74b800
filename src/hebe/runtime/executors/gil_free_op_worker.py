"""One op worker that goes from batch to batch without the interpreter lock: its buffers, its pipe, its thread."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence

import torch

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.machine.pinning import pin_thread
from hebe.models.scripted_net import ServedNet, release_address
from hebe.query import FloatArray, KeyArray
from hebe.runtime.executors.batch_block import BATCH_MESSAGE, END_MESSAGE, BatchBlock
from hebe.runtime.executors.batch_outcome import DenseInputs
from hebe.runtime.executors.dense_executor import HostScores
from hebe.spec import ModelSpec

_system = ctypes.PyDLL(None)
"""Whose functions are called with the interpreter lock in hand: writing a word to a pipe takes less than to have the
lock again."""


def write_message(file: int, message: bytes) -> None:
    """Write a message of one word to a pipe that has room for it."""
    _system.write(file, message, len(message))


class UnlockedOpWorker:
    """Runs what is placed in its `block`, shares of up to `max_items`: on the thread that calls `run`, or on one of its
    own. The first op worker of a worker passes what starts a batch on to the `others`.

    Raises ValueError where rows are not all resident, OSError where no file may be opened.
    """

    def __init__(
        self,
        spec: ModelSpec,
        hierarchy: EmbeddingHierarchy,
        net: ServedNet,
        max_items: int,
        left: KeyArray,
        others: Sequence[UnlockedOpWorker] = (),
    ) -> None:
        self._net = net
        self._inputs = inputs = DenseInputs(spec, max_items)
        self._scores = HostScores(spec, max_items)
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closed = False
        self._inbox, self._orders = os.pipe()
        self.block = BatchBlock(
            spec, hierarchy, inputs.keys, inputs.dense, inputs.sparse, inputs.lengths, inbox=self._inbox,
            others=[other._orders for other in others], left=left, release_address=release_address(),
        )  # fmt: skip

    def start(self) -> None:
        """Run what is placed."""
        self._order(BATCH_MESSAGE)

    def end(self) -> None:
        """Let `run` return, after what was started before."""
        self._order(END_MESSAGE)

    def _order(self, message: bytes) -> None:
        with self._closing:
            if not self._closed:
                write_message(self._orders, message)

    def run(self) -> None:
        """Run one batch after the other until told to end. What one raises is kept for `take_fault`."""
        while True:
            try:
                self._net.run_batches(self.block.address, self._scores.tensor, *self._inputs.tensors)
            except Exception as fault:
                if not self.block.under_way:  # it is no batch's fault
                    raise
                self._fault = fault  # and go on, by telling of this batch
            else:
                return

    def run_on_thread(self, core: int) -> None:
        """`run` on a thread of its own, on this core, with the calling one's priority: a second call finds it there."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, args=(core,), name="hebe-op", daemon=True)
            thread.start()
            self._thread = thread  # not before it runs: `close` waits for it

    def _work(self, core: int) -> None:
        pin_thread([core])
        torch.set_num_threads(1)
        with torch.inference_mode():
            self.run()

    def scores(self, items: int) -> FloatArray:
        """Of the last batch; they are overwritten by the next one's."""
        return self._scores.array[:items]

    def take_fault(self) -> Exception | None:
        """What the last batch raised, once."""
        fault, self._fault = self._fault, None
        return fault

    def close(self) -> None:
        """End what runs, and close the pipe; nothing runs any more."""
        self.end()
        if self._thread is not None:
            self._thread.join()
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._inbox)
                os.close(self._orders)

    def __del__(self) -> None:
        """Close it where no worker came to; nobody runs it, who would hold it."""
        if hasattr(self, "_orders"):
            self.close()
