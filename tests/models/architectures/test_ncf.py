from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hebe.models.architectures.build import build_dense_net
from hebe.spec import EmbeddingTableSpec, SpecError

Make = Callable[..., Any]


def test_is_neumf(small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make, columns_of: Make) -> None:
    spec = small_spec("ncf")
    net = build_dense_net(spec)
    shake(net)
    layers = [net.mlp.layers[0], net.mlp.layers[2]]

    def per_item(_dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        gmf = columns_of(spec, sparse, "gmf_user") * columns_of(spec, sparse, "gmf_item")
        hidden = torch.cat((columns_of(spec, sparse, "mlp_user"), columns_of(spec, sparse, "mlp_item")))
        for layer in layers:
            hidden = torch.relu(layer.weight @ hidden + layer.bias)
        return net.predict.weight @ torch.cat((gmf, hidden)) + net.predict.bias

    same_rows(net, inputs_for(spec, 6), per_item)


def test_names_features_that_gmf_lacks(small_spec: Make) -> None:
    spec = small_spec("ncf")
    features = tuple(
        replace(feature, name="user") if feature.name == "gmf_user" else feature for feature in spec.features
    )
    with pytest.raises(SpecError, match="feature gmf_user is missing"):
        build_dense_net(replace(spec, features=features))
    tables = tuple(EmbeddingTableSpec(t.name, t.rows, 4 if t.name == "gmf_item" else t.dim) for t in spec.tables)
    with pytest.raises(SpecError, match="gmf_item is 4 wide but gmf_user 8"):
        build_dense_net(replace(spec, tables=tables))
    gmf = ("gmf_user", "gmf_item")
    with pytest.raises(SpecError, match="MLP half has no feature"):
        build_dense_net(
            replace(
                spec,
                tables=tuple(t for t in spec.tables if t.name in gmf),
                features=tuple(f for f in spec.features if f.name in gmf),
            )
        )
