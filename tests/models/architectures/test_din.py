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


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def test_interest_is_the_behaviours_weighed_by_the_activation_unit(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make, columns_of: Make
) -> None:
    """Zhou et al. 2018, Eq. 3: one behaviour at a time, with the unit's input vector spelled out."""
    spec = small_spec("din")
    net = build_dense_net(spec)
    shake(net)
    unit = net.attention
    inner = unit.rest[1].layers

    def weight_of(behaviour: Tensor, candidate: Tensor) -> Tensor:
        seen = torch.cat((behaviour, candidate, candidate - behaviour, candidate * behaviour))
        hidden = prelu(unit.first.weight @ seen + unit.first.bias, unit.rest[0].weight)
        hidden = prelu(inner[0].weight @ hidden + inner[0].bias, inner[1].weight)
        return (inner[2].weight @ hidden + inner[2].bias)[0]

    def per_item(_dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        category, item = (columns_of(spec, sparse, name) for name in ("category", "item"))
        categories = columns_of(spec, sparse, "category_history").reshape(7, 2)
        items = columns_of(spec, sparse, "item_history").reshape(7, 6)
        candidate = torch.cat((category, item))
        interest = torch.zeros(8)
        for step in range(int(lengths[0])):
            behaviour = torch.cat((categories[step], items[step]))
            interest += weight_of(behaviour, candidate) * behaviour
        inputs = torch.cat((columns_of(spec, sparse, "user"), item, category, interest))
        top = net.top.tower.layers
        hidden = prelu(top[0].weight @ inputs + top[0].bias, top[1].weight)
        no_click, click = top[2].weight @ hidden + top[2].bias
        return (click - no_click).reshape(1)

    same_rows(net, inputs_for(spec, 10), per_item)


def test_a_behaviour_exists_where_all_its_parts_do(small_spec: Make, inputs_for: Make) -> None:
    spec = small_spec("din")
    net = build_dense_net(spec)
    dense, sparse, _ = inputs_for(spec, 3)
    sparse = torch.ones_like(sparse)
    with torch.no_grad():
        uneven = net(dense, sparse, torch.tensor([[2, 7], [7, 2], [2, 2]]))
    assert torch.equal(uneven[0], uneven[2])
    assert torch.equal(uneven[1], uneven[2])


def test_names_what_does_not_fit(small_spec: Make) -> None:
    spec = small_spec("din")
    with pytest.raises(SpecError, match=r"towers\.attention is \[4, 2\]: must have a hidden layer and end in 1"):
        build_dense_net(replace(spec, towers={**spec.towers, "attention": (4, 2)}))
    plain = tuple(f for f in spec.features if f.pooling.reduces)
    with pytest.raises(SpecError, match="din needs a behaviour sequence"):
        build_dense_net(replace(spec, features=plain))
    uneven = tuple(replace(f, lookups=5) if f.name == "item_history" else f for f in spec.features)
    with pytest.raises(SpecError, match="item_history has 5 lookups but category_history has 7"):
        build_dense_net(replace(spec, features=uneven))
    alone = tuple(f for f in spec.features if f.name != "item")
    with pytest.raises(SpecError, match=r"item_history: its candidate must be exactly one .* there are 0"):
        build_dense_net(replace(spec, features=alone))
