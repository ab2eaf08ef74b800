from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hebe.models.architectures.build import build_dense_net
from hebe.spec import SpecError

Make = Callable[..., Any]


def normed(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def test_block_is_self_attention_then_feed_forward_over_the_valid_places(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make, columns_of: Make
) -> None:
    """Chen et al. 2019, Eq. 3-6: one place and one head at a time, over the valid places alone."""
    spec = small_spec("bst")
    net = build_dense_net(spec)
    shake(net)

    def block(layer: Any, places: list[Tensor]) -> list[Tensor]:
        projected = [layer.query_key_value.weight @ place + layer.query_key_value.bias for place in places]
        result = []
        for i, place in enumerate(places):
            heads = []
            for head in range(2):
                part = slice(head * 4, head * 4 + 4)
                query = projected[i][0:8][part]
                keys = torch.stack([p[8:16][part] for p in projected])
                values = torch.stack([p[16:24][part] for p in projected])
                heads.append(torch.softmax(keys @ query / math.sqrt(4), 0) @ values)
            mixed = layer.merge.weight @ torch.cat(heads) + layer.merge.bias
            attended = normed(place + mixed, layer.attention_norm)
            forward = layer.narrow.weight @ leaky(layer.widen.weight @ attended + layer.widen.bias) + layer.narrow.bias
            result.append(normed(attended + forward, layer.feed_forward_norm))
        return result

    def per_item(_dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        category, item = (columns_of(spec, sparse, name) for name in ("category", "item"))
        categories = columns_of(spec, sparse, "category_history").reshape(7, 2)
        items = columns_of(spec, sparse, "item_history").reshape(7, 6)
        places = [torch.cat((category, item)) + net.positions[0]]
        for step in range(int(lengths[0])):
            places.append(torch.cat((categories[step], items[step])) + net.positions[step + 1])
        for layer in net.blocks:
            places = block(layer, places)
        places += [torch.zeros(8)] * (8 - len(places))
        inputs = torch.cat((columns_of(spec, sparse, "user"), item, category, *places))
        top = net.top.tower.layers
        return top[2].weight @ leaky(top[0].weight @ inputs + top[0].bias) + top[2].bias

    same_rows(net, inputs_for(spec, 10), per_item)


def test_heads_must_divide_the_width(small_spec: Make) -> None:
    with pytest.raises(SpecError, match=r"settings\.heads is 3: must divide the behaviours' dim, 8"):
        build_dense_net(replace(small_spec("bst"), settings={"heads": 3}))
