"""Fit a model to Criteo-format data in one streaming pass or more, and store it.

The held-out part is the file's tail: a click log is in order of time, and a model is asked about what comes after
what it has seen. One pass is the default because it is where such models do best: from the second on they memorise
rare values (Zhang et al., "Towards understanding the overfitting phenomenon of deep click-through rate prediction
models", CIKM 2022).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.dense_net import DenseNet
from hebe.models.repository.memory_estimate import check_memory, training_bytes
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.auc import roc_auc
from hebe.models.training.criteo import CriteoFile, CriteoFormatError
from hebe.models.training.criteo_features import HASH_NAME, CriteoTransform
from hebe.models.training.trained_tables import TrainedTables
from hebe.spec import ModelSpec, SpecError

TrainingProgress = Callable[[int, int, float], None]
"""Called with (rows done, rows in all over all epochs, mean loss of this epoch so far)."""

HELD_OUT_SHARE = 0.2
BATCH_SIZE = 64
LEARNING_RATE = 0.003
TABLE_LEARNING_RATE = 0.02

MOST_BATCH_SIZE = 16_384
"""Rows are shuffled within so many at a time, of which steps are made."""
_SCORE_ROWS = 4096


class TrainingError(RuntimeError):
    """Training that cannot go on; says why and what to do."""


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What was trained and how good it is.

    `rows` were trained on (in each epoch) and `held_out_rows` scored; `bad_lines` were passed over. `loss` is the
    mean binary cross-entropy in nats of the last epoch, `log_loss` and `auc` those of the held-out rows (`auc` NaN
    where these have labels of one kind only). `seconds` is the whole time, storing included.
    """

    model: str
    version: int
    path: Path
    rows: int
    held_out_rows: int
    bad_lines: int
    epochs: int
    loss: float
    log_loss: float
    auc: float
    seconds: float


def held_out_start(total_rows: int) -> int:
    """The first held-out row (as `CriteoFile.count_rows` counts) of a file: the last 20% are held out."""
    return total_rows - int(total_rows * HELD_OUT_SHARE)


def needed_bytes(spec: ModelSpec, dense_net: DenseNet, batch_size: int = BATCH_SIZE, held_out_rows: int = 0) -> int:
    """The memory that `train` takes beside the process."""
    return training_bytes(spec, dense_net, batch_size, _SCORE_ROWS, held_out_rows)


def trainable(spec: ModelSpec) -> CriteoTransform:
    """How Criteo rows become inputs of `spec`. Raises `SpecError` if it has others, or several outputs."""
    transform = CriteoTransform.for_model(spec)
    if spec.outputs != 1:
        raise SpecError(f"model {spec.name}: outputs is {spec.outputs}: Criteo data has one label")
    return transform


def train(
    spec: ModelSpec,
    data: str | Path,
    repository: ModelRepository,
    *,
    epochs: int = 1,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = LEARNING_RATE,
    table_learning_rate: float = TABLE_LEARNING_RATE,
    seed: int = 0,
    skip_bad_lines: bool = False,
    most_rows: int | None = None,
    progress: TrainingProgress | None = None,
) -> TrainingReport:
    """Train `spec` on the head of the file `data`, score the held-out tail, and store a new version.

    Adam on the DenseNet, row-wise Adagrad on the tables, rows shuffled within 16,384 at a time. With `most_rows`, the
    file counts as if it ended after so many. The same file and arguments give the same model. Nothing is stored
    before the end, so an interruption leaves nothing behind.
    Raises `SpecError` (the model's inputs are not of Criteo's shape), `CriteoFormatError`, `TrainingError` (too few
    rows, loss not finite), `RepositoryError` (cannot be stored; disk and directory are looked at first) and
    `NotEnoughMemory` (before anything large is allocated).
    """
    started_s = time.perf_counter()
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("most_rows", most_rows)):
        if value is not None and value < 1:
            raise TrainingError(f"{name} is {value}: must be at least 1")
    if batch_size > MOST_BATCH_SIZE:
        raise TrainingError(
            f"batch_size is {batch_size}: must be at most {MOST_BATCH_SIZE}, the rows that are shuffled at a time"
        )
    transform = trainable(spec)
    repository.check_writable(spec)
    file = CriteoFile(data, skip_bad_lines=skip_bad_lines)
    total_rows = file.count_rows(most_rows)
    split = held_out_start(total_rows)
    if split == total_rows:
        raise TrainingError(f"{file.path}: {total_rows} row(s): at least 5 are needed, one of each five is held out")
    dense_net = build_dense_net(spec, seed)
    check_memory(
        f"training {spec.name}",
        needed_bytes(spec, dense_net, batch_size, total_rows - split),
        "shrink its tables with --scale, take --size small where there is one, or free some",
    )
    with _one_thread():
        tables = TrainedTables(spec, seed)
        fit = _Fit(spec, tables, dense_net, transform, learning_rate, table_learning_rate)
        for epoch in range(epochs):
            for state in fit.epoch(file, split, batch_size, np.random.default_rng([seed, epoch])):
                if progress is not None:
                    progress(epoch * split + state.rows + state.bad_lines, epochs * split, state.loss)
            if not state.rows:
                raise CriteoFormatError(f"{file.path}: every one of the {split} lines to train on is malformed")
        labels, logits, bad_held_out = fit.score(file, split, total_rows)
    if not len(labels):
        raise CriteoFormatError(f"{file.path}: every one of the {total_rows - split} held-out lines is malformed")
    log_loss = float(np.mean(np.logaddexp(0.0, logits.astype(np.float64)) - labels * logits))
    auc = roc_auc(labels, torch.sigmoid(torch.from_numpy(logits)).numpy())
    quality = {"loss": state.loss, "log_loss": log_loss} | ({} if math.isnan(auc) else {"auc": auc})
    stored = repository.write(
        spec,
        {table.name: tables.rows(table.name) for table in spec.tables},
        dense_net.state_dict(),
        provenance={
            "made_by": "hebe model train",
            "data": file.path.name,
            "rows": state.rows,
            "held_out_rows": len(labels),
            "bad_lines": state.bad_lines + bad_held_out,
            "key_hash": HASH_NAME,
            "seed": seed,
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "table_learning_rate": table_learning_rate,
            **quality,
        },
    )
    return TrainingReport(
        model=stored.name,
        version=stored.version,
        path=stored.path,
        rows=state.rows,
        held_out_rows=len(labels),
        bad_lines=state.bad_lines + bad_held_out,
        epochs=epochs,
        loss=state.loss,
        log_loss=log_loss,
        auc=auc,
        seconds=time.perf_counter() - started_s,
    )


@dataclass(slots=True)
class _Epoch:
    """How far an epoch is."""

    rows: int = 0
    bad_lines: int = 0
    loss_sum: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over the rows so far."""
        return self.loss_sum / max(self.rows, 1)


class _Fit:
    """Tables and DenseNet with their optimisers."""

    def __init__(
        self,
        spec: ModelSpec,
        tables: TrainedTables,
        dense_net: DenseNet,
        transform: CriteoTransform,
        learning_rate: float,
        table_learning_rate: float,
    ) -> None:
        self._tables = tables
        self._dense_net = dense_net
        self._transform = transform
        self._table_learning_rate = table_learning_rate
        self._optimiser = torch.optim.Adam(dense_net.parameters(), learning_rate, fused=True)
        self._sequences = len(spec.sequences)

    def epoch(self, file: CriteoFile, stop: int, batch_size: int, random: np.random.Generator) -> Iterator[_Epoch]:
        """One pass over rows `[0, stop)`; yields how far it is, at least once."""
        state = _Epoch()
        for chunk in file.batches(MOST_BATCH_SIZE, 0, stop):
            order = random.permutation(len(chunk))
            labels = torch.from_numpy(chunk.labels[order])
            dense = torch.from_numpy(self._transform.dense(chunk.integers[order]))
            keys = torch.from_numpy(self._transform.keys(chunk.categories[order]))
            state.bad_lines += chunk.bad_lines
            for start in range(0, len(chunk), batch_size):
                batch = slice(start, start + batch_size)
                loss = self._step(dense[batch], keys[batch], labels[batch])
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"the loss is {loss} after {state.rows} rows: training diverged; lower the learning rates"
                    )
                state.rows += len(labels[batch])
                state.loss_sum += loss * len(labels[batch])
                yield state
        yield state

    def _step(self, dense: torch.Tensor, keys: torch.Tensor, labels: torch.Tensor) -> float:
        sparse = self._tables.gather(keys).requires_grad_()
        logits = self._dense_net.logits(dense, sparse, self._lengths(len(keys)))
        loss = functional.binary_cross_entropy_with_logits(logits[:, 0], labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        assert sparse.grad is not None
        self._tables.step(keys, sparse.grad, self._table_learning_rate)
        return loss.item()

    def score(
        self, file: CriteoFile, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
        """(labels float32 `[n]`, logits float32 `[n]`, bad lines) of rows `[start, stop)`."""
        labels, logits, bad_lines = [], [], 0
        with torch.inference_mode():
            for chunk in file.batches(_SCORE_ROWS, start, stop):
                keys = torch.from_numpy(self._transform.keys(chunk.categories))
                dense = torch.from_numpy(self._transform.dense(chunk.integers))
                scored = self._dense_net.logits(dense, self._tables.gather(keys), self._lengths(len(keys)))
                labels.append(chunk.labels)
                logits.append(scored[:, 0].numpy())
                bad_lines += chunk.bad_lines
        return np.concatenate(labels), np.concatenate(logits), bad_lines

    def _lengths(self, items: int) -> torch.Tensor:
        return torch.ones(items, self._sequences, dtype=torch.int64)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small layers train fastest on one thread, and sums then have one order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
