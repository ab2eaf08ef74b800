from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hebe.models.architectures.ranking_model import RankingModel, initial_rows
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SpecError

Make = Callable[..., Any]

SPEC = ModelSpec(
    "m",
    "dlrm",
    (EmbeddingTableSpec("t.0", 40, 4), EmbeddingTableSpec("t-1", 30, 3)),
    (
        FeatureSpec("sum", "t.0", 3, Pooling.SUM),
        FeatureSpec("mean", "t-1", 2, Pooling.MEAN),
        FeatureSpec("concat", "t.0", 3, Pooling.CONCAT),
        FeatureSpec("concat2", "t-1", 2, Pooling.CONCAT),
    ),
    dense_dim=2,
    towers={"bottom": (4,), "top": (5, 1)},
    settings={"interaction": "concat"},
)


def pooled(model: RankingModel, feature: FeatureSpec, keys: list[int]) -> np.ndarray:
    """One item's columns of one feature, row by row."""
    weight = model.table_weight(feature.table).detach().numpy()
    rows = [weight[key] for key in keys]
    if feature.pooling is Pooling.CONCAT:
        rows += [np.zeros(weight.shape[1], np.float32)] * (feature.lookups - len(keys))
        return np.concatenate(rows)
    total = np.sum(rows, axis=0) if rows else np.zeros(weight.shape[1])
    return total / max(1, len(keys)) if feature.pooling is Pooling.MEAN else total


@given(st.data())
def test_sparse_is_the_lookup_and_pooling_of_each_item(data: st.DataObject) -> None:
    items = data.draw(st.integers(1, 4))
    model = RankingModel(SPEC, seed=1)
    features: dict[str, Any] = {}
    expected: list[list[np.ndarray]] = [[] for _ in range(items)]
    lengths = []
    for feature in SPEC.features:
        rows = SPEC.table(feature.table).rows
        jagged = data.draw(st.booleans())
        least = 0 if jagged else feature.lookups
        keys = data.draw(
            st.lists(
                st.lists(st.integers(0, rows - 1), min_size=least, max_size=feature.lookups),
                min_size=items,
                max_size=items,
            )
        )
        counts = torch.tensor([len(row) for row in keys])
        values = torch.tensor([key for row in keys for key in row], dtype=torch.int64)
        features[feature.name] = (values, counts) if jagged else values.reshape(items, feature.lookups)
        for item in range(items):
            expected[item].append(pooled(model, feature, keys[item]))
        if not feature.pooling.reduces:
            lengths.append(counts)
    sparse, valid = model.sparse(features)
    np.testing.assert_allclose(
        sparse.detach().numpy(), np.stack([np.concatenate(row) for row in expected]), rtol=1e-5, atol=1e-6
    )
    assert torch.equal(valid, torch.stack(lengths, 1))


def test_forward_is_the_dense_net_over_the_sparse_net(any_spec: ModelSpec) -> None:
    model = RankingModel(any_spec, seed=2)
    generator = torch.Generator().manual_seed(0)
    features = {
        feature.name: torch.randint(0, any_spec.table(feature.table).rows, (6, feature.lookups), generator=generator)
        for feature in any_spec.features
    }
    dense = torch.randn(6, any_spec.dense_dim, generator=generator)
    scores = model(dense, features)
    assert scores.shape == (6, any_spec.outputs)
    assert torch.equal(scores, model.dense_net(dense, *model.sparse(features)))
    assert torch.equal(scores, torch.sigmoid(model.logits(dense, features)))
    if not any_spec.dense_dim:
        assert torch.equal(scores, model(None, features))
    scores.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_can_be_copied(small_spec: Make) -> None:
    model = RankingModel(small_spec("dlrm-dot"), seed=3)
    twin = copy.deepcopy(model)
    assert twin.spec == model.spec
    features = {f.name: torch.zeros(2, f.lookups, dtype=torch.int64) for f in model.spec.features}
    assert torch.equal(twin(torch.ones(2, 5), features), model(torch.ones(2, 5), features))


def test_features_of_one_table_share_its_rows(small_spec: Make) -> None:
    model = RankingModel(small_spec("din"))
    assert len(model.tables) == 3
    assert model.table_weight("item").shape == (50, 6)


def test_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = RankingModel(SPEC, seed=4).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    second = RankingModel(SPEC, seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["tables.0.weight"], RankingModel(SPEC, seed=5).table_weight("t.0"))


@pytest.mark.parametrize("chunk_bytes", [1, 16, 100, 1 << 20])
def test_initial_rows_do_not_depend_on_the_chunk(chunk_bytes: int) -> None:
    chunks = list(initial_rows(SPEC, "t-1", 9, chunk_bytes))
    rows = np.concatenate(chunks)
    assert all(len(chunk) <= max(1, chunk_bytes // 12) for chunk in chunks)
    assert rows.shape == (30, 3)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, np.concatenate(list(initial_rows(SPEC, "t-1", 9))))


def test_initial_rows_are_spread_over_the_stated_range_and_differ_by_table_and_seed() -> None:
    wide = replace(SPEC, tables=(EmbeddingTableSpec("t.0", 20_000, 4), EmbeddingTableSpec("t-1", 20_000, 4)))

    def rows(table: str, seed: int, spec: ModelSpec = wide) -> np.ndarray:
        return np.concatenate(list(initial_rows(spec, table, seed)))

    first = rows("t.0", 0)
    assert -0.5 <= first.min() < -0.499
    assert 0.499 < first.max() <= 0.5
    assert abs(first.mean()) < 0.005
    assert abs(np.corrcoef(first.ravel(), rows("t-1", 0).ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(first.ravel(), rows("t.0", 1).ravel())[0, 1]) < 0.02
    bounded = rows("t.0", 0, replace(wide, settings={"interaction": "concat", "row_bound": 0.01}))
    assert 0.0099 < np.abs(bounded).max() <= 0.01


def test_initial_rows_refuses_what_makes_no_sense() -> None:
    for bound in (0, -1.0, float("nan"), "big", True):
        with pytest.raises(SpecError, match=r"settings\.row_bound is .*: must be a positive number"):
            initial_rows(replace(SPEC, settings={"row_bound": bound}), "t.0", 0)
    with pytest.raises(ValueError, match="seed is -1"):
        initial_rows(SPEC, "t.0", -1)
    with pytest.raises(KeyError):
        initial_rows(SPEC, "nowhere", 0)


@pytest.mark.parametrize(
    ("feature", "keys", "message"),
    [
        ("sum", torch.zeros(2, 4, dtype=torch.int64), r"feature sum has shape \[2, 4\]: must be \[items, 3\]"),
        ("sum", torch.zeros(3, 3, dtype=torch.int64), "feature mean has 2 items, others have 3"),
        ("mean", (torch.zeros(3, dtype=torch.int64), torch.tensor([1, 1])), "feature mean: lengths sum to 2 but .* 3"),
        ("concat", (torch.zeros(4, dtype=torch.int64), torch.tensor([4, 0])), "lengths must lie between 0 and 3"),
        ("concat", (torch.zeros(1, 2, dtype=torch.int64), torch.tensor([1, 1])), "of one dimension each"),
        ("other", torch.zeros(2, 1, dtype=torch.int64), r"unknown feature\(s\) other"),
        ("sum", None, "feature sum is missing"),
    ],
)
def test_names_the_feature_that_does_not_fit(feature: str, keys: Any, message: str) -> None:
    features: dict[str, Any] = {f.name: torch.zeros(2, f.lookups, dtype=torch.int64) for f in SPEC.features}
    features[feature] = keys
    if keys is None:
        del features[feature]
    with pytest.raises(ValueError, match=message):
        RankingModel(SPEC)(torch.zeros(2, 2), features)


def test_names_a_dense_input_that_does_not_fit() -> None:
    features = {f.name: torch.zeros(2, f.lookups, dtype=torch.int64) for f in SPEC.features}
    for dense in (None, torch.zeros(2, 3), torch.zeros(1, 2)):
        with pytest.raises(ValueError, match=r"dense has shape .*: must be \[2, 2\]"):
            RankingModel(SPEC)(dense, features)
