"""Embedding tables while they are trained: gathered per batch, updated only in the rows that the batch touched.

Row-wise Adagrad keeps one accumulator a row, as DLRM's trainers do (Naumov et al. 2019, arXiv:1906.00091;
Duchi et al., "Adaptive subgradient methods", JMLR 12, 2011): G is a row's gradient summed over the batch,

    accumulator += mean(G * G);   row -= learning_rate * G / sqrt(accumulator)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hebe.models.architectures.ranking_model import initial_rows
from hebe.spec import ModelSpec

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class _Group:
    """All tables of one dim in one tensor, so that a step is a few calls rather than a few per table."""

    weight: Tensor  # float32 [rows of all its tables, dim]
    accumulator: Tensor  # float32 [rows of all its tables]
    features: Tensor  # int64: which columns of the key matrix it answers
    first_rows: Tensor  # int64: where the table of each of those features starts
    columns: Tensor  # int64: where their vectors stand in the SparseNet's output


class TrainedTables:
    """The tables of a model whose features have one lookup each, drawn from `seed` as `initial_rows` does."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self._spec = spec
        self._rows: dict[str, Tensor] = {}
        self._groups = [self._make_group(dim, seed) for dim in sorted({table.dim for table in spec.tables})]

    def gather(self, keys: Tensor) -> Tensor:
        """SparseNet output float32 `[n, sparse_width]` of a key matrix int64 `[n, features]`."""
        sparse = torch.empty(len(keys), self._spec.sparse_width)
        for group in self._groups:
            rows = keys[:, group.features] + group.first_rows
            sparse[:, group.columns] = group.weight[rows].flatten(1)
        return sparse

    def step(self, keys: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Update the rows that `keys` int64 `[n, features]` touch by `gradient` float32 `[n, sparse_width]`."""
        for group in self._groups:
            rows, position = torch.unique((keys[:, group.features] + group.first_rows).flatten(), return_inverse=True)
            dim = group.weight.shape[1]
            summed = torch.zeros(len(rows), dim)
            summed.index_add_(0, position, gradient[:, group.columns].reshape(-1, dim))
            accumulated = group.accumulator[rows] + summed.square().mean(1)
            group.accumulator[rows] = accumulated
            summed *= (-learning_rate / (accumulated.sqrt() + _EPSILON))[:, None]
            group.weight.index_add_(0, rows, summed)

    def rows(self, table: str) -> npt.NDArray[np.float32]:
        """The rows of one table as they stand now, float32 `[rows, dim]`; a view. Raises KeyError."""
        return self._rows[table].numpy()

    def _make_group(self, dim: int, seed: int) -> _Group:
        tables = [table for table in self._spec.tables if table.dim == dim]
        weight = torch.empty(sum(table.rows for table in tables), dim)
        first_rows, row = {}, 0
        for table in tables:
            first_rows[table.name] = row
            self._rows[table.name] = weight[row : row + table.rows]
            for chunk in initial_rows(self._spec, table.name, seed):
                weight[row : row + len(chunk)] = torch.from_numpy(chunk)
                row += len(chunk)
        mine = [(feature, slot) for feature, slot in enumerate(self._spec.slots) if slot.dim == dim]
        return _Group(
            weight,
            torch.zeros(len(weight)),
            torch.tensor([feature for feature, _ in mine]),
            torch.tensor([first_rows[slot.feature.table] for _, slot in mine]),
            torch.tensor([column for _, slot in mine for column in range(slot.column, slot.column + slot.width)]),
        )
