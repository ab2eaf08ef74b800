"""Tables under training against the plain model and a row-by-row Adagrad."""

import numpy as np
import pytest
import torch

from hebe.models.architectures.ranking_model import RankingModel
from hebe.models.training.trained_tables import TrainedTables
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    name="mixed",
    architecture="dlrm",
    tables=(EmbeddingTableSpec("a", 7, 4), EmbeddingTableSpec("b", 5, 2), EmbeddingTableSpec("c", 9, 4)),
    features=(
        FeatureSpec("one", "c", 1, Pooling.SUM),
        FeatureSpec("two", "b", 1, Pooling.CONCAT),
        FeatureSpec("three", "a", 1, Pooling.MEAN),
        FeatureSpec("four", "a", 1, Pooling.SUM),
    ),
    towers={"top": (1,)},
    settings={"interaction": "concat"},
)


def some_keys(items: int, seed: int = 0) -> torch.Tensor:
    draw = np.random.default_rng(seed)
    rows = [SPEC.table(feature.table).rows for feature in SPEC.features]
    return torch.from_numpy(draw.integers(0, rows, (items, len(rows))))


def test_a_gather_is_what_the_plain_model_looks_up():
    keys = some_keys(20)
    features = {feature.name: keys[:, [column]] for column, feature in enumerate(SPEC.features)}
    expected, _ = RankingModel(SPEC, seed=3).sparse(features)
    assert torch.equal(TrainedTables(SPEC, seed=3).gather(keys), expected)


def test_rows_start_as_a_new_models():
    tables = TrainedTables(SPEC, seed=4)
    model = RankingModel(SPEC, seed=4)
    for table in SPEC.tables:
        assert np.array_equal(tables.rows(table.name), model.table_weight(table.name).detach().numpy())
    with pytest.raises(KeyError):
        tables.rows("d")


def test_steps_are_row_wise_adagrad_and_leave_other_rows_alone():
    tables = TrainedTables(SPEC, seed=5)
    rows = {table.name: tables.rows(table.name).astype(np.float64) for table in SPEC.tables}
    squares = {table.name: np.zeros(table.rows) for table in SPEC.tables}
    for step in range(3):
        keys = some_keys(12, seed=step)
        gradient = torch.randn(12, SPEC.sparse_width, generator=torch.Generator().manual_seed(step))
        tables.step(keys, gradient, learning_rate=0.1)
        for table in SPEC.tables:
            for row in range(table.rows):
                parts = [
                    gradient[item, slot.column : slot.column + slot.width].numpy().astype(np.float64)
                    for column, slot in enumerate(SPEC.slots)
                    if slot.feature.table == table.name
                    for item in range(12)
                    if keys[item, column] == row
                ]
                if parts:
                    total = np.sum(parts, axis=0)
                    squares[table.name][row] += np.mean(total**2)
                    rows[table.name][row] -= 0.1 * total / np.sqrt(squares[table.name][row])
    for table in SPEC.tables:
        assert np.allclose(tables.rows(table.name), rows[table.name], rtol=1e-5, atol=1e-6)
