from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hebe.models.architectures.build import build_dense_net
from hebe.spec import SpecError

Make = Callable[..., Any]


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def test_interests_are_extracted_by_a_gru_and_evolved_by_an_attentional_one(
    small_spec: Make, inputs_for: Make, shake: Make, same_rows: Make, columns_of: Make
) -> None:
    """Zhou et al. 2019, Eq. 1-5 (as `nn.GRUCell`), 14, 15-16: one item and one valid step at a time."""
    spec = small_spec("dien")
    net = build_dense_net(spec)
    shake(net)
    cell = nn.GRUCell(8, 10)
    cell.load_state_dict(net.extractor.state_dict())
    evolution = net.evolution
    input_update, input_reset, input_new = evolution.weight_input.t().split(10)
    gate_update, gate_reset = evolution.weight_gates.t().split(10)
    bias_update, bias_reset, bias_new = evolution.bias.split(10)

    def augru(state: Tensor, seen: Tensor, attention: Tensor) -> Tensor:
        update = torch.sigmoid(input_update @ seen + gate_update @ state + bias_update)
        reset = torch.sigmoid(input_reset @ seen + gate_reset @ state + bias_reset)
        new = torch.tanh(input_new @ seen + reset * (evolution.weight_state.t() @ state) + bias_new)
        update = attention * update
        return (1 - update) * state + update * new

    def per_item(dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        category, item = (columns_of(spec, sparse, name) for name in ("category", "item"))
        categories = columns_of(spec, sparse, "category_history").reshape(7, 2)
        items = columns_of(spec, sparse, "item_history").reshape(7, 6)
        candidate = torch.cat((category, item))
        state, states = torch.zeros(10), []
        for step in range(int(lengths[0])):
            state = cell(torch.cat((categories[step], items[step])), state)
            states.append(state)
        interest = torch.zeros(10)
        if states:
            scores = torch.stack([state @ (net.attention.weight @ candidate) for state in states])
            for state, attention in zip(states, scores.exp() / scores.exp().sum(), strict=True):
                interest = augru(interest, state, attention)
        inputs = torch.cat((dense, columns_of(spec, sparse, "user"), item, category, interest))
        top = net.top.tower.layers
        hidden = prelu(top[0].weight @ inputs + top[0].bias, top[1].weight)
        no_click, click = top[2].weight @ hidden + top[2].bias
        return (click - no_click).reshape(1)

    same_rows(net, inputs_for(spec, 10), per_item)


def test_the_order_of_behaviours_matters(small_spec: Make, inputs_for: Make, shake: Make) -> None:
    spec = small_spec("dien")
    net = build_dense_net(spec)
    shake(net)
    dense, sparse, lengths = (part[-1:] for part in inputs_for(spec, 3))
    history = next(slot for slot in spec.slots if slot.feature.name == "item_history")
    columns = slice(history.column, history.column + history.width)
    reversed_history = sparse.clone()
    reversed_history[0, columns] = sparse[0, columns].reshape(7, 6).flip(0).flatten()
    with torch.no_grad():
        change = net.logits(dense, reversed_history, lengths) - net.logits(dense, sparse, lengths)
    assert float(change.abs()) > 1e-4


def test_hidden_defaults_to_the_width_of_a_behaviour(small_spec: Make) -> None:
    assert build_dense_net(replace(small_spec("dien"), settings={})).evolution.hidden == 8


@pytest.mark.parametrize("hidden", [0, -3, 2.5, "wide", True])
def test_refuses_a_bad_hidden_width(small_spec: Make, hidden: object) -> None:
    with pytest.raises(SpecError, match=r"settings\.hidden is .*: must be a whole number of at least 1"):
        build_dense_net(replace(small_spec("dien"), settings={"hidden": hidden}))
