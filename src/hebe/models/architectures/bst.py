"""BST, the behaviour sequence transformer (Chen et al. 2019, arXiv:1905.06874).

The candidate takes its place in the sequence of behaviours; each place's learned position vector is added; a
transformer block (multi-head self-attention, then a feed-forward layer with LeakyReLU, each with a residual and
LayerNorm after it: Eq. 3-6) relates all places; its outputs, side by side, meet all other features in the top tower.
The candidate is place 0 and behaviour i place i + 1; the paper's position is the time between a behaviour and the
recommendation, so send the most recent behaviour first. Places past an item's length are neither attended to nor
handed on.

Towers   `top`           ends in the number of outputs, or in 2 for a softmax over two classes
Settings `heads` (8)     attention heads; must divide the behaviours' dim
         `blocks` (1)    transformer blocks
         `feed_forward`  width of the feed-forward layer (default: 4 times the behaviours' dim)
Hidden layers of the top tower are followed by LeakyReLU. For features see `behaviours`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from hebe.models.architectures.behaviours import Behaviours
from hebe.models.architectures.dense_net import DenseNet, check_fields, count_setting, linear
from hebe.models.architectures.towers import PredictTower
from hebe.spec import ModelSpec, SpecError


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward over places `[n, places, dim]`; `attended` bool `[n, 1, 1, places]`."""

    def __init__(self, dim: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = linear(dim, 3 * dim)
        self.merge = linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.widen = linear(dim, feed_forward)
        self.narrow = linear(feed_forward, dim)
        self.feed_forward_norm = nn.LayerNorm(dim)

    def forward(self, places: Tensor, attended: Tensor) -> Tensor:
        """See the class."""
        items, count, dim = places.shape
        split = self.query_key_value(places).reshape(items, count, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attended)
        mixed = self.merge(mixed.transpose(1, 2).reshape(items, count, dim))
        places = self.attention_norm(places + mixed)
        forward = self.narrow(functional.leaky_relu(self.widen(places)))
        result: Tensor = self.feed_forward_norm(places + forward)
        return result


class Bst(DenseNet):
    """BST's DenseNet."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("top",), ("heads", "blocks", "feed_forward"))
        self.behaviours = Behaviours(spec)
        dim = self.behaviours.dim
        heads = count_setting(spec, "heads", 8)
        if dim % heads:
            raise SpecError(f"model {spec.name}: settings.heads is {heads}: must divide the behaviours' dim, {dim}")
        feed_forward = count_setting(spec, "feed_forward", 4 * dim)
        self.positions = nn.Parameter(torch.empty(self.behaviours.steps + 1, dim))
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, feed_forward) for _ in range(count_setting(spec, "blocks", 1))
        )
        width = spec.dense_dim + self.behaviours.context_width + (self.behaviours.steps + 1) * dim
        self.top = PredictTower(spec, "top", width, nn.LeakyReLU)

    def draw(self, generator: torch.Generator) -> None:
        """Draw the position vectors, uniformly within 1/sqrt(dim) as embedding rows are."""
        bound = 1.0 / math.sqrt(self.positions.shape[1])
        self.positions.uniform_(-bound, bound, generator=generator)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        """See `DenseNet.logits`."""
        context, candidate, behaviours, valid = self.behaviours(sparse, lengths)
        places = torch.cat((candidate.unsqueeze(1), behaviours), 1) + self.positions
        present = functional.pad(valid, (1, 0), value=True)
        attended = present.unsqueeze(1).unsqueeze(1)
        for block in self.blocks:
            places = block(places, attended)
        places = places.masked_fill(~present.unsqueeze(2), 0.0)
        result: Tensor = self.top(torch.cat((dense, context, places.flatten(1)), 1))
        return result
