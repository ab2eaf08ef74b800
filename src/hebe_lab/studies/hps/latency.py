"""HPS, Fig. 6: latency and throughput of one model by batch size, against plain PyTorch on the CPU.

One DLRM of the paper's form with 26 tables, the same weights for all: PyTorch with its tables in memory, Hebe with its
tables in memory, and Hebe with a cache over a hash map of all rows, of the paper's two sizes. Keys as the paper draws
them. Each contestant runs batch by batch (`Race`), on one core and on all.
"""

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
from rich.progress import Progress

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.machine.memory import available_bytes
from hebe.machine.pinning import available_cores, pin_thread
from hebe.models.architectures.ranking_model import RankingModel, initial_rows
from hebe.models.repository.repository import ModelRepository
from hebe.query import Batch, FloatArray, Query, SubQuery
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure, ratio_of_medians
from hebe.runtime.executors.batch_outcome import BatchOutcome
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.studies.hps.setting import (
    DIM,
    HASH_MAP,
    PAPER_BATCH,
    PAPER_TABLES,
    POWER_LAW,
    ROW_BYTES,
    DataSet,
    Values,
    lines,
    scratch_directory,
)
from hebe_lab.studies.hps.warmup import tiers_config
from hebe_lab.study import StudyError, StudyOptions, StudyResult

DESCRIPTION = "HPS, Fig. 6: latency and throughput by batch size against plain PyTorch on the CPU."

CRITEO_BYTES, CRITEO_CACHE, CRITEO_THRESHOLD = 90e9, 0.5, 0.8
SYNTHETIC_CACHE = 0.05
"""Fig. 6a with Table 1's cache, Fig. 6b with a smaller one, "all settings the same" else."""
PAPER_THROUGHPUT = {1_024: 2.4e6, 131_072: 6.4e6}
PAPER_PYTORCH, PAPER_PYTORCH_BATCH = 0.2e6, 2_048
PAPER_SPEEDUP = {131_072: 62.0}
PAPER_SPEEDUPS = "5 to 62"


@dataclass(frozen=True, slots=True)
class Effort:
    """Most rows of a table, batch sizes, seconds for each of them."""

    rows: int
    batches: tuple[int, ...]
    budget_s: float


EFFORTS = (
    Effort(5_000, (32, 256, 1_024), 3.0),
    Effort(40_000, (32, 128, 512, 1_024, 2_048, 8_192), 25.0),
    Effort(round(CRITEO_BYTES / ROW_BYTES / PAPER_TABLES), (32, 128, 512, 1_024, 2_048, 8_192, 32_768, 131_072), 90.0),
)


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Make the model, load it for all, and time every batch size."""
    effort = options.pick(*EFFORTS)
    data = DataSet(PAPER_TABLES, rows_that_fit(PAPER_TABLES, effort.rows))
    measured: dict[int, Mapping[Contestant, Timed]] = {}
    with scratch_directory() as directory:
        tiered = {
            _cached(share): tiers_config(HASH_MAP, share, CRITEO_THRESHOLD, directory, filled=True)
            for share in (CRITEO_CACHE, SYNTHETIC_CACHE)
        }
        task = progress.add_task("loading the model", total=None)
        with Race(data, tiered, directory) as race:
            progress.update(task, description="warming the caches")
            race.warm()
            progress.remove_task(task)
            for batch in progress.track(effort.batches, description="batch sizes"):
                if batch_fits(data, batch):
                    measured[batch] = race.run(batch, effort.budget_s)
    if not measured:
        raise StudyError("this machine's free memory does not hold the smallest batch")
    return told(data, measured, [batch for batch in effort.batches if batch not in measured])


def told(data: DataSet, measured: Measured, left_out: Sequence[int] = ()) -> StudyResult:
    """What the times of each batch size and contestant come to."""
    contestants = list(next(iter(measured.values())))
    cores = max(each.cores for each in contestants)
    every = [each for each in contestants if each.cores == cores]
    missing = f" Batches of {_listed(left_out)} do not fit into the memory here." if left_out else ""
    content: list[Heading | str | Picture | Table] = [
        f"{data}; one key of each table an item, drawn from a power law with alpha {POWER_LAW.alpha:g}. The paper: "
        "Triton with one A100, its cache holding half of the Criteo terabyte logs' 90 GB (6a) or 5% of 650 GB (6b), "
        "against PyTorch on the CPU, of which the machine has two with 64 cores each; here all run on the same "
        f"{cores} cores of this machine, without a server. The threshold is {CRITEO_THRESHOLD:g} as in the paper. "
        "Caches are warm." + missing,
        Heading("Fig. 6: latency and throughput by batch size"),
        Picture(_latencies(measured, every, cores), "Medians; the paper's curves stand in its figure only."),
        Picture(_throughputs(measured, every, cores)),
    ]
    for count in sorted({each.cores for each in contestants}, reverse=True):
        own = [each for each in contestants if each.cores == count]
        content.append(_table(measured, own, count))
    content += [_paper_table(measured, every), _sparse_table(measured, contestants), _explanation(measured, every)]
    largest = max(measured)
    return StudyResult(
        figures=_figures(measured, every, contestants),
        content=content,
        lead=[f"hps.latency.speedup.batch_{largest}", "hps.latency.least_speedup", "hps.latency.best_throughput",
              "hps.latency.best_throughput_pytorch"],
    )  # fmt: skip


def _cached(share: float) -> str:
    return f"Hebe, cache of {share:.0%}"


def _listed(batches: Sequence[int]) -> str:
    return ", ".join(f"{batch:,}" for batch in batches)


def _on(cores: int) -> str:
    return "one core" if cores == 1 else f"{cores} cores"


def _median_ms(timed: Timed) -> float:
    return 1e3 * float(np.median(timed.seconds))


def _throughput(batch: int, timed: Timed) -> float:
    return batch / float(np.median(timed.seconds))


def _latencies(measured: Measured, every: Sequence[Contestant], cores: int) -> str:
    batches = list(measured)
    series = {each.name: (batches, [_median_ms(measured[batch][each]) for batch in batches]) for each in every}
    return lines(series, "batch size", "latency (ms)", f"Latency, {_on(cores)}", marked=True, logarithmic=True)


def _throughputs(measured: Measured, every: Sequence[Contestant], cores: int) -> str:
    batches = list(measured)
    series = {each.name: (batches, [_throughput(batch, measured[batch][each]) for batch in batches]) for each in every}
    return lines(series, "batch size", "samples/s", f"Throughput, {_on(cores)}", marked=True)


def _table(measured: Measured, own: Sequence[Contestant], cores: int) -> Table:
    pytorch, *ours = own
    rows: list[list[Cell]] = []
    for batch, found in measured.items():
        latencies = [f"{_median_ms(found[each]):.2f}" for each in own]
        rows.append([batch, *latencies, *(f"{_speedup(found, pytorch, each):.2f}" for each in ours)])
    return Table(
        f"Latency on {_on(cores)}, ms",
        ["batch", *map(_short, own), *(f"speedup: {_short(each)}" for each in ours)],
        rows,
        "Medians. Speedup: PyTorch's latency over Hebe's. On several cores PyTorch runs as many threads, and Hebe "
        "splits a query evenly among a worker on each.",
    )


def _paper_table(measured: Measured, every: Sequence[Contestant]) -> Table:
    pytorch, cached = every[0], every[2]
    rows: list[list[Cell]] = []
    for batch in sorted({*measured, *PAPER_THROUGHPUT, PAPER_PYTORCH_BATCH}):
        found = measured.get(batch)
        rows.append(
            [
                batch,
                f"{_throughput(batch, found[cached]):,.0f}" if found else None,
                f"{PAPER_THROUGHPUT[batch]:,.0f}" if batch in PAPER_THROUGHPUT else None,
                f"{_throughput(batch, found[pytorch]):,.0f}" if found else None,
                f"at most {PAPER_PYTORCH:,.0f}" if batch == PAPER_PYTORCH_BATCH else None,
                f"{_speedup(found, pytorch, cached):.2f}" if found else None,
                f"{PAPER_SPEEDUP[batch]:g}" if batch in PAPER_SPEEDUP else None,
            ]
        )
    return Table(
        "Samples/s beside the paper's (Fig. 6a)",
        ["batch", "Hebe, cache 50%", "HPS", "PyTorch here", "PyTorch there", "speedup here", "speedup there"],
        rows,
        f"HPS' numbers as its text states them; its conclusion gives the speedup as {PAPER_SPEEDUPS}. The other points "
        "stand in its figure only. Ours on all cores.",
    )


def _sparse_table(measured: Measured, contestants: Sequence[Contestant]) -> Table:
    single = [each for each in contestants if each.cores == 1]
    cached = single[2:]
    rows: list[list[Cell]] = [
        [
            batch,
            *(f"{1e3 * np.median(found[each].sparse_s):.2f}" for each in single),
            *(f"{found[each].defaulted:.2%}" for each in cached),
        ]
        for batch, found in measured.items()
    ]
    return Table(
        "Of it the lookups, on one core, ms",
        ["batch", *map(_short, single), *(f"defaulted: {_short(each)}" for each in cached)],
        rows,
        "Medians; PyTorch's: an embedding_bag a table, and bringing them side by side. Defaulted: keys that got a "
        "default vector, since the hit rate was above the threshold.",
    )


def _short(each: Contestant) -> str:
    return each.name.removeprefix("Hebe, ")


def _lookup_ms(measured: Measured, each: Contestant) -> float:
    return 1e3 * float(np.median(measured[min(measured)][each].sparse_s))


def _speedup(found: Mapping[Contestant, Timed], pytorch: Contestant, ours: Contestant) -> float:
    return _median_ms(found[pytorch]) / _median_ms(found[ours])


def _figures(measured: Measured, every: Sequence[Contestant], contestants: Sequence[Contestant]) -> list[Figure]:
    figures = []
    for batch, found in measured.items():
        for prefix, own in (("speedup", every), ("speedup_one_core", [c for c in contestants if c.cores == 1])):
            pytorch, resident, cached = own[:3]
            cores = _on(cached.cores)
            for name, ours in ((prefix, cached), (f"{prefix}_resident", resident)):
                value, low, high = ratio_of_medians(found[pytorch].seconds, found[ours].seconds)
                paper = PAPER_SPEEDUP.get(batch) if name == "speedup" else None
                figures.append(
                    Figure(
                        f"hps.latency.{name}.batch_{batch}", value, "ratio", low, high, len(found[ours].seconds),
                        paper=paper, note=f"PyTorch's latency over that of {ours.name}, {cores}",
                    )
                )  # fmt: skip
    unique = {figure.name: figure for figure in figures}
    pytorch, _, cached = every[:3]
    best = {
        each: max(_throughput(batch, found[each]) for batch, found in measured.items()) for each in (pytorch, cached)
    }
    speedups = [_speedup(found, pytorch, cached) for found in measured.values()]
    largest = max(measured)
    return [
        *unique.values(),
        Figure("hps.latency.least_speedup", min(speedups), "ratio", min(speedups), max(speedups), len(speedups),
               paper=PAPER_SPEEDUPS, note="least and most of all batch sizes, cache of 50%, all cores"),
        Figure("hps.latency.best_throughput", best[cached], "samples/s", paper=PAPER_THROUGHPUT[131_072],
               note="cache of 50%, all cores, best batch size"),
        Figure("hps.latency.best_throughput_pytorch", best[pytorch], "samples/s", paper=PAPER_PYTORCH,
               note="all cores, best batch size"),
        Figure("hps.latency.defaulted", measured[largest][cached].defaulted, "share of keys",
               note="cache of 50%, largest batch"),
    ]  # fmt: skip


def _explanation(measured: Measured, every: Sequence[Contestant]) -> str:
    largest = max(measured)
    found = measured[largest]
    pytorch, resident, cached = every[:3]
    share = float(np.median(found[pytorch].sparse_s) / np.median(found[pytorch].seconds))
    return (
        f"The paper's {PAPER_SPEEDUPS} times are those of a GPU: DenseNet and cache run on it, and more of it is busy "
        "the larger the batch. Here both sides have the same cores. The DenseNet, which is the same but for being "
        f"scripted, is {1 - share:.0%} of PyTorch's time at {largest:,} items: lookups that cost nothing would make it "
        f"{1 / (1 - share):.2f} times as fast. With all rows in memory Hebe is "
        f"{_speedup(found, pytorch, resident):.2f} times as fast, with the cache of 50% "
        f"{_speedup(found, pytorch, cached):.2f} times: a cache in the same memory as the tables adds the search for "
        "distinct keys and the probing of its slabs, and saves nothing. Most of that is by table, not by key, so that "
        f"small batches feel it the most: at {min(measured):,} items the lookup takes "
        f"{_lookup_ms(measured, cached):.2f} ms through the tiers, {_lookup_ms(measured, resident):.2f} without. What "
        "the cache buys is memory, and models that do not fit into it; one in an accelerator's memory is not measured "
        "here."
    )


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

Measured = Mapping[int, Mapping[Contestant, Timed]]


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
