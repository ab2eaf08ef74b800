"""Trains a model on a click log and serves its held-out tail through the tiers. For `accuracy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.config.hierarchy_config import CacheConfig, HierarchyConfig, VolatileConfig, VolatileType
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.criteo import CriteoFile, CriteoFormatError
from hebe.models.training.criteo_features import CriteoTransform
from hebe.models.training.criteo_sample import generate_criteo
from hebe.models.training.training import TrainingError, held_out_start, train
from hebe.query import Batch, SubQuery
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.studies.hps.accuracy import Case, Default, Log, Scored, batch_size
from hebe_lab.study import StudyError

MODEL = "criteo-dlrm"

_READ_ROWS = 4096
_WARM_UP_BATCH = 1024
_SAME_SCORE = 1e-5
_INSERTION_QUEUE = 4096


@dataclass(frozen=True, slots=True)
class _Rows:
    """Labels float32 `[n]`, keys int64 `[n, 26]`, dense float32 `[n, 13]`."""

    labels: npt.NDArray[np.float32]
    keys: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)


def score_cases(
    data: Path | None, most_rows: int, cases: Sequence[Case], directory: Path, progress: Progress
) -> tuple[Log, Scored, list[Scored]]:
    """Train on the head of `data` (None: on made-up rows), score its tail with all rows in memory, and as each case
    has it.

    Raises `StudyError` for a file that cannot be trained on, RuntimeError where a score of an item that got all its
    rows is not the one that it has with all rows in memory.
    """
    repository = ModelRepository(directory / "models")
    path = data or directory / "made-up.tsv"
    if data is None:
        generate_criteo(path, most_rows)
    task = progress.add_task(f"training {MODEL}")
    try:
        trained = train(
            entry(MODEL),
            path,
            repository,
            skip_bad_lines=True,
            most_rows=most_rows,
            progress=lambda done, total, _: progress.update(task, completed=done, total=total),
        )
        head, tail = _read(path, most_rows)
    except (CriteoFormatError, TrainingError) as fault:
        raise StudyError(str(fault)) from None
    batch = batch_size(len(tail))
    distinct = sum(np.unique(tail.keys[:, column]).size for column in range(tail.keys.shape[1]))
    log = Log(None if data is None else data.name, trained.rows, tail.labels, batch, distinct)
    means = {table.name: float(repository.open(MODEL).table(table.name).mean()) for table in entry(MODEL).tables}
    task = progress.add_task("serving the held-out rows", total=len(cases) + 1)
    exact, _ = _serve(repository, None, head, tail, batch)
    progress.advance(task)
    scored = []
    for case in cases:
        config = _config(case, means)
        warm = head if case.seen == 1.0 else _last(head, round(case.seen * len(head)))
        answer, whole = _serve(repository, config, warm, tail, len(tail) if case.at_once else batch)
        if not np.allclose(answer.scores[whole], exact.scores[whole], atol=_SAME_SCORE, rtol=_SAME_SCORE):
            raise RuntimeError(f"{case}: items that got all their rows have other scores")
        scored.append(answer)
        progress.advance(task)
    return log, exact, scored


def _read(path: Path, most_rows: int) -> tuple[_Rows, _Rows]:
    """The rows that were trained on, and the held-out ones."""
    file = CriteoFile(path, skip_bad_lines=True)
    total = file.count_rows(most_rows)
    start = held_out_start(total)
    return _rows(file, 0, start), _rows(file, start, total)


def _rows(file: CriteoFile, start: int, stop: int) -> _Rows:
    transform = CriteoTransform.for_model(entry(MODEL))
    labels, keys, dense = [], [], []
    for rows in file.batches(_READ_ROWS, start, stop):
        labels.append(rows.labels)
        keys.append(transform.keys(rows.categories))
        dense.append(transform.dense(rows.integers))
    return _Rows(np.concatenate(labels), np.concatenate(keys), np.concatenate(dense))


def _last(rows: _Rows, count: int) -> _Rows:
    first = len(rows) - count
    return _Rows(rows.labels[first:], rows.keys[first:], rows.dense[first:])


def _config(case: Case, means: Mapping[str, float]) -> HierarchyConfig:
    """A cache over a hash map that holds all rows, empty at first. One thread inserts, so that runs can be repeated."""
    cache = CacheConfig(
        cache_fraction=case.cache,
        hit_rate_threshold=case.threshold,
        default_value_for_each_table=_default_values(case.default, means),
        thread_pool_size=1,
        insertion_queue=_INSERTION_QUEUE,
        init_ec=False,
    )
    return HierarchyConfig(cache, VolatileConfig(VolatileType.HASH_MAP))


def _default_values(default: Default, means: Mapping[str, float]) -> dict[str, float]:
    return {table: default.value + default.of_mean * mean for table, mean in means.items()}


def _serve(
    repository: ModelRepository, config: HierarchyConfig | None, warm: _Rows, tail: _Rows, batch: int
) -> tuple[Scored, npt.NDArray[np.bool_]]:
    """The tail's scores in batches of `batch`, after the rows of `warm`; and which items got all their rows.

    What the cache lacks of a batch is in it before the next one. Without `config` all rows are in memory.
    """
    model = LoadedModel.load(repository.root, MODEL, options=LoadOptions(hierarchy=config))
    try:
        tiers = model.hierarchy.tiers
        if tiers is not None and len(warm):
            _warm_up(model, warm.keys)
        names = [feature.name for feature in model.spec.features]
        executor = model.new_executor(min(batch, len(tail)))
        scores, shares, asked, whole = [], [], [], []
        for first in range(0, len(tail), batch):
            part = slice(first, first + batch)
            before = None if tiers is None else tiers.state.counts
            columns = {name: np.ascontiguousarray(tail.keys[part, [n]]) for n, name in enumerate(names)}
            query = model.query(columns, tail.dense[part])
            outcome = executor.run(Batch(0, (SubQuery(query, 0, query.items),), query.items))
            scores.append(outcome.scores[:, 0].copy())
            report = outcome.lookup
            whole.append(np.ones(query.items, np.bool_) if report.by_item is None else report.by_item[:, 1] == 0)
            hits, misses = report.keys.total, 0
            if tiers is not None and before is not None:
                after = tiers.state.counts
                hits, misses = after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses
                tiers.background.drain()
            shares.append((hits / (hits + misses), 1 - report.keys.defaulted / report.keys.total))
            asked.append((report.keys.total, hits + misses))
        by_batch = np.array(shares)
        return Scored(np.concatenate(scores), by_batch[:, 0], by_batch[:, 1], np.array(asked)), np.concatenate(whole)
    finally:
        model.close()


def _warm_up(model: LoadedModel, keys: npt.NDArray[np.int64]) -> None:
    """Look `keys` `[n, 26]` up, each batch's rows in the cache before the next one."""
    hierarchy, tiers = model.hierarchy, model.hierarchy.tiers
    assert tiers is not None
    scratch = hierarchy.new_scratch(_WARM_UP_BATCH)
    out = np.empty((_WARM_UP_BATCH, model.spec.sparse_width), np.float32)
    for first in range(0, len(keys), _WARM_UP_BATCH):
        hierarchy.lookup(np.ascontiguousarray(keys[first : first + _WARM_UP_BATCH]), out, scratch)
        tiers.background.drain()
