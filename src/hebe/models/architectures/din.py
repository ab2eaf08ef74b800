"""DIN, the deep interest network (Zhou et al., KDD 2018, arXiv:1706.06978).

The user's interest in a candidate is the sum of her behaviours' vectors, each weighed by an activation unit: a
small tower over behaviour, candidate, their difference and their product (Section 4.3). The weights are not
normalised, as in the paper. Interest, candidate and all other features then meet in the top tower. Behaviours past
an item's length weigh nothing.

Towers   `attention`  the activation unit's layers; ends in 1
         `top`        ends in the number of outputs, or in 2 for a softmax over two classes
Settings none
Hidden layers are followed by PReLU. For features see `behaviours`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hebe.models.architectures.behaviours import Behaviours
from hebe.models.architectures.dense_net import DenseNet, check_fields, linear
from hebe.models.architectures.towers import PredictTower, Tower
from hebe.spec import ModelSpec, SpecError


class ActivationUnit(nn.Module):
    """The weight of each behaviour for a candidate: `[n, steps, dim], [n, dim] -> [n, steps]`.

    The first layer reads (behaviour, candidate, candidate - behaviour, candidate * behaviour), 4 * dim wide. It is
    linear, so it is computed without building that vector: with the weight's four parts B, C, D, P,

        B b + C c + D (c - b) + P (c * b) = (B - D + P diag(c)) b + (C + D) c

    which is one batched product over the behaviours, a quarter of the work.
    """

    def __init__(self, dim: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim
        self.first = linear(4 * dim, widths[0])
        self.rest = nn.Sequential(nn.PReLU(), Tower(widths[0], widths[1:], linear_end=True, activation=nn.PReLU))

    def forward(self, behaviours: Tensor, candidate: Tensor) -> Tensor:
        """See the class."""
        part_b, part_c, part_d, part_p = torch.split(self.first.weight.t(), self.dim, 0)
        of_candidate = torch.addmm(self.first.bias, candidate, part_c + part_d)
        of_behaviours = torch.addcmul(part_b - part_d, candidate.unsqueeze(2), part_p)
        hidden = torch.baddbmm(of_candidate.unsqueeze(1), behaviours, of_behaviours)
        weights: Tensor = self.rest(hidden)
        return weights.squeeze(2)


class Din(DenseNet):
    """DIN's DenseNet."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("attention", "top"))
        widths = spec.towers["attention"]
        if len(widths) < 2 or widths[-1] != 1:
            raise SpecError(
                f"model {spec.name}: towers.attention is {list(widths)}: must have a hidden layer and end in 1"
            )
        self.behaviours = Behaviours(spec)
        self.attention = ActivationUnit(self.behaviours.dim, widths)
        width = spec.dense_dim + self.behaviours.context_width + self.behaviours.dim
        self.top = PredictTower(spec, "top", width, nn.PReLU)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        """See `DenseNet.logits`."""
        context, candidate, behaviours, valid = self.behaviours(sparse, lengths)
        weights = self.attention(behaviours, candidate).masked_fill(~valid, 0.0)
        interest = torch.bmm(weights.unsqueeze(1), behaviours).squeeze(1)
        result: Tensor = self.top(torch.cat((dense, context, interest), 1))
        return result
