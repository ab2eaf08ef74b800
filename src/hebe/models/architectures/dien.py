"""DIEN, the deep interest evolution network (Zhou et al., AAAI 2019, arXiv:1809.03672).

A GRU over the behaviours extracts interest states (Eq. 1-5); each state's attention to the candidate is a softmax
over the item's behaviours (Eq. 14); a second GRU, whose update gate that attention scales (AUGRU, Eq. 15-16),
evolves them, and its last state meets candidate and all other features in the top tower. A behaviour past an item's
length has attention 0, so it leaves the evolving state as it was; without behaviours the state is zero. The
auxiliary loss of the paper is a matter of training and has no part here.

Towers   `top`     ends in the number of outputs, or in 2 for a softmax over two classes
Settings `hidden`  width of both GRUs' states (default: the behaviours' dim)
Hidden layers of the top tower are followed by PReLU. For features see `behaviours`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hebe.models.architectures.behaviours import Behaviours
from hebe.models.architectures.dense_net import DenseNet, check_fields, count_setting, linear
from hebe.models.architectures.towers import PredictTower
from hebe.spec import ModelSpec


class InterestExtractor(nn.Module):
    """A plain GRU over time: `[steps, n, inputs] -> states [steps, n, hidden]`, starting from zero.

    Weights are laid out as in `torch.nn.GRU` (reset, update, new).
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))

    def draw(self, generator: torch.Generator) -> None:
        """Draw all weights uniformly within 1/sqrt(hidden), as torch does for recurrent layers."""
        bound = 1.0 / math.sqrt(self.hidden)
        for weight in self.parameters():
            weight.uniform_(-bound, bound, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        start = inputs.new_zeros((1, inputs.shape[1], self.hidden))
        # The function behind nn.GRU: the loop over time runs in C++, without the module's checks of shapes, which
        # a trace would freeze.
        states: Tensor = torch.gru(inputs, start, weights, True, 1, 0.0, False, False, False)[0]
        return states


class Augru(nn.Module):
    """GRU with attentional update gate: states `[steps, n, hidden]`, attention `[steps, n, 1]` -> `[n, hidden]`.

        u, r = sigmoid(W i + U h + b);  u' = a u;  h~ = tanh(W i + r * (U h) + b);  h = (1 - u') h + u' h~

    Returns the last h. What depends on the inputs alone is one product over all steps.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.weight_input = nn.Parameter(torch.empty(hidden, 3 * hidden))
        self.weight_gates = nn.Parameter(torch.empty(hidden, 2 * hidden))
        self.weight_state = nn.Parameter(torch.empty(hidden, hidden))
        self.bias = nn.Parameter(torch.empty(3 * hidden))

    def draw(self, generator: torch.Generator) -> None:
        """Draw all weights uniformly within 1/sqrt(hidden), as torch does for recurrent layers."""
        bound = 1.0 / math.sqrt(self.hidden)
        for weight in self.parameters():
            weight.uniform_(-bound, bound, generator=generator)

    def forward(self, states: Tensor, attention: Tensor) -> Tensor:
        """See the class."""
        from_states = states @ self.weight_input + self.bias
        gates, new = torch.split(from_states, [2 * self.hidden, self.hidden], 2)
        state = states.new_zeros((states.shape[1], self.hidden))
        steps = zip(gates.unbind(0), new.unbind(0), attention.unbind(0), strict=True)
        for step_gates, step_new, step_attention in steps:
            update, reset = torch.addmm(step_gates, state, self.weight_gates).sigmoid().chunk(2, 1)
            proposed = torch.addcmul(step_new, reset, state @ self.weight_state).tanh()
            state = torch.lerp(state, proposed, update * step_attention)
        return state


class Dien(DenseNet):
    """DIEN's DenseNet."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("top",), ("hidden",))
        self.behaviours = Behaviours(spec)
        hidden = count_setting(spec, "hidden", self.behaviours.dim)
        self.extractor = InterestExtractor(self.behaviours.dim, hidden)
        self.attention = linear(self.behaviours.dim, hidden, bias=False)
        self.evolution = Augru(hidden)
        width = spec.dense_dim + self.behaviours.context_width + hidden
        self.top = PredictTower(spec, "top", width, nn.PReLU)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        """See `DenseNet.logits`."""
        context, candidate, behaviours, valid = self.behaviours(sparse, lengths)
        states = self.extractor(behaviours.transpose(0, 1))
        scores = torch.einsum("tnh,nh->tn", states, self.attention(candidate))
        valid = valid.t()
        # A finite bound rather than -inf: an item without behaviours must not become NaN.
        attention = torch.softmax(scores.masked_fill(~valid, -1e30), 0) * valid
        interest = self.evolution(states, attention.unsqueeze(2))
        result: Tensor = self.top(torch.cat((dense, context, interest), 1))
        return result
