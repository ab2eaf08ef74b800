from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
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


@pytest.mark.parametrize("shared", [True, False])
def test_each_task_has_its_tower(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make, shared: bool
) -> None:
    spec = small_spec("multi-task")
    if not shared:
        spec = replace(spec, towers={"task": spec.towers["task"]})
    net = build_dense_net(spec)
    shake(net)
    first_weight = net.tasks.first.weight.reshape(3, 8, -1)
    first_bias = net.tasks.first.bias.reshape(3, 8)

    def per_item(dense: Tensor, sparse: Tensor, _lengths: Tensor) -> Tensor:
        inputs = torch.cat((dense, sparse))
        trunk = inputs
        for layer in (net.trunk.layers[0], net.trunk.layers[2]) if shared else ():
            trunk = torch.relu(layer.weight @ trunk + layer.bias)
        logits = []
        for task in range(3):
            hidden = first_weight[task] @ trunk + first_bias[task]
            for weight, bias in zip(net.tasks.weights, net.tasks.biases, strict=True):
                hidden = weight[task].t() @ torch.relu(hidden) + bias[task, 0]
            logits.append(hidden[0] + net.wide.weight[task] @ inputs)
        return torch.stack(logits)

    same_rows(net, inputs_for(spec, 6), per_item)
