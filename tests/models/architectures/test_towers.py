from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from hebe.models.architectures.dense_net import initialise
from hebe.models.architectures.towers import ParallelTowers, PredictTower, Tower
from hebe.spec import ModelSpec, SpecError

Spec = Callable[[str], ModelSpec]


def drawn(net: nn.Module) -> nn.Module:
    initialise(net, 5)
    return net


@pytest.mark.parametrize("linear_end", [False, True])
def test_a_tower_is_its_layers_one_after_another(linear_end: bool) -> None:
    tower = drawn(Tower(6, (5, 3), linear_end, nn.Tanh))
    first, last = (module for module in tower.modules() if isinstance(module, nn.Linear))
    inputs = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1))
    expected = last(torch.tanh(first(inputs)))
    torch.testing.assert_close(tower(inputs), expected if linear_end else torch.tanh(expected))
    assert tower.outputs == 3


def test_a_tower_of_no_layers_gives_what_it_is_given() -> None:
    tower = Tower(6, ())
    inputs = torch.ones(2, 6)
    assert torch.equal(tower(inputs), inputs)
    assert tower.outputs == 6


def test_two_classes_are_one_logit_whose_sigmoid_is_their_softmax(small_spec: Spec) -> None:
    tower = drawn(PredictTower(small_spec("din"), "top", 9))
    assert tower.two_class
    inputs = torch.randn(20, 9, generator=torch.Generator().manual_seed(1))
    clicked = torch.softmax(tower.tower(inputs), 1)[:, 1:]
    torch.testing.assert_close(torch.sigmoid(tower(inputs)), clicked)


def test_two_outputs_are_two_logits(small_spec: Spec) -> None:
    tower = drawn(PredictTower(replace(small_spec("din"), outputs=2), "top", 9))
    assert not tower.two_class
    assert tower(torch.ones(4, 9)).shape == (4, 2)


@pytest.mark.parametrize(
    ("outputs", "message"), [(1, r"number of outputs, 1 \(or in 2, for a softmax"), (3, "number of outputs, 3$")]
)
def test_a_tower_that_ends_otherwise_is_refused(small_spec: Spec, outputs: int, message: str) -> None:
    spec = replace(small_spec("dlrm-dot"), outputs=outputs, towers={"bottom": (9, 8), "top": (12, 4)})
    with pytest.raises(SpecError, match=rf"towers\.top ends in 4: must end in the {message}"):
        PredictTower(spec, "top", 9)


@pytest.mark.parametrize("widths", [(7,), (7, 4), (7, 4, 3)])
def test_towers_side_by_side_are_as_many_on_their_own(widths: tuple[int, ...]) -> None:
    together = drawn(ParallelTowers(3, 6, widths))
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    first = together.first(inputs).view(8, 3, widths[0])
    for number in range(3):
        hidden = first[:, number]
        for weight, bias in zip(together.weights, together.biases, strict=True):
            hidden = torch.relu(hidden) @ weight[number] + bias[number]
        torch.testing.assert_close(together(inputs)[:, number], hidden[:, 0])
    assert len({round(value, 6) for value in together(inputs)[0].tolist()}) == 3, "each has weights of its own"
