from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hebe.models.architectures.build import build_dense_net
from hebe.spec import SpecError

Make = Callable[..., Any]


def test_crosses_every_layer_with_the_first(small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make) -> None:
    """Wang et al. 2021, Eq. 3: element by element."""
    spec = small_spec("dlrm-dcnv2")
    net = build_dense_net(spec)
    shake(net)

    def per_item(dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        bottom = dense
        for layer in (net.bottom.layers[0], net.bottom.layers[2]):
            bottom = torch.relu(layer.weight @ bottom + layer.bias)
        first = crossed = torch.cat((bottom, sparse))
        for cross in net.crosses:
            full_rank = cross.up.weight @ cross.down.weight
            mapped = [float(full_rank[i] @ crossed + cross.up.bias[i]) for i in range(len(first))]
            crossed = torch.stack([first[i] * mapped[i] + crossed[i] for i in range(len(first))])
        top = net.top.tower.layers
        return top[2].weight @ torch.relu(top[0].weight @ crossed + top[0].bias) + top[2].bias

    same_rows(net, inputs_for(spec, 6), per_item)


def test_has_as_many_crosses_of_the_rank_as_the_settings_say(small_spec: Make) -> None:
    net = build_dense_net(small_spec("dlrm-dcnv2"))
    assert [tuple(cross.down.weight.shape) for cross in net.crosses] == [(4, 30)] * 3
    with pytest.raises(SpecError, match=r"settings\.cross_layers is 0"):
        build_dense_net(replace(small_spec("dlrm-dcnv2"), settings={"cross_layers": 0}))
