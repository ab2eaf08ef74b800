"""A driver with an executor of the tests' own: what reaches the scheduler and what comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from hebe.embeddings.hierarchy import LookupReport
from hebe.machine.pinning import PlacedLane, available_cores
from hebe.query import KeyCounts, Query
from hebe.runtime.executors.batch_outcome import BatchOutcome
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import NodeDriver, clock


class Echo:
    """Scores an item with its query's id plus its index / 1000; fails or waits when told to."""

    def __init__(self, model: EchoModel) -> None:
        self.model = model

    def run(self, batch, handed=()) -> BatchOutcome:  # noqa: ARG002
        self.model.gate.wait(10)
        if self.model.fault is not None:
            raise self.model.fault
        if self.model.service_s:
            time.sleep(self.model.service_s)
        self.model.batches.append(batch)
        rows = [p.query.query_id + np.arange(p.start, p.stop) / 1000 for p in batch.sub_queries]
        scores = self.scores_of(np.concatenate(rows).astype(np.float32)[:, None])
        late = np.zeros((batch.items, 4), np.int32)
        late[:, :2] = 10, 1
        return BatchOutcome(scores, 0.001, 0.002, LookupReport(KeyCounts(10 * batch.items, batch.items), late))

    rehearse = run

    def scores_of(self, scores):
        return scores


NO_KEYS = LookupReport(KeyCounts())


class EchoSparse(Echo):
    """Hands the scores on."""

    def run(self, batch, handed=()) -> BatchOutcome:
        outcome = super().run(batch, handed)
        inputs = SimpleNamespace(items=batch.items, sparse_s=0.001, lookup=outcome.lookup, scores=outcome.scores)
        inputs.put_back = lambda: self.model.put_back.append(inputs)
        self.model.handed.append(inputs)
        return BatchOutcome(np.empty((0, 1), np.float32), 0.001, 0.0, outcome.lookup, handed=(inputs,))


class EchoDense(Echo):
    """Tells the scores that were handed on."""

    def run(self, batch, handed=()) -> BatchOutcome:  # noqa: ARG002
        scores = np.concatenate([each.scores for each in handed])
        return BatchOutcome(scores, 0.0, 0.002, handed[0].lookup, handed=tuple(handed))


class EchoModel:
    def __init__(self) -> None:
        self.spec = SimpleNamespace(outputs=1, name="echo")
        self.version, self.runs_unlocked = 1, False
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.service_s = 0.0
        self.batches: list = []
        self.handed: list = []
        self.put_back: list = []

    def new_executor(self, *_, **__) -> Echo:
        return Echo(self)

    def new_pipeline(self, *_, **__) -> SimpleNamespace:
        return SimpleNamespace(sparse=lambda: EchoSparse(self), dense=lambda: EchoDense(self))

    def warm_up(self, executor, batch_size, repeats=3, *, resting=False):  # noqa: ARG002
        return [
            (size, BatchOutcome(np.zeros((size, 1), np.float32), 0.0005, 0.0005, NO_KEYS)) for size in (1, batch_size)
        ]


def lane(*cores: tuple[int, ...], batch_size: int = 100) -> PlacedLane:
    """Workers on these cores."""
    return PlacedLane(Lane(Placement.MODEL_ON_HOST, len(cores), 1, batch_size), cores)


def drivers_of(model: EchoModel) -> Iterator[Callable[..., NodeDriver]]:
    """Makes drivers of the model, with one worker of a thread unless told otherwise; they are closed in the end."""
    drivers = []

    def make(workers: int = 1, threads: int = 1, **config) -> NodeDriver:
        cores = [available_cores()] * workers
        driver = NodeDriver(model, NodeConfig(**{"batch_size": 100, **config}), [lane(*cores)], threads=threads)
        drivers.append(driver)
        return driver

    yield make
    model.gate.set()
    for driver in drivers:
        driver.close(patience_s=1.0)


def new_query(driver: NodeDriver, items: int, **fields) -> Query:
    return Query(driver.new_query_id(), items, clock(), **fields)
