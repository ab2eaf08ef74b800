"""One small spec per architecture, and inputs for any spec."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hebe.models.architectures.dense_net import DenseNet
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

Inputs = tuple[Tensor, Tensor, Tensor]


def _plain(architecture: str, **fields: object) -> ModelSpec:
    return ModelSpec(
        name=f"small-{architecture}",
        architecture=architecture,
        tables=tuple(EmbeddingTableSpec(f"t{i}", 50, 8) for i in range(3)),
        features=(
            FeatureSpec("a", "t0", 4, Pooling.SUM),
            FeatureSpec("b", "t1", 2, Pooling.MEAN),
            FeatureSpec("c", "t2", 1, Pooling.SUM),
        ),
        dense_dim=5,
        **fields,  # type: ignore[arg-type]
    )


def _interest(architecture: str, dense_dim: int = 0, **fields: object) -> ModelSpec:
    return ModelSpec(
        name=f"small-{architecture}",
        architecture=architecture,
        tables=tuple(EmbeddingTableSpec(name, 50, dim) for name, dim in [("user", 4), ("item", 6), ("category", 2)]),
        # Histories apart and out of order, so that columns must be found, not assumed.
        features=(
            FeatureSpec("category_history", "category", 7, Pooling.ATTENTION),
            FeatureSpec("user", "user", 1, Pooling.SUM),
            FeatureSpec("item", "item", 1, Pooling.SUM),
            FeatureSpec("item_history", "item", 7, Pooling.ATTENTION),
            FeatureSpec("category", "category", 1, Pooling.SUM),
        ),
        dense_dim=dense_dim,
        **fields,  # type: ignore[arg-type]
    )


_NCF_NAMES = ("gmf_user", "mlp_user", "gmf_item", "mlp_item")

SPECS = {
    "dlrm-dot": _plain("dlrm", towers={"bottom": (9, 8), "top": (12, 1)}, settings={"interaction": "dot"}),
    "dlrm-concat": _plain("dlrm", towers={"bottom": (9, 7), "top": (12, 1)}, settings={"interaction": "concat"}),
    "ncf": ModelSpec(
        "small-ncf",
        "ncf",
        tuple(EmbeddingTableSpec(name, 50, 8) for name in _NCF_NAMES),
        tuple(FeatureSpec(name, name, 1, Pooling.SUM) for name in _NCF_NAMES),
        towers={"mlp": (10, 6)},
    ),
    "wide-and-deep": _plain("wide-and-deep", towers={"deep": (11, 6)}),
    "multi-task": _plain("multi-task-wide-and-deep", outputs=3, towers={"trunk": (11, 9), "task": (8, 5)}),
    "din": _interest("din", towers={"attention": (10, 4, 1), "top": (12, 2)}),
    "dien": _interest("dien", dense_dim=3, towers={"top": (12, 2)}, settings={"hidden": 10}),
    "bst": _interest("bst", towers={"top": (12, 1)}, settings={"heads": 2, "blocks": 2, "feed_forward": 20}),
    "dlrm-dcnv2": _plain(
        "dlrm-dcnv2",
        towers={"bottom": (9, 6), "top": (12, 1)},
        settings={"cross_layers": 3, "cross_rank": 4},
    ),
}


@pytest.fixture
def small_specs() -> dict[str, ModelSpec]:
    """All small specs by name."""
    return SPECS


@pytest.fixture
def small_spec() -> Callable[[str], ModelSpec]:
    """The small spec called so in `SPECS`."""
    return SPECS.__getitem__


@pytest.fixture(params=sorted(SPECS))
def any_spec(request: pytest.FixtureRequest) -> ModelSpec:
    """Each small spec in turn."""
    return SPECS[request.param]


@pytest.fixture
def inputs_for() -> Callable[..., Inputs]:
    """Makes (dense, sparse, lengths) for a spec, zeros past the lengths as the SparseNet leaves them."""

    def make(spec: ModelSpec, items: int, seed: int = 0) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(items, spec.dense_dim, generator=generator)
        sparse = torch.randn(items, spec.sparse_width, generator=generator)
        columns = []
        for slot in spec.slots:
            if slot.feature.pooling.reduces:
                continue
            if slot.feature.pooling is Pooling.ATTENTION and columns:
                length = columns[0]
            else:
                length = torch.randint(0, slot.feature.lookups + 1, (items,), generator=generator)
                length[0] = 0
                length[-1] = slot.feature.lookups
            columns.append(length)
            for item in range(items):
                start = slot.column + int(length[item]) * slot.dim
                sparse[item, start : slot.column + slot.width] = 0.0
        lengths = torch.stack(columns, 1) if columns else torch.zeros(items, 0, dtype=torch.int64)
        return dense, sparse, lengths

    return make


@pytest.fixture
def shake() -> Callable[[nn.Module], None]:
    """Redraws all weights of a module, so that none is at a start value (0, 1) that could hide its use."""

    def redraw(net: nn.Module) -> None:
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for weight in net.parameters():
                weight.uniform_(-0.7, 0.7, generator=generator)

    return redraw


@pytest.fixture
def columns_of() -> Callable[[ModelSpec, Tensor, str], Tensor]:
    """One feature's part of one item's sparse row: `[width]`."""

    def columns(spec: ModelSpec, row: Tensor, feature: str) -> Tensor:
        slot = next(slot for slot in spec.slots if slot.feature.name == feature)
        return row[slot.column : slot.column + slot.width]

    return columns


@pytest.fixture
def same_rows() -> Callable[[DenseNet, Inputs, Callable[..., Tensor]], None]:
    """Asserts that a net's logits are those of a per-item formulation."""

    def check(net: DenseNet, inputs: Inputs, per_item: Callable[..., Tensor]) -> None:
        with torch.no_grad():
            expected = torch.stack([per_item(*(part[i] for part in inputs)) for i in range(len(inputs[0]))])
            torch.testing.assert_close(net.logits(*inputs), expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(net(*inputs), torch.sigmoid(expected), atol=1e-6, rtol=1e-5)

    return check
