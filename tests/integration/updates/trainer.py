"""A trainer that sends updates of a `row_reader` model, in the background, for tests of servers that follow them."""

from __future__ import annotations

import threading

import numpy as np

from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.producer import BatchingProducer
from tests.integration.tiers.row_reader import TABLE, Keys, Versions

QUICK = BatchingOptions(max_rows=64, linger_s=0.01)
"""Small messages, soon."""


class Trainer:
    """Sends rows, and now and then deletes some, on a thread of its own between entering and leaving.

    The producer is flushed on leaving, not closed."""

    def __init__(
        self,
        producer: BatchingProducer,
        model: str,
        versions: Versions,
        keys: Keys,
        pause_s: float = 0.02,
        *,
        deletes: bool = True,
    ) -> None:
        self._producer, self._model, self._versions = producer, model, versions
        self._keys, self._pause_s, self._deletes = keys, pause_s, deletes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer")
        self._fault: BaseException | None = None
        self.batches = 0

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._fault is None, self._fault

    def _run(self) -> None:
        rng = np.random.default_rng(5)
        try:
            while not self._stop.wait(self._pause_s):
                keys = rng.choice(self._keys, 40, replace=False)
                self.batches += 1
                if self._deletes and self.batches % 9 == 0:
                    self._versions.delete(keys[:5])
                    self._producer.delete(self._model, TABLE, keys[:5])
                else:
                    self._producer.send(self._model, TABLE, keys, self._versions.raise_versions(keys))
            self._producer.flush()
        except BaseException as fault:  # told on leaving
            self._fault = fault
