"""Runs batches of one model without the interpreter lock: from one batch to the next in compiled code.

For models of which all rows are resident, on the host: then a batch is one compiled lookup and one call of the scripted
DenseNet. Its items are shared out to the op workers (`op_team` says why), each of which does both for its share.
`ModelExecutor` does the same for all other models, and is what this one's scores are compared with.
"""

from __future__ import annotations

import os

import numpy as np

from hebe.embeddings.hierarchy import EmbeddingHierarchy, LookupReport
from hebe.machine.pinning import available_cores, pinned
from hebe.models.scripted_net import ServedNet
from hebe.query import Batch, KeyCounts
from hebe.runtime.executors.batch_outcome import BatchOutcome, DenseInputs
from hebe.runtime.executors.gil_free_op_worker import UnlockedOpWorker
from hebe.runtime.executors.op_team import FEWEST_DENSE_ITEMS, shares_of
from hebe.spec import ModelSpec

_NOBODY = -1


class UnlockedExecutor:
    """Op workers with buffers for batches of up to `max_items`. One thread calls `run_batches` or `run`, and is the
    first of them; another one gives it batches, one after the other.

    Raises ValueError where rows are not all resident, OSError where no file may be opened.
    """

    def __init__(
        self, spec: ModelSpec, hierarchy: EmbeddingHierarchy, net: ServedNet, max_items: int, op_workers: int = 1
    ) -> None:
        self.max_items = max_items
        self._hierarchy = hierarchy
        self._left = np.zeros(1, np.int64)
        most = max(-(-max_items // op_workers), min(max_items, 2 * FEWEST_DENSE_ITEMS - 1))  # for all, or for one alone
        self._others = [UnlockedOpWorker(spec, hierarchy, net, most, self._left) for _ in range(op_workers - 1)]
        self._first = UnlockedOpWorker(spec, hierarchy, net, most, self._left, self._others)
        self._team = [self._first, *self._others]
        self._shares = [(0, 0)]
        self._ended = False

    def tell(self, outbox: int, name: int) -> None:
        """From now on write `name` to `outbox` after each batch."""
        for each in self._team:
            each.block.tell(outbox, name)

    def place(self, batch: Batch) -> None:
        """Prepare for a batch, whose queries must live until it has been told of. Raises as `BatchBlock.place` does."""
        if batch.items > self.max_items:
            raise ValueError(f"batch of {batch.items} items, but this executor holds at most {self.max_items}")
        self._shares = shares_of(batch.items, len(self._team), FEWEST_DENSE_ITEMS)
        if len(self._shares) == 1:
            self._first.block.place(batch.sub_queries, batch.items)
        else:
            for each, (start, stop) in zip(self._team, self._shares, strict=False):
                each.block.place(batch.share(start, stop), stop - start)
        self._first.block.share_with(len(self._shares) - 1)
        self._left[0] = len(self._shares)

    def start(self) -> None:
        """Run the batch that was placed."""
        self._first.start()

    def end(self) -> None:
        """Let `run_batches` return, once it has run what it was given, for good."""
        self._ended = True
        self._first.end()

    def run_batches(self) -> None:
        """Run batches until told to end, each op worker on one of the calling thread's cores: the system would put two
        on one now and then, and all wait for them.
        """
        cores = available_cores()
        for number, each in enumerate(self._others, 1):
            each.run_on_thread(cores[number % len(cores)])
        with pinned(cores[:1] if self._others else cores):
            self._first.run()

    def outcome(self) -> BatchOutcome:
        """What came of the last batch; its scores are overwritten by the next one's. Raises what it raised."""
        team = self._team[: len(self._shares)]
        faults = [fault for each in team if (fault := each.take_fault()) is not None]
        if faults:
            raise faults[0]
        found, refused = (sum(counts) for counts in zip(*(each.block.looked_up() for each in team), strict=True))
        self._hierarchy.check_refused(refused)
        scores = [each.scores(stop - start) for each, (start, stop) in zip(team, self._shares, strict=True)]
        times = [each.block.times() for each in team]
        looked_up_s = max(each.looked_up_s for each in times)
        return BatchOutcome(
            scores[0] if len(scores) == 1 else np.concatenate(scores),
            looked_up_s - min(each.began_s for each in times),
            max(each.ended_s for each in times) - looked_up_s,
            LookupReport(KeyCounts(found)),
        )

    def run(self, batch: Batch, handed: tuple[DenseInputs, ...] = ()) -> BatchOutcome:  # noqa: ARG002
        """Score a batch on the calling thread and the other op workers', before anybody is told of batches. Raises what
        it raises, and RuntimeError where it is told to end meanwhile.
        """
        told, outbox = os.pipe()
        try:
            self.tell(outbox, 0)
            self.place(batch)
            self.start()
            self._first.end()
            self.run_batches()
            if self._ended:  # maybe before the batch
                for each in self._others:  # or in its midst, and they would tell of it yet
                    each.close()
                raise RuntimeError("ended before its batch was run")
            os.read(told, self._left.itemsize)  # a word; others may take longer
        finally:
            self.tell(_NOBODY, 0)
            os.close(told)
            os.close(outbox)
        return self.outcome()

    def rehearse(self, batch: Batch) -> BatchOutcome:
        """`run`: nothing is handed on."""
        return self.run(batch)

    def close(self) -> None:
        """End the other op workers, once what they were given is done, and close the pipes; nothing runs any more."""
        for each in self._team:
            each.close()

    def __del__(self) -> None:
        """Close it where no worker came to, as where batches are timed; op workers' threads do not hold it."""
        if hasattr(self, "_team"):
            self.close()
