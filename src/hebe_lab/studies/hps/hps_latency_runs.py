"""One DLRM run by PyTorch and by Hebe, with and without tiers, batch by batch. For `latency`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.machine.memory import available_bytes
from hebe.machine.pinning import available_cores, pin_thread
from hebe.models.architectures.ranking_model import RankingModel, initial_rows
from hebe.models.repository.repository import ModelRepository
from hebe.query import Batch, FloatArray, Query, SubQuery
from hebe.runtime.executors.batch_outcome import BatchOutcome
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.studies.hps.setting import DIM, PAPER_BATCH, ROW_BYTES, DataSet, Values

PYTORCH, RESIDENT = "PyTorch", "Hebe, all rows in memory"

_SEED = 1
_TABLE_SHARE, _TAKEN = 0.25, 6.5
"""Of the free memory, for tables: those of PyTorch, of Hebe, of two hash maps and caches, and of the model's files."""
_BATCH_SHARE, _COPIES = 0.6, 10
"""Of the free memory, for a batch's pooled rows: those of each executor, and what PyTorch makes of them."""
_WARMING_BATCHES = 150
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 61
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Contestant:
    """`name` on so many cores."""

    name: str
    cores: int


@dataclass(frozen=True, slots=True)
class Timed:
    """One batch size and contestant: seconds of each round, of it those of the lookup, and keys defaulted of all."""

    seconds: Values
    sparse_s: Values
    defaulted: float


Run = Callable[[Query], tuple[FloatArray, float, int]]
"""Scores, seconds of the lookup, keys that got a default vector."""


def rows_that_fit(tables: int, most: int) -> int:
    """Rows of each table, so that all contestants' tables lie in memory side by side."""
    return max(1, min(most, int(_TABLE_SHARE * (available_bytes() or 0) / (tables * ROW_BYTES * _TAKEN))))


def batch_fits(data: DataSet, batch: int) -> bool:
    """Whether all contestants' buffers for a batch do."""
    return _COPIES * batch * data.tables * DIM * 4 <= _BATCH_SHARE * (available_bytes() or 0)


class Race:
    """All contestants with the same weights: PyTorch, Hebe with resident tables, and Hebe with each of `tiered`.

    The model is written below `directory`. Used as a context, which gives all memory back.
    """

    def __init__(self, data: DataSet, tiered: Mapping[str, HierarchyConfig], directory: Path) -> None:
        self.data = data
        self._spec = data.spec
        self._rng = np.random.default_rng(_SEED)
        self._open = contextlib.ExitStack()
        self._plain = RankingModel(self._spec, _SEED).eval()
        repository = ModelRepository(directory)
        repository.write(
            self._spec,
            {table.name: initial_rows(self._spec, table.name, _SEED) for table in self._spec.tables},
            self._plain.dense_net.state_dict(),
        )
        self._models: dict[str, LoadedModel] = {}
        with contextlib.ExitStack() as opened:
            for name, hierarchy in {RESIDENT: None, **tiered}.items():
                options = LoadOptions(hierarchy=hierarchy)
                model = LoadedModel.load(directory, self._spec.name, options=options, threads=len(available_cores()))
                self._models[name] = model
                opened.callback(model.close)
            self._open = opened.pop_all()

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def contestants(self) -> list[Contestant]:
        """Each on one core and on all that this process may use."""
        cores = sorted({1, len(available_cores())})
        return [Contestant(name, count) for count in cores for name in (PYTORCH, *self._models)]

    def warm(self) -> None:
        """Fill the caches as queries do, every miss waited for."""
        out = np.empty((PAPER_BATCH, self._spec.sparse_width), np.float32)
        for model in self._models.values():
            scratch = model.hierarchy.new_scratch(PAPER_BATCH)
            for _ in range(_WARMING_BATCHES):
                model.hierarchy.lookup(self.data.draw(PAPER_BATCH, self._rng), out, scratch, wait=True)

    def run(self, batch: int, budget_s: float) -> dict[Contestant, Timed]:
        """Time all contestants on batches of so many items, in turns of random order, for about `budget_s`.

        Raises RuntimeError where the scores of two differ.
        """
        seconds: dict[Contestant, list[float]] = {contestant: [] for contestant in self.contestants}
        sparse_s: dict[Contestant, list[float]] = {contestant: [] for contestant in self.contestants}
        defaulted = dict.fromkeys(self.contestants, 0)
        with contextlib.ExitStack() as stack:
            runs = {each: stack.enter_context(self._runner(each, batch)) for each in self.contestants}
            self._agree(runs, batch)
            until_s = time.perf_counter() + budget_s
            rounds = 0
            while rounds < _LEAST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() < until_s):
                for at in self._rng.permutation(len(runs)).tolist():
                    contestant = self.contestants[at]
                    query = self.data.query(batch, self._rng)
                    started_s = time.perf_counter()
                    _, looked_up_s, late = runs[contestant](query)
                    seconds[contestant].append(time.perf_counter() - started_s)
                    sparse_s[contestant].append(looked_up_s)
                    defaulted[contestant] += late
                rounds += 1
        keys = rounds * batch * self.data.tables
        return {
            each: Timed(np.array(seconds[each]), np.array(sparse_s[each]), defaulted[each] / keys) for each in seconds
        }

    def _agree(self, runs: Mapping[Contestant, Run], batch: int) -> None:
        """All give the same scores where nothing is defaulted; twice, since what runs first specialises its code."""
        for _ in range(2):
            query = self.data.query(batch, self._rng)
            query.max_defaulted_fraction = 0.0
            scores = {contestant: run(query)[0].copy() for contestant, run in runs.items()}
            expected = scores[self.contestants[0]]
            for contestant, found in scores.items():
                if not np.allclose(found, expected, rtol=0, atol=_TOLERANCE):
                    raise RuntimeError(f"the scores of {contestant.name} differ from PyTorch's")

    def _runner(self, contestant: Contestant, batch: int) -> contextlib.AbstractContextManager[Run]:
        if contestant.name == PYTORCH:
            return self._pytorch(contestant.cores)
        return self._hebe(self._models[contestant.name], batch, contestant.cores)

    @contextlib.contextmanager
    def _pytorch(self, cores: int) -> Iterator[Run]:
        """Eager PyTorch in one thread with so many of its own beside it."""
        with _pinned_pool(available_cores()[-cores:]) as pool:
            yield lambda query: pool.submit(self._forward, query).result()

    @torch.inference_mode()
    def _forward(self, query: Query) -> tuple[FloatArray, float, int]:
        started_s = time.perf_counter()
        features = {name: torch.from_numpy(keys) for name, keys in query.features.items()}
        sparse, lengths = self._plain.sparse(features)
        looked_up_s = time.perf_counter() - started_s
        scores = torch.sigmoid(self._plain.dense_net.logits(torch.from_numpy(query.dense), sparse, lengths))
        return scores.numpy(), looked_up_s, 0

    @contextlib.contextmanager
    def _hebe(self, model: LoadedModel, batch: int, workers: int) -> Iterator[Run]:
        """A worker on each core, among whom a query is split evenly."""
        workers = min(workers, batch)
        bounds = np.linspace(0, batch, workers + 1).round().astype(int).tolist()
        cores = available_cores()[-workers:]
        with contextlib.ExitStack() as stack:
            pools = [stack.enter_context(_pinned_pool([core])) for core in cores]
            executors = [model.new_executor(stop - start) for start, stop in pairwise(bounds)]

            def part(query: Query, worker: int) -> BatchOutcome:
                start, stop = bounds[worker], bounds[worker + 1]
                return executors[worker].run(Batch(0, (SubQuery(query, start, stop),), stop - start))

            def run(query: Query) -> tuple[FloatArray, float, int]:
                parts = [pool.submit(part, query, worker) for worker, pool in enumerate(pools)]
                outcomes = [each.result() for each in parts]
                late = sum(outcome.lookup.keys.defaulted for outcome in outcomes)
                scores = np.concatenate([outcome.scores for outcome in outcomes])
                return scores, max(outcome.sparse_s for outcome in outcomes), late

            yield run


@contextlib.contextmanager
def _pinned_pool(cores: Sequence[int]) -> Iterator[ThreadPoolExecutor]:
    """One thread on `cores`, as many of torch's with it."""

    def begin() -> None:
        pin_thread(cores)
        torch.set_num_threads(len(cores))

    with ThreadPoolExecutor(1, initializer=begin) as pool:
        yield pool
