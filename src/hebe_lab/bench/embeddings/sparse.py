"""The sparse path against torch and against the machine: one thread on one core, uniform random keys.

Ours is what a worker runs for each batch: the keys of each feature into the key matrix, and one lookup over all tables
on huge pages. Torch's is what a plain model runs: an `embedding_bag` a table, on tables as torch allocates them. The
gather limit starts from a key matrix, as the lookup alone does. Competitors take turns in random order within one
process, each time with keys that nobody has looked up before.

The gather limit is how fast this machine gathers random rows at best, and shares no code with the fused lookup. Its
candidates are a C++ loop that does nothing but add rows of 64 floats in vector registers, with and without prefetching,
and torch's `embedding_bag` on the same memory; the fastest is the limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress

from hebe.embeddings.batches.key_matrix import place_keys
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.machine.memory import available_bytes
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

DIM = 64


DESCRIPTION = "The fused lookup against torch's embedding_bag and against the machine's random-gather limit."
ITEMS = 64
_BLOCK_ROWS = 1 << 16

Keys = Mapping[str, npt.NDArray[np.int64]]
Competitor = Callable[[Keys], object]


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: repeats, batches in each, and table sizes."""

    runs: int
    batches: int
    pooled_rows: int
    onehot_rows: int


_QUICK = _Effort(runs=41, batches=10, pooled_rows=2 << 20, onehot_rows=20_000)
_FULL = _Effort(runs=61, batches=20, pooled_rows=16 << 20, onehot_rows=100_000)


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `sparse.*`. A table that this machine cannot hold twice is halved until it can, and the note says so."""
    effort = _QUICK if quick else _FULL
    with one_core():
        return _pooled(effort, progress) + _onehot(effort, progress)


def _pooled(effort: _Effort, progress: Progress) -> list[Figure]:
    """One table of 80 lookups: against torch on its own copy, and against the gather limit on ours."""
    rows = effort.pooled_rows
    while 2 * rows * DIM * 4 > 0.9 * (available_bytes() or 0) and rows > 1 << 16:
        rows //= 2
    spec = _spec(tables=1, rows=rows, lookups=80)
    with _hierarchy(spec, progress) as (hierarchy, ours):
        table = hierarchy.rows("t0")
        limits = {
            name: lambda keys, gather=gather: gather(keys["f0"])
            for name, gather in gather_candidates(table, ITEMS, 80).items()
        }
        weights = [_torch_copy(table)]
        competitors = {
            "ours": ours,
            "lookup": lambda keys: ours(keys, keys["f0"]),
            "torch": lambda keys: _torch_lookup(keys, weights),
            **limits,
        }
        times = _take_turns(spec, competitors, effort, progress, "80 lookups, pooled")
    gathered = ITEMS * 80 * DIM * 4
    limit = min(limits, key=lambda name: float(np.median(times[name])))
    size = f"one table of {spec.table_bytes / 2**30:.3g} GiB, {ITEMS} items of 80 lookups, dim {DIM}"
    if rows < effort.pooled_rows:
        size += f" ({effort.pooled_rows * DIM * 4 / 2**30:.3g} GiB do not fit twice)"
    return [
        _ratio("sparse.over_torch.pooled80", times["torch"], times["ours"], ">= 1.25", f"{size}; {_huge_pages()}"),
        _ratio("sparse.share_of_gather_limit", times[limit], times["lookup"], ">= 0.9", f"{size}; limit: {limit}"),
        _bandwidth("sparse.gather_bandwidth.pooled80", gathered / times["lookup"] / 1e9, size),
        _bandwidth("sparse.gather_limit", gathered / times[limit] / 1e9, f"{size}; {limit}"),
    ]


def _onehot(effort: _Effort, progress: Progress) -> list[Figure]:
    """26 tables of one lookup, against 26 torch calls and a concatenation."""
    spec = _spec(tables=26, rows=effort.onehot_rows, lookups=1)
    with _hierarchy(spec, progress) as (hierarchy, ours):
        weights = [_torch_copy(hierarchy.rows(table.name)) for table in spec.tables]
        competitors = {"ours": ours, "torch": lambda keys: _torch_lookup(keys, weights)}
        times = _take_turns(spec, competitors, effort, progress, "26 tables, one lookup each")
    note = f"26 tables of {effort.onehot_rows:,} rows, {ITEMS} items, dim {DIM}; torch: 26 calls and cat"
    return [_ratio("sparse.over_torch.onehot26", times["torch"], times["ours"], ">= 2.0", note)]


def _take_turns(
    spec: ModelSpec, competitors: Mapping[str, Competitor], effort: _Effort, progress: Progress, what: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds a batch of each competitor, `effort.runs` of each, interleaved. Checks first that they agree.

    Seconds of this thread on its core, so that other work on the machine counts only by the memory that it uses.
    """
    rng = np.random.default_rng(2)
    rows = spec.tables[0].rows

    def batch() -> Keys:
        return {f.name: rng.integers(0, rows, (ITEMS, f.lookups)) for f in spec.features}

    keys = batch()
    answers = {name: torch.as_tensor(competitor(keys)).clone() for name, competitor in competitors.items()}
    for name, answer in answers.items():
        if not torch.allclose(answer, answers["ours"], rtol=1e-4, atol=1e-4):
            raise RuntimeError(f"{what}: the lookup and {name} disagree")
    task = progress.add_task(what, total=effort.runs)
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(effort.runs):
        for name in rng.permutation(list(competitors)):
            competitor = competitors[name]
            batches = [batch() for _ in range(effort.batches)]
            started_s = time.thread_time()
            for keys in batches:
                competitor(keys)
            times[name].append((time.thread_time() - started_s) / effort.batches)
        progress.advance(task)
    return {name: np.array(taken) for name, taken in times.items()}


@contextlib.contextmanager
def _hierarchy(spec: ModelSpec, progress: Progress) -> Iterator[tuple[EmbeddingHierarchy, Callable[..., object]]]:
    """All tables of `spec` in table memory, and the lookup of a worker over them (given a key matrix: only that)."""
    block = np.random.default_rng(1).standard_normal((_BLOCK_ROWS, DIM), np.float32)
    task = progress.add_task(f"loading {spec.table_bytes / 2**20:,.0f} MiB", total=spec.table_bytes)
    hierarchy = EmbeddingHierarchy.open(
        spec,
        {table.name: [block] * -(-table.rows // _BLOCK_ROWS) for table in spec.tables},
        progress=lambda done, _: progress.update(task, completed=done),
    )
    hierarchy.warm_up()
    keys = np.empty((ITEMS, spec.lookups_per_item), np.int64)
    out = np.zeros((ITEMS, spec.sparse_width), np.float32)
    scratch = hierarchy.new_scratch(ITEMS)

    def look_up(features: Keys, key_matrix: npt.NDArray[np.int64] | None = None) -> object:
        if key_matrix is None:
            hierarchy.lookup(keys, out, scratch, place_keys(keys, 0, features, 0, ITEMS, spec))
        else:
            hierarchy.lookup(key_matrix, out, scratch)
        return out

    try:
        yield hierarchy, look_up
    finally:
        hierarchy.close()


def _torch_lookup(keys: Keys, weights: list[torch.Tensor]) -> torch.Tensor:
    bag = torch.nn.functional.embedding_bag
    pooled = [bag(torch.from_numpy(k), weight, mode="sum") for k, weight in zip(keys.values(), weights, strict=True)]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def _torch_copy(table: npt.NDArray[np.float32]) -> torch.Tensor:
    weight = torch.empty(table.shape)
    weight.copy_(torch.from_numpy(table))
    return weight


def _spec(tables: int, rows: int, lookups: int) -> ModelSpec:
    return ModelSpec(
        "sparse",
        "dlrm",
        tuple(EmbeddingTableSpec(f"t{i}", rows, DIM) for i in range(tables)),
        tuple(FeatureSpec(f"f{i}", f"t{i}", lookups, Pooling.SUM) for i in range(tables)),
    )


def _ratio(name: str, theirs: npt.NDArray[np.float64], ours: npt.NDArray[np.float64], target: str, note: str) -> Figure:
    value, low, high = ratio_of_medians(theirs, ours)
    return Figure(name, value, "ratio", low, high, runs=len(ours), target=target, note=note)


def _bandwidth(name: str, samples: npt.NDArray[np.float64], note: str) -> Figure:
    value, low, high = median_and_spread(samples)
    return Figure(name, value, "GB/s", low, high, runs=len(samples), note=note)


def _huge_pages() -> str:
    """Whether torch's tables may be on huge pages too."""
    with contextlib.suppress(OSError), open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        if "[always]" in file.read():
            return "this machine gives huge pages to torch too"
    return "torch on 4 KiB pages"


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread on one core and torch on one thread."""
    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


Gather = Callable[[npt.NDArray[np.int64]], object]

_SOURCE = """
#include <cstdint>
#include <cstring>

typedef float lanes __attribute__((vector_size(64)));

extern "C" void gather_sum(const float* table, const int64_t* keys, int64_t items, int64_t lookups, int64_t ahead,
                           float* out) {
    const int64_t all = items * lookups;
    for (int64_t item = 0; item < items; ++item) {
        lanes sum[4] = {};
        for (int64_t at = item * lookups; at < (item + 1) * lookups; ++at) {
            if (ahead && at + ahead < all) {
                const float* soon = table + keys[at + ahead] * 64;
                for (int line = 0; line < 4; ++line) __builtin_prefetch(soon + 16 * line);
            }
            const float* row = table + keys[at] * 64;
            for (int part = 0; part < 4; ++part) {
                lanes values;
                std::memcpy(&values, row + 16 * part, sizeof values);
                sum[part] += values;
            }
        }
        std::memcpy(out + item * 64, sum, sizeof sum);
    }
}
"""


def gather_candidates(table: npt.NDArray[np.float32], items: int, lookups: int) -> Mapping[str, Gather]:
    """Ways to sum `lookups` random rows of `table`, float32 `[rows, 64]`, for each of `items`, by name.

    Each takes the keys, int64 `[items, lookups]`. Without a C++ compiler only torch's is left.
    """
    weight = torch.from_numpy(table)

    def torch_bag(keys: npt.NDArray[np.int64]) -> object:
        return torch.nn.functional.embedding_bag(torch.from_numpy(keys), weight, mode="sum")

    candidates: dict[str, Gather] = {"torch embedding_bag on the same memory": torch_bag}
    loop = _compile()
    if loop is not None:
        out = np.empty((items, DIM), np.float32)
        for ahead, name in ((0, "C++ loop"), (16, "C++ loop with prefetch")):

            def gather(keys: npt.NDArray[np.int64], ahead: int = ahead) -> object:
                loop(table.ctypes.data, keys.ctypes.data, items, lookups, ahead, out.ctypes.data)
                return out

            candidates[name] = gather
    return candidates


def _compile() -> Callable[..., object] | None:
    """The C++ loop, or None where it cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory) / "gather.cpp", Path(directory) / "gather.so"
        source.write_text(_SOURCE)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        loop = ctypes.CDLL(str(library)).gather_sum
    loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    loop.restype = None
    return loop
