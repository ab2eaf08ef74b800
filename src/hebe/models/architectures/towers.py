"""Towers: stacks of fully connected layers, which every architecture is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hebe.models.architectures.dense_net import draw_bias, draw_linear, linear
from hebe.spec import ModelSpec, SpecError

Activation = Callable[[], nn.Module]
"""Makes the module that follows a hidden layer."""


class Tower(nn.Module):
    """Linear layers of the given widths, each followed by an activation: `[..., inputs] -> [..., widths[-1]]`.

    `linear_end` leaves the last layer linear. `outputs` is the last width.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], linear_end: bool = False, activation: Activation = nn.ReLU
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            layers.append(linear(inputs, width))
            if not linear_end or i + 1 < len(widths):
                layers.append(activation())
            inputs = width
        self.layers = nn.Sequential(*layers)
        self.outputs = inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        result: Tensor = self.layers(inputs)
        return result


class PredictTower(nn.Module):
    """The tower that ends a model: `[n, inputs] -> logits [n, outputs]`.

    The last of `widths` is the number of outputs, or 2 for one output: published configurations such as
    200-80-2 end in a softmax over (no click, click), whose click probability is the sigmoid of the difference
    of its two logits; that difference is the logit here. Raises `SpecError` for a tower that ends otherwise.
    """

    def __init__(self, spec: ModelSpec, tower: str, inputs: int, activation: Activation = nn.ReLU) -> None:
        super().__init__()
        widths = spec.towers[tower]
        self.two_class = spec.outputs == 1 and widths[-1] == 2
        if not self.two_class and widths[-1] != spec.outputs:
            raise SpecError(
                f"model {spec.name}: towers.{tower} ends in {widths[-1]}: must end in the number of outputs, "
                f"{spec.outputs}" + (" (or in 2, for a softmax over two classes)" if spec.outputs == 1 else "")
            )
        self.tower = Tower(inputs, widths, linear_end=True, activation=activation)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        logits: Tensor = self.tower(inputs)
        return logits[:, 1:2] - logits[:, 0:1] if self.two_class else logits


class ParallelTowers(nn.Module):
    """`count` towers of the same widths over the same input, run side by side: `[n, inputs] -> [n, count]`.

    The first layer of all towers is one matrix product, each later one a batched product; each tower ends in
    one linear output of its own. Hidden layers are followed by ReLU.
    """

    def __init__(self, count: int, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.count = count
        self.widths = (*widths, 1)
        self.first = linear(inputs, count * self.widths[0])
        pairs = list(zip(self.widths, self.widths[1:], strict=False))
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(count, i, o)) for i, o in pairs])
        self.biases = nn.ParameterList([nn.Parameter(torch.empty(count, 1, o)) for _, o in pairs])

    def draw(self, generator: torch.Generator) -> None:
        """Draw the later layers' weights; the first layer is an ordinary linear one."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            draw_linear(weight, weight.shape[1], weight.shape[2], generator)
            draw_bias(bias, weight.shape[2], generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        hidden: Tensor = self.first(inputs).reshape(inputs.shape[0], self.count, self.widths[0]).transpose(0, 1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.baddbmm(bias, torch.relu(hidden), weight)
        return hidden.squeeze(2).transpose(0, 1)
