"""A whole ranking model in plain PyTorch: one embedding module per table and the DenseNet.

The reference that the serving path is compared with. It holds all tables in memory; `initial_rows`, where every new
model's rows come from, draws a table chunk by chunk, for models that are larger.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from hebe.models.architectures.build import build_dense_net
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SpecError

FeatureInput = Tensor | tuple[Tensor, Tensor]
"""Keys int64 `[n, lookups]`, or jagged: (values int64 `[sum(lengths)]`, lengths int64 `[n]`)."""

CHUNK_BYTES = 64 << 20


class RankingModel(nn.Module):
    """SparseNet and DenseNet of `spec` as ordinary modules; rows and weights are drawn from `seed`.

    `tables` holds one `nn.EmbeddingBag` per table, in the order of `spec.tables`; features that share a table share
    the module.
    """

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(table.rows, table.dim, _weight=_filled(spec, table, seed)) for table in spec.tables
        )
        self._position = {table.name: i for i, table in enumerate(spec.tables)}
        self.dense_net = build_dense_net(spec, seed)

    def table_weight(self, name: str) -> Tensor:
        """The rows of table `name`, float32 `[rows, dim]`."""
        weight = self.tables[self._position[name]].weight
        assert isinstance(weight, Tensor)
        return weight

    def sparse(self, features: Mapping[str, FeatureInput]) -> tuple[Tensor, Tensor]:
        """Look up and pool: (`sparse` float32 `[n, sparse_width]`, `lengths` int64 `[n, len(spec.sequences)]`).

        Raises `ValueError` naming the feature for missing or unknown features and for shapes that do not fit.
        Keys must lie in `[0, rows)`; torch raises IndexError otherwise.
        """
        unknown = set(features) - {feature.name for feature in self.spec.features}
        if unknown:
            raise ValueError(f"unknown feature(s) {', '.join(sorted(unknown))}")
        columns, lengths, items = [], [], None
        for feature in self.spec.features:
            if feature.name not in features:
                raise ValueError(f"feature {feature.name} is missing")
            keys = features[feature.name]
            count = _check_shape(feature, keys)
            if items is not None and count != items:
                raise ValueError(f"feature {feature.name} has {count} items, others have {items}")
            items = count
            weight = self.table_weight(feature.table)
            if feature.pooling.reduces:
                columns.append(self._pooled(weight, keys, feature.pooling))
            else:
                rows, valid = self._unreduced(weight, keys, feature.lookups)
                columns.append(rows)
                lengths.append(valid)
        return torch.cat(columns, 1), (
            torch.stack(lengths, 1) if lengths else torch.zeros((items or 0, 0), dtype=torch.int64)
        )

    def logits(self, dense: Tensor | None, features: Mapping[str, FeatureInput]) -> Tensor:
        """Scores before the sigmoid, float32 `[n, outputs]`; arguments and errors as for `forward`."""
        sparse, lengths = self.sparse(features)
        if dense is None:
            dense = sparse.new_zeros((sparse.shape[0], 0))
        if dense.shape != (sparse.shape[0], self.spec.dense_dim):
            raise ValueError(f"dense has shape {list(dense.shape)}: must be [{sparse.shape[0]}, {self.spec.dense_dim}]")
        return self.dense_net.logits(dense, sparse, lengths)

    def forward(self, dense: Tensor | None, features: Mapping[str, FeatureInput]) -> Tensor:
        """Probabilities in [0, 1], float32 `[n, outputs]`.

        `dense` float32 `[n, dense_dim]`, or None where the model has none; `features` as for `sparse`. Raises
        ValueError for inputs of other shapes.
        """
        return torch.sigmoid(self.logits(dense, features))

    def _pooled(self, weight: Tensor, keys: FeatureInput, pooling: Pooling) -> Tensor:
        offsets = None
        if isinstance(keys, tuple):
            keys, offsets = keys[0], torch.cumsum(keys[1], 0) - keys[1]
        return functional.embedding_bag(keys, weight, offsets, mode=str(pooling))

    def _unreduced(self, weight: Tensor, keys: FeatureInput, lookups: int) -> tuple[Tensor, Tensor]:
        if not isinstance(keys, tuple):
            rows = functional.embedding(keys, weight)
            return rows.flatten(1), keys.new_full((len(keys),), lookups)
        values, lengths = keys
        item = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        position = torch.arange(len(values), device=lengths.device) - (torch.cumsum(lengths, 0) - lengths)[item]
        rows = functional.embedding(values, weight)
        padded = rows.new_zeros((len(lengths), lookups, weight.shape[1]))
        return padded.index_put((item, position), rows).flatten(1), lengths


def initial_rows(
    spec: ModelSpec, table_name: str, seed: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[npt.NDArray[np.float32]]:
    """The rows a new model's table starts with, float32 `[at most chunk, dim]` at a time, in row order.

    Uniform in [-b, b), where b is the spec's setting `row_bound` or else 1/sqrt(dim), which keeps pooled vectors
    and their dot products of order one whatever the number of rows. (DLRM's reference takes 1/sqrt(rows); with
    millions of rows an untrained model's scores would then hardly depend on its tables.) The rows depend on the
    seed, the table's name and its dim alone, neither on the other tables nor on the chunk size.
    Raises KeyError for an unknown table, `SpecError` for a bad `row_bound`, `ValueError` for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}: must not be negative")
    table = spec.table(table_name)
    bound = spec.settings.get("row_bound", 1.0 / math.sqrt(table.dim))
    if isinstance(bound, bool | str) or not (math.isfinite(bound) and bound > 0):
        raise SpecError(f"model {spec.name}: settings.row_bound is {bound!r}: must be a positive number")
    words = np.frombuffer(hashlib.sha256(table_name.encode()).digest(), dtype="<u4")
    random = np.random.Generator(np.random.SFC64([seed, *words.tolist()]))
    chunk_rows = max(1, chunk_bytes // (table.dim * 4))

    def chunks() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, table.rows, chunk_rows):
            rows = random.random((min(chunk_rows, table.rows - start), table.dim), dtype=np.float32)
            rows *= np.float32(2 * bound)
            rows -= np.float32(bound)
            yield rows

    return chunks()


def _filled(spec: ModelSpec, table: EmbeddingTableSpec, seed: int) -> Tensor:
    weight, start = torch.empty(table.rows, table.dim), 0
    for chunk in initial_rows(spec, table.name, seed):
        weight[start : start + len(chunk)] = torch.from_numpy(chunk)
        start += len(chunk)
    return weight


def _check_shape(feature: FeatureSpec, keys: FeatureInput) -> int:
    """The number of items; raises ValueError where keys do not have the feature's shape."""
    if not isinstance(keys, tuple):
        if keys.dim() != 2 or keys.shape[1] != feature.lookups:
            raise ValueError(f"feature {feature.name} has shape {list(keys.shape)}: must be [items, {feature.lookups}]")
        return keys.shape[0]
    values, lengths = keys
    if values.dim() != 1 or lengths.dim() != 1:
        raise ValueError(f"feature {feature.name}: values and lengths must be of one dimension each")
    if int(lengths.sum()) != values.numel():
        raise ValueError(
            f"feature {feature.name}: lengths sum to {int(lengths.sum())} but there are {values.numel()} values"
        )
    if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= feature.lookups:
        raise ValueError(f"feature {feature.name}: lengths must lie between 0 and {feature.lookups}")
    return lengths.numel()
