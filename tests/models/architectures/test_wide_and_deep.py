from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hebe.models.architectures.build import build_dense_net

Make = Callable[..., Any]


def test_adds_a_linear_and_a_deep_half(small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make) -> None:
    spec = small_spec("wide-and-deep")
    net = build_dense_net(spec)
    shake(net)

    def per_item(dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        inputs = torch.cat((dense, sparse))
        deep = inputs
        for layer in (net.deep.layers[0], net.deep.layers[2]):
            deep = torch.relu(layer.weight @ deep + layer.bias)
        return net.wide.weight @ inputs + net.predict.weight @ deep + net.predict.bias

    same_rows(net, inputs_for(spec, 6), per_item)
