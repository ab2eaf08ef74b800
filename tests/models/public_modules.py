"""Modules as people have them: the forms in which public code for FM, DIN, SASRec and their like treats keys.

Each is a function that gives (module, example inputs of six items). Nothing here knows of Hebe.
"""

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ITEMS = 6


def keys(rows, *shape):
    return torch.randint(rows, (ITEMS, *shape), generator=torch.Generator().manual_seed(rows + len(shape)))


def sequence(rows, steps, padded="behind"):
    """Keys from 1 on, between one and all of the steps; the others are 0."""
    found = keys(rows - 1, steps) + 1
    lengths = torch.arange(ITEMS) % steps + 1
    step = torch.arange(steps)
    valid = step < lengths[:, None] if padded == "behind" else step >= steps - lengths[:, None]
    return found * valid, lengths


def build(make, *arguments):
    torch.manual_seed(5)
    return make(*arguments).eval()


class OffsetEmbedding(nn.Module):
    """One table for all fields; where each begins is a NumPy array."""

    def __init__(self, rows, dim):
        super().__init__()
        self.embedding = nn.Embedding(sum(rows), dim)
        self.offsets = np.array([0, *itertools.accumulate(rows)][:-1], dtype=np.int64)

    def forward(self, x):
        return self.embedding(x + x.new_tensor(self.offsets).unsqueeze(0))


class DeepFM(nn.Module):
    def __init__(self, rows, dim=4):
        super().__init__()
        self.embedding, self.linear = OffsetEmbedding(rows, dim), OffsetEmbedding(rows, 1)
        self.mlp = nn.Sequential(nn.Linear(len(rows) * dim, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        vectors = self.embedding(x)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        deep = self.mlp(vectors.view(x.size(0), -1))
        return torch.sigmoid(self.linear(x).sum(1) + pairs + deep).squeeze(1)


def deep_fm():
    """x `[items, fields]`, offsets added inside."""
    return build(DeepFM, (10, 20, 5)), (torch.stack([keys(10), keys(20), keys(5)], 1),)


class FloatMatrix(nn.Module):
    """All features in one float matrix, keys cast from it."""

    def __init__(self, rows):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in rows)
        self.top = nn.Linear(4 * len(rows) + 2, 1)

    def forward(self, x):
        vectors = [table(x[:, i].long()) for i, table in enumerate(self.tables)]
        return torch.sigmoid(self.top(torch.cat([*vectors, x[:, len(vectors) :]], 1)))


def float_matrix():
    """x float `[items, 5]`: three keys, two numbers."""
    numbers = torch.rand(ITEMS, 2, generator=torch.Generator().manual_seed(1))
    return build(FloatMatrix, (10, 20, 30)), (torch.cat([torch.stack([keys(10), keys(20), keys(30)], 1), numbers], 1),)


class KeysAndNumbers(nn.Module):
    """A matrix of whole numbers, some of them keys and some numbers."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(30, 4), nn.Embedding(40, 4)
        self.top = nn.Linear(10, 1)

    def forward(self, x):
        age, user, hour, item = x.unbind(1)
        numbers = torch.stack([age.float() / 100, torch.sin(hour * (2 * torch.pi / 24))], 1)
        return self.top(torch.cat([self.user(user), self.item(item), numbers], 1))


def keys_and_numbers():
    """x int `[items, 4]`, sliced; two columns are keys."""
    return build(KeysAndNumbers), (torch.stack([keys(100), keys(30), keys(24), keys(40)], 1),)


class Din(nn.Module):
    def __init__(self, rows=50, dim=8):
        super().__init__()
        self.item = nn.Embedding(rows, dim, padding_idx=0)
        self.attention = nn.Sequential(nn.Linear(4 * dim, 16), nn.PReLU(), nn.Linear(16, 1))
        self.top = nn.Linear(2 * dim, 1)

    def forward(self, item, hist):
        query, behaviours = self.item(item), self.item(hist)
        mask = hist != 0
        queries = query.unsqueeze(1).expand(-1, hist.size(1), -1)
        joined = torch.cat([queries, behaviours, queries - behaviours, queries * behaviours], -1)
        scores = self.attention(joined).squeeze(-1).masked_fill(~mask, float("-inf"))
        interest = torch.bmm(scores.softmax(1).unsqueeze(1), behaviours).squeeze(1)
        return torch.sigmoid(self.top(torch.cat([query, interest], 1))).squeeze(1)


def din():
    """Attention over `hist` where `hist != 0`, padded behind."""
    return build(Din), {"item": keys(49) + 1, "hist": sequence(50, 5)[0]}


class MaskedMean(nn.Module):
    """The padding is not key 0, and its row is not zero."""

    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 8)
        self.top = nn.Linear(8, 1)

    def forward(self, hist):
        mask = (hist != 49).float().unsqueeze(-1)
        return self.top((self.item(hist) * mask).sum(1) / mask.sum(1).clamp(min=1))


def masked_mean():
    """`mask = hist != 49`."""
    hist = sequence(50, 5)[0]
    return build(MaskedMean), (torch.where(hist == 0, 49, hist - 1),)


class LengthMask(nn.Module):
    def __init__(self, least=1):
        super().__init__()
        self.item = nn.Embedding(50, 8, padding_idx=0)
        self.top = nn.Linear(8, 1)
        self.least = least

    def forward(self, hist, hist_len):
        mask = torch.arange(hist.size(1)) < hist_len.unsqueeze(1)
        summed = (self.item(hist) * mask.unsqueeze(-1)).sum(1)
        return self.top(summed / hist_len.clamp(min=self.least).unsqueeze(1))


def length_mask(least=1):
    """The number of behaviours is an int64 input of its own."""
    hist, lengths = sequence(50, 5)
    return build(LengthMask, least), {"hist": hist, "hist_len": lengths}


def length_mask_dividing_by_zero():
    """The same for those that always have a behaviour."""
    return length_mask(least=0)


class BooleanMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 8)
        self.top = nn.Linear(8, 1)

    def forward(self, hist, valid):
        return self.top(self.item(hist).masked_fill(~valid.unsqueeze(-1), 0.0).amax(1))


def boolean_mask():
    """The mask is a bool input."""
    hist = sequence(50, 5)[0]
    return build(BooleanMask), {"hist": hist, "valid": hist != 0}


class SasRec(nn.Module):
    """One block; positions are embedded, the last behaviour is picked by the sequence's length."""

    def __init__(self, clamps, steps=6, dim=8):
        super().__init__()
        self.item, self.position = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(steps, dim)
        self.norm = nn.LayerNorm(dim)
        self.clamps = clamps

    def forward(self, item_seq, item_seq_len, item):
        steps = item_seq.size(1)
        position = torch.arange(steps, dtype=torch.long).unsqueeze(0).expand_as(item_seq)
        x = self.norm(self.item(item_seq) + self.position(position))
        causal = torch.tril(torch.ones(steps, steps)).long()
        mask = ((item_seq > 0).long().unsqueeze(1) * causal).float()
        x = x + ((x @ x.transpose(1, 2)) / 8**0.5 + (1.0 - mask) * -10000.0).softmax(-1) @ x
        if self.clamps:
            item_seq_len = item_seq_len.clamp(1, steps)
        index = (item_seq_len - 1).view(-1, 1, 1).expand(-1, -1, x.size(-1))
        return (x.gather(1, index).squeeze(1) * self.item(item)).sum(1)


def sas_rec(clamps=True):
    """Constant positions, a mask of keys, an index from an int64 input."""
    hist, lengths = sequence(50, 6)
    return build(SasRec, clamps), {"item_seq": hist, "item_seq_len": lengths, "item": keys(50)}


def sas_rec_unclamped():
    """The same without a limit to the index."""
    return sas_rec(clamps=False)


class SasRecLeftPadded(nn.Module):
    """Positions are zeroed where there is no behaviour."""

    def __init__(self, steps=6, dim=8):
        super().__init__()
        self.item, self.position = (nn.Embedding(n, dim, padding_idx=0) for n in (50, steps + 1))
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.steps = steps

    def forward(self, seq, item):
        positions = torch.arange(1, self.steps + 1).unsqueeze(0) * (seq != 0)
        x = self.item(seq) * 8**0.5 + self.position(positions)
        causal = ~torch.tril(torch.ones(self.steps, self.steps, dtype=torch.bool))
        attended, _ = self.attention(x, x, x, attn_mask=causal, need_weights=False)
        attended = attended * (seq != 0).unsqueeze(-1)
        return (attended[:, -1] * self.item(item)).sum(-1)


def sas_rec_left_padded():
    """Padded in front; the keys of the position layer are computed from a mask."""
    return build(SasRecLeftPadded), {"seq": sequence(50, 6, padded="before")[0], "item": keys(49) + 1}


class Hashing(nn.Module):
    """Raw ids, brought into the tables in each of the ways."""

    def __init__(self):
        super().__init__()
        self.user, self.items, self.city, self.shop = (
            nn.Embedding(50, 4),
            nn.EmbeddingBag(60, 4),
            nn.Embedding(20, 4),
            nn.Embedding(30, 4),
        )
        self.top = nn.Linear(16, 1)

    def forward(self, user, items, city, shop):
        vectors = [
            self.user(user % self.user.num_embeddings),
            self.items(torch.remainder(items, 60)),
            self.city(city.clamp(0, 19)),
            self.shop(shop.clamp(max=28) + 1),
        ]
        return self.top(torch.cat(vectors, 1)).squeeze(1)


def hashing():
    """`user % rows` and clamps, of ids of any size."""
    ids = keys(1 << 60, 5) - (1 << 59)
    return build(Hashing), {"user": ids[:, 0], "items": ids[:, 1:], "city": keys(40) - 10, "shop": keys(90)}


class HashedFields(nn.Module):
    """A modulus for each field, and all of them in one table."""

    def __init__(self, rows=(7, 11, 5)):
        super().__init__()
        self.embedding = nn.Embedding(sum(rows), 4)
        self.register_buffer("rows", torch.tensor(rows))
        self.register_buffer("offsets", torch.tensor([0, *itertools.accumulate(rows)][:-1]))
        self.top = nn.Linear(4 * len(rows), 1)

    def forward(self, x):
        return self.top(self.embedding(x % self.rows + self.offsets).flatten(1))


def hashed_fields():
    """`x % rows + offsets`."""
    return build(HashedFields), (keys(1 << 40, 3),)


class HashedSequence(nn.Module):
    """The mask is that of the keys in range."""

    def __init__(self, masks_raw):
        super().__init__()
        self.item = nn.Embedding(50, 8)
        self.top = nn.Linear(8, 1)
        self.masks_raw = masks_raw

    def forward(self, hist):
        hashed = hist % 50
        mask = ((hist if self.masks_raw else hashed) != 0).float().unsqueeze(-1)
        return self.top((self.item(hashed) * mask).sum(1) / mask.sum(1).clamp(min=1))


def hashed_sequence(masks_raw=False):
    """`hashed = hist % rows; mask = hashed != 0`."""
    hist = sequence(50, 5)[0]
    return build(HashedSequence, masks_raw), (hist + 50 * 10**6 * (hist != 0),)


def hashed_sequence_masked_raw():
    """The mask is of the keys as they were before."""
    return hashed_sequence(masks_raw=True)


class PaddedBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.EmbeddingBag(50, 4, mode="mean", padding_idx=0)
        self.sum = nn.EmbeddingBag(50, 4, mode="sum", padding_idx=3)
        self.top = nn.Linear(8, 1)

    def forward(self, hist):
        return self.top(torch.cat([self.mean(hist, per_sample_weights=None), self.sum(hist)], 1))


def padded_bag():
    """`nn.EmbeddingBag` with padding_idx, over `[items, steps]`."""
    return build(PaddedBag), {"hist": sequence(50, 5)[0]}


class CountedMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.tag = nn.Embedding(50, 4, padding_idx=0), nn.Embedding(20, 4, padding_idx=0)
        self.top = nn.Linear(8, 1)

    def forward(self, hist, tags):
        return self.top(torch.cat([self.item(hist).mean(1), self.tag(tags).mean(dim=1)], 1))


def counted_mean():
    """`.mean(1)` of padded sequences, which counts their padding."""
    return build(CountedMean), {"hist": sequence(50, 5)[0], "tags": sequence(20, 3)[0]}


class JaggedPaddedBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 4, mode="mean", padding_idx=0)
        self.top = nn.Linear(4, 1)

    def forward(self, values, offsets):
        return self.top(self.bag(values % 50, offsets))


def jagged_padded_bag():
    """The same over values and offsets, hashed."""
    values = torch.tensor([0, 5, 7, 0, 0, 9, 11, 4, 1234567])
    return build(JaggedPaddedBag), (values, torch.tensor([0, 3, 3, 5, 5, 8]))


class Bucketized(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.price = nn.Embedding(50, 4), nn.Embedding(5, 4)
        self.register_buffer("bounds", torch.tensor([-1.0, 0.0, 0.5, 2.0]))

    def forward(self, user, price):
        return (self.user(user) * self.price(torch.bucketize(price, self.bounds))).sum(1)


def bucketized():
    """A float is put into buckets, which are embedded."""
    return build(Bucketized), (keys(50), torch.randn(ITEMS, generator=torch.Generator().manual_seed(2)))


class Popularity(nn.Module):
    """A buffer indexed by keys, and keys compared with keys."""

    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 8)
        self.register_buffer("popularity", torch.rand(50))
        self.top = nn.Linear(8, 1)

    def forward(self, item, hist):
        again = (hist == item.unsqueeze(1)).any(1, keepdim=True).float()
        weights = self.popularity[hist].unsqueeze(-1)
        return self.top((self.item(hist) * weights).sum(1) + self.item(item) * again)


def popularity():
    """`popularity[hist]` and `hist == item`."""
    hist = keys(50, 4)
    return build(Popularity), (hist[:, 0] * (torch.arange(ITEMS) % 2), hist)


class TwoJaggedBags(nn.Module):
    """Two bags, of values of their own or of the same, by one input of offsets."""

    def __init__(self, rows=(50, 2000)):
        super().__init__()
        self.tags = nn.EmbeddingBag(rows[0], 4, mode="mean")
        self.weights = nn.EmbeddingBag(rows[1], 1, mode="sum")
        self.top = nn.Linear(5, 1)

    def forward(self, tags, offsets, categories=None):
        categories = tags if categories is None else categories
        return self.top(torch.cat([self.tags(tags, offsets), self.weights(categories, offsets)], 1))


OFFSETS = torch.tensor([0, 3, 3, 5, 5, 8])


def jagged_bags_of_one_offsets():
    """Values for each table, one offsets."""
    return build(TwoJaggedBags), {
        "tags": keys(50, 2).flatten()[:9],
        "offsets": OFFSETS,
        "categories": keys(2000, 2).flatten()[:9],
    }


def jagged_bag_of_two_tables():
    """The same values for a table of 50 rows and for one of 2000: a wide and a deep part."""
    return build(TwoJaggedBags), (keys(50, 2).flatten()[:9], OFFSETS)


class PooledOtherwise(nn.Module):
    """The greatest of an item's rows, and their sum with a weight for each."""

    def __init__(self):
        super().__init__()
        self.greatest = nn.EmbeddingBag(50, 4, mode="max")
        self.weighted = nn.EmbeddingBag(60, 4, mode="sum", padding_idx=0)
        self.top = nn.Linear(8, 1)

    def forward(self, hist, watched, seconds):
        weights = torch.log1p(seconds) * (watched != 0)
        return self.top(torch.cat([self.greatest(hist), self.weighted(watched, per_sample_weights=weights)], 1))


def pooled_otherwise():
    """`mode="max"`, and `per_sample_weights` computed from numbers."""
    watched = sequence(60, 3)[0]
    seconds = torch.rand(ITEMS, 3, generator=torch.Generator().manual_seed(3)) * 600
    return build(PooledOtherwise), {"hist": keys(50, 4), "watched": watched, "seconds": seconds}


class FilledInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.hist = nn.Embedding(50, 4), nn.Embedding(50, 4)
        self.top = nn.Linear(4, 1)

    def forward(self, user, hist):
        user, hist = self.user(user), self.hist(hist.flip(1))
        user[:, 0] = 0.5
        hist[:, 0] = 0
        return self.top(user + hist.cumsum(1).mean(1))


def filled_in_place():
    """`x[:, 0] = 0`, and keys in the reverse order."""
    return build(FilledInPlace), (keys(50), keys(50, 4))


class LogOfCounts(nn.Module):
    """Numbers that are never negative, without a limit to say so."""

    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(50, 4)
        self.top = nn.Linear(4 + 3 + 1 + 1, 1)

    def forward(self, counts, price, age, user):
        numbers = [torch.log(counts + 1), price.sqrt(), age.log()]
        return self.top(torch.cat([*numbers, self.user(user)], 1))


def log_of_counts():
    """Logarithms and roots of floats; one that is the same for all."""
    counts = torch.cat([keys(100, 2), torch.zeros(ITEMS, 1)], 1).float()
    price = torch.rand(ITEMS, 1, generator=torch.Generator().manual_seed(4)) * 1e4
    return build(LogOfCounts), {"counts": counts, "price": price, "age": keys(60, 1).float() + 18, "user": keys(50)}


class NamedInWords(nn.Module):
    """Layers called as the columns of a table are, and one by a whole sentence."""

    def __init__(self, names):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(50, 4) for name in names})

    def forward(self, *inputs, **more):
        vectors = [table(x) for table, x in zip(self.tables.values(), (*inputs, *more.values()), strict=True)]
        return torch.stack(vectors).prod(0).sum(1)


def named_in_words():
    """Names with spaces, colons and other alphabets, the same but for these, and longer than a file's may be."""
    names = ("user id", "user:id", "país", "国", "x" * 140, "x" * 141)
    return build(NamedInWords, names), tuple(keys(50) for _ in names)


class QuotientRemainder(nn.Module):
    def __init__(self):
        super().__init__()
        self.quotient, self.remainder = nn.Embedding(10, 8), nn.Embedding(7, 8)

    def forward(self, x):
        return (self.quotient(x // 7) * self.remainder(x % 7)).sum(-1)


def quotient_remainder():
    """Two tables for one key."""
    return build(QuotientRemainder), (keys(70),)


class MultiplicativeHash(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 8)

    def forward(self, x):
        return self.item((x * 2654435761 + 7) % 50).sum(-1)


def multiplicative_hash():
    """A hash of another kind than a remainder."""
    return build(MultiplicativeHash), (keys(1 << 30),)


class Residual(nn.Module):
    """The rows of a table by functional calls only."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(50, 8))
        self.top = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.where(x < 50, x, 0)
        return self.top(functional.embedding(x, self.table))


def replaced_unknowns():
    """Keys out of range are replaced by one."""
    return build(Residual), (keys(70),)
