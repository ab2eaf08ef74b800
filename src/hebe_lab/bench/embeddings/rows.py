"""Rows of fp16 and int8 against fp32: how much faster they are pooled, and what it costs a trained model.

One table of 80 lookups an item, much larger than the caches, is kept once in each format; lookups of uniform keys take
turns in random order on one core, each batch with keys that nobody has looked up before. The score error is the change
of the AUC on held-out rows, of a model trained here on made-up data of Criteo's form or on a file of that form.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.machine.memory import available_bytes
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.auc import roc_auc
from hebe.models.training.criteo import CriteoFile
from hebe.models.training.criteo_features import CriteoTransform
from hebe.models.training.criteo_sample import generate_criteo
from hebe.models.training.training import held_out_start, train
from hebe.report.figures import Figure, ratio_of_medians
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from hebe_lab.bench.embeddings.sparse import one_core

DIM = 64
ITEMS = 64
LOOKUPS = 80

_BLOCK_ROWS = 1 << 16
_MODEL = "criteo-dlrm"
_SCORED_ITEMS = 4096
_FASTER = {RowFormat.FP16: None, RowFormat.INT8: ">= 1.6"}
_AUC_ERROR = "< 0.001"

Lookup = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: repeats, batches in each, rows of the table, and rows of the click log."""

    runs: int
    batches: int
    table_rows: int
    log_rows: int


_QUICK = _Effort(runs=41, batches=10, table_rows=2 << 20, log_rows=20_000)
_FULL = _Effort(runs=101, batches=20, table_rows=12 << 20, log_rows=300_000)


def rows_figures(quick: bool, progress: Progress, data: Path | None = None) -> list[Figure]:
    """`rows.*`. `data`: a file of Criteo's form to train on, instead of made-up rows.

    A table that this machine cannot hold in all formats is halved until it can; the note says its size.
    """
    effort = _QUICK if quick else _FULL
    return _speed(effort, progress) + _score_error(effort, progress, data)


def _speed(effort: _Effort, progress: Progress) -> list[Figure]:
    rows = effort.table_rows
    row_bytes = sum(row_format.row_bytes(DIM) for row_format in RowFormat)
    while rows * row_bytes > 0.9 * (available_bytes() or 0) and rows > _BLOCK_ROWS:
        rows //= 2
    spec = ModelSpec(
        "rows",
        "dlrm",
        (EmbeddingTableSpec("t", rows, DIM),),
        (FeatureSpec("f", "t", LOOKUPS, Pooling.SUM),),
    )
    block = np.random.default_rng(1).standard_normal((_BLOCK_ROWS, DIM), np.float32)
    with contextlib.ExitStack() as opened, one_core():
        lookups = {}
        for row_format in progress.track(list(RowFormat), description="loading a table in each row format"):
            hierarchy = EmbeddingHierarchy.open(spec, {"t": [block] * -(-rows // _BLOCK_ROWS)}, row_format=row_format)
            opened.callback(hierarchy.close)
            hierarchy.warm_up()
            lookups[row_format] = _lookup(hierarchy)
        times = _take_turns(lookups, rows, effort, progress)
    size = f"{ITEMS} items of {LOOKUPS} lookups, dim {DIM}, {rows:,} rows: {spec.table_bytes / 2**30:.3g} GiB as fp32"
    figures = []
    for row_format, target in _FASTER.items():
        value, low, high = ratio_of_medians(times[RowFormat.FP32], times[row_format])
        name = f"rows.{row_format}_over_fp32"
        figures.append(Figure(name, value, "ratio", low, high, effort.runs, target, note=size))
    return figures


def _lookup(hierarchy: EmbeddingHierarchy) -> Lookup:
    out = np.empty((ITEMS, DIM), np.float32)
    scratch = hierarchy.new_scratch(ITEMS)

    def look_up(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        hierarchy.lookup(keys, out, scratch)
        return out

    return look_up


def _take_turns(
    lookups: dict[RowFormat, Lookup], rows: int, effort: _Effort, progress: Progress
) -> dict[RowFormat, npt.NDArray[np.float64]]:
    """Seconds a batch of each format, in this thread's own time. Checks first that they agree."""
    chance = np.random.default_rng(2)
    keys = chance.integers(0, rows, (ITEMS, LOOKUPS))
    exact = lookups[RowFormat.FP32](keys).copy()
    for row_format, look_up in lookups.items():
        # a sum of 80 standard normal numbers, each off by at most half of a 127th of the largest of 64
        if not np.allclose(look_up(keys), exact, atol=LOOKUPS**0.5 * 0.1):
            raise RuntimeError(f"lookups of {row_format} rows and of fp32 rows disagree")
    task = progress.add_task(f"{LOOKUPS} lookups of each row format", total=effort.runs)
    times: dict[RowFormat, list[float]] = {row_format: [] for row_format in lookups}
    formats = list(lookups)
    for _ in range(effort.runs):
        for place in chance.permutation(len(formats)):
            batches = [chance.integers(0, rows, (ITEMS, LOOKUPS)) for _ in range(effort.batches)]
            look_up = lookups[formats[place]]
            started_s = time.thread_time()
            for keys in batches:
                look_up(keys)
            times[formats[place]].append((time.thread_time() - started_s) / effort.batches)
        progress.advance(task)
    return {row_format: np.array(taken) for row_format, taken in times.items()}


def _score_error(effort: _Effort, progress: Progress, data: Path | None) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="hebe-rows-") as directory:
        repository, path = ModelRepository(Path(directory) / "models"), data or Path(directory) / "clicks.tsv"
        if data is None:
            generate_criteo(path, effort.log_rows)
        task = progress.add_task(f"training {_MODEL}")
        train(
            entry(_MODEL),
            path,
            repository,
            skip_bad_lines=True,
            most_rows=effort.log_rows,
            progress=lambda done, total, _: progress.update(task, completed=done, total=total),
        )
        scored = {}
        for row_format in progress.track(list(RowFormat), description="scoring the held-out rows"):
            scored[row_format] = _auc(repository, path, row_format, effort.log_rows)
    exact, items = scored[RowFormat.FP32]
    trained_on = "made-up rows" if data is None else f"rows of {data.name}"
    note = f"change of the AUC {exact:.4f} of {_MODEL} on {items:,} held-out {trained_on}"
    return [
        Figure(f"rows.{row_format}_auc_error", abs(scored[row_format][0] - exact), "AUC", target=_AUC_ERROR, note=note)
        for row_format in _FASTER
    ]


def _auc(repository: ModelRepository, path: Path, row_format: RowFormat, most_rows: int) -> tuple[float, int]:
    """The AUC of the model as served with rows of this format, and how many held-out rows it is of."""
    model = LoadedModel.load(repository.root, _MODEL, options=LoadOptions(row_format=row_format))
    try:
        transform = CriteoTransform.for_model(model.spec)
        file = CriteoFile(path, skip_bad_lines=True)
        total = file.count_rows(most_rows)
        labels, scores = [], []
        for rows in file.batches(_SCORED_ITEMS, held_out_start(total), total):
            if len(rows):
                keys = transform.keys(rows.categories)
                features = {name: keys[:, [column]] for column, name in enumerate(transform.names)}
                scores.append(model.predict(features, transform.dense(rows.integers))[:, 0])
                labels.append(rows.labels)
        return roc_auc(np.concatenate(labels), np.concatenate(scores)), sum(map(len, labels))
    finally:
        model.close()
