"""Small modules to import, each with what one of the captured forms needs, and how a test makes its own."""

import functools
import itertools

import torch
from torch import nn

from hebe.models.importing.graph_capture import capture
from hebe.spec import SlaTarget


class Scored(nn.Module):
    """Base of the modules below."""

    def __init__(self, width, outputs=1):
        super().__init__()
        torch.manual_seed(width)
        self.top = nn.Linear(width, outputs)

    def score(self, *vectors):
        return torch.sigmoid(self.top(torch.cat([v.flatten(1) for v in vectors], 1)))


def keys(rows, *shape):
    return torch.randint(0, rows, shape, generator=torch.Generator().manual_seed(sum(shape)))


def floats(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class TwoBags(Scored):
    def __init__(self):
        super().__init__(3 + 8 + 4)
        self.user = nn.EmbeddingBag(50, 8, mode="sum")
        self.item = nn.EmbeddingBag(30, 4, mode="mean")

    def forward(self, dense, user, item):
        return self.score(dense, self.user(user), self.item(item))


class Jagged(Scored):
    def __init__(self, ends_with_total=False):
        super().__init__(8)
        self.bag = nn.EmbeddingBag(50, 8, mode="mean", include_last_offset=ends_with_total)

    def forward(self, values, offsets):
        return self.score(self.bag(values, offsets))


class Columns(Scored):
    """One input whose columns go to layers of their own, one of them shared."""

    def __init__(self):
        super().__init__(4 + 4 + 2 + 4)
        self.first = nn.Embedding(20, 4)
        self.other = nn.Embedding(30, 2, padding_idx=0)

    def forward(self, x):
        a, b, c = x.unbind(1)
        return self.score(self.first(a), self.first(x[:, 1:2]).squeeze(1), self.other(c), self.first(b))


class Fields(Scored):
    """Fields side by side in one table, as in factorisation machines."""

    def __init__(self, rows=(5, 7, 3)):
        super().__init__(len(rows) * 4 + 1 + 2)
        self.embedding = nn.Embedding(sum(rows), 4)
        self.linear = nn.Embedding(sum(rows), 1)
        self.bag = nn.EmbeddingBag(sum(rows), 2, mode="mean")
        self.register_buffer("offsets", torch.tensor([0, *itertools.accumulate(rows)][:-1]))

    def forward(self, x):
        x = x + self.offsets
        return self.score(self.embedding(x), self.linear(x).sum(1), self.bag(x))


class PooledSequence(Scored):
    def __init__(self):
        super().__init__(4 + 4 + 8)
        self.embedding = nn.Embedding(20, 4)

    def forward(self, history):
        return self.score(
            self.embedding(history).sum(1), self.embedding(history).mean(dim=-2), self.embedding(history[:, :2])
        )


class Views(Scored):
    """Layers whose weights are parts of one tensor, each where it begins."""

    def __init__(self):
        super().__init__(4 + 4 + 2)
        self.all = nn.Embedding(20, 4)
        self.first_rows, self.first_columns = nn.Embedding(7, 4), nn.Embedding(20, 2)
        self.first_rows.weight = nn.Parameter(self.all.weight.data[:7])
        self.first_columns.weight = nn.Parameter(self.all.weight.data[:, :2])

    def forward(self, x, y):
        return self.score(self.all(x), self.first_rows(y), self.first_columns(x))


class Interacting(Scored):
    """Attention, a GRU, normalisation, sizes computed from the number of items, assignment in place."""

    def __init__(self):
        super().__init__(4 + 12 + 4 + 3)
        self.embedding = nn.Embedding(20, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean.uniform_()
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(2, 4)

    def forward(self, dense, history):
        rows = self.embedding(history)
        attended, _ = self.attention(rows, rows, rows)
        attended = attended.clone()
        attended[:, 0] = attended[:, 0] * 2
        _, last = self.gru(rows)
        i, j = torch.tril_indices(3, 3, -1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, i, j]
        ones = history.new_full((len(history), 3), 2) * torch.ones(len(dense), 3).cumsum(1).repeat(2, 1)[: len(dense)]
        return self.score(self.norm(self.dropout(self.dense(dense))), attended, last[0], pairs * ones)


class ManyFloats(Scored):
    def __init__(self):
        super().__init__(1 + 6 + 4)
        self.embedding = nn.Embedding(20, 4)

    def forward(self, price, image, item):
        return self.score(price[:, None], image.transpose(1, 2), self.embedding(item))


class TakesMapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 4)

    def forward(self, batch):
        return self.embedding(batch["item"]).sum(1) * batch["weight"]


class Stacked(Scored):
    """Two inputs stacked for one layer, then pooled by the module."""

    def __init__(self):
        super().__init__(4)
        self.bag = nn.EmbeddingBag(20, 4, mode="sum")

    def forward(self, a, b):
        return self.score(self.bag(torch.stack([a, b], 1)))


class MaskAndPattern(Scored):
    """An input read for its keys, as numbers, by parts, and as the pattern of a new tensor."""

    def __init__(self):
        super().__init__(4 + 1)
        self.embedding = nn.Embedding(20, 4, padding_idx=0)

    def forward(self, history):
        counts = history.new_zeros(len(history), 1) + (history[:, 1:] != 0).sum(1, keepdim=True)
        weights = (history > 3).float() / (1 + history[:, :1])
        return self.score((self.embedding(history) * weights.unsqueeze(-1)).sum(1), counts)


class ManyOutputs(Scored):
    def __init__(self):
        super().__init__(4, outputs=3)
        self.bag = nn.EmbeddingBag(20, 4)

    def forward(self, x):
        return self.score(self.bag(x))


def from_function(function, **layers):
    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, *inputs):
            return function(self, *inputs)

    return Made()


def bag(**options):
    return nn.EmbeddingBag(20, 2, **options)


TWO_BAGS = (floats(6, 3), keys(50, 6, 2), keys(30, 6, 5))
X = keys(20, 6, 3)

SUPPORTED = {
    "two bags": (TwoBags(), TWO_BAGS),
    "jagged": (Jagged(), (keys(50, 9), torch.tensor([0, 2, 2, 5]))),
    "jagged with total": (Jagged(True), (keys(50, 9), torch.tensor([0, 2, 2, 9]))),
    "columns": (Columns(), (keys(20, 6, 3),)),
    "int32 keys": (Columns(), (keys(20, 6, 3).int(),)),
    "keys by column": (Columns(), (keys(20, 3, 6).T,)),
    "fields": (Fields(), (keys(3, 6, 3),)),
    "pooled sequence": (PooledSequence(), (keys(20, 6, 3),)),
    "interacting": (Interacting(), (floats(6, 2), keys(20, 6, 3))),
    "many floats": (ManyFloats(), (floats(6), floats(6, 2, 3), keys(20, 6))),
    "mapping": (TakesMapping(), {"item": keys(20, 6, 4), "weight": floats(6, 4)}),
    "stacked": (Stacked(), (keys(20, 6), keys(20, 6) // 2)),
    "many outputs": (ManyOutputs(), keys(20, 6, 2)),
    "mask and pattern": (MaskAndPattern(), (keys(5, 6, 3),)),
    "views": (Views(), (keys(20, 6), keys(7, 6))),
}


@functools.cache
def captured_case(case):
    module, example = SUPPORTED[case]
    return module, example, capture(module, example, "model", SlaTarget(7.0, 99.0))
