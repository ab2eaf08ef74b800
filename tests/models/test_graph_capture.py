import dataclasses
import functools
import itertools
import logging
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from hebe.models.graph_capture import GraphCaptureError, capture
from hebe.models.module_inputs import FlatModule
from hebe.models.repository import ModelRepository
from hebe.models.split_check import check_split, dense_net_inputs
from hebe.spec import ModelSpec, OutOfRange, Pooling, SlaTarget


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


TWO_BAGS = (floats(6, 3), keys(50, 6, 2), keys(30, 6, 5))
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


@pytest.mark.parametrize("case", SUPPORTED)
def test_the_split_model_equals_the_module(case):
    module, example, captured = captured_case(case)
    assert check_split(module, example, captured) <= 1e-6


@pytest.mark.parametrize("case", SUPPORTED)
def test_a_stored_import_gives_the_scores_of_the_module(tmp_path, case):
    module, example, captured = captured_case(case)
    stored = ModelRepository(tmp_path).write(captured.spec, captured.tables, captured.dense_state, captured.graph)
    assert stored.spec == captured.spec
    assert stored.spec.sla == SlaTarget(7.0, 99.0)
    assert stored.graph() == captured.graph
    flat = FlatModule(module, example)
    inputs = {source.name: source.example for source in flat.inputs}
    scores = stored.dense_net()(*dense_net_inputs(captured, inputs))
    expected = flat(*inputs.values())
    torch.testing.assert_close(scores, expected.reshape(len(scores), -1), rtol=0, atol=1e-6)


def test_what_the_features_of_a_module_are():
    _, _, captured = captured_case("columns")
    described = [(f.name, f.table, f.lookups, str(captured.sources[f.name])) for f in captured.spec.features]
    assert described == [
        ("x_0", "first", 1, "x column 0"),
        ("x_1", "first", 1, "x column 1"),
        ("x_2", "other", 1, "x column 2"),
    ]
    assert [(t.name, t.rows, t.dim) for t in captured.spec.tables] == [("first", 20, 4), ("other", 30, 2)]
    assert captured.spec.sequences == ()
    assert captured.spec.architecture == "imported"


def test_fields_side_by_side_become_tables_of_their_own():
    module, _, captured = captured_case("fields")
    tables = {table.name: table.rows for table in captured.spec.tables if table.name.startswith("embedding")}
    assert tables == {"embedding.0": 5, "embedding.1": 7, "embedding.2": 3}
    weight = module.embedding.weight.detach()
    torch.testing.assert_close(torch.from_numpy(captured.tables["embedding.1"]), weight[5:12], rtol=0, atol=0)
    assert captured.tables["embedding.1"].base is not None, "tables are views of the module's weights"


def test_sums_and_means_over_a_sequence_are_pooled_by_the_sparse_net():
    _, _, captured = captured_case("pooled sequence")
    pooling = {feature.name: (feature.pooling, feature.lookups) for feature in captured.spec.features}
    assert pooling == {
        "history": (Pooling.SUM, 3),  # of which the DenseNet makes the mean
        "history_0_1": (Pooling.CONCAT, 2),
    }


def test_dense_inputs_stand_side_by_side_in_order():
    _, _, captured = captured_case("many floats")
    assert captured.dense_columns == {"price": (0,), "image": (0, 1, 2, 3, 4, 5)}
    assert captured.spec.dense_dim == 7


def test_a_jagged_feature_may_have_more_keys_than_the_example():
    module, example = SUPPORTED["jagged"]
    assert capture(module, example, "model").spec.features[0].lookups == 4
    captured = capture(module, example, "model", lookups={"values": 20})
    assert captured.spec.features[0].lookups == 20
    assert check_split(module, example, captured) <= 1e-6
    with pytest.raises(GraphCaptureError, match="an item with 4 keys, more than allowed"):
        capture(module, example, "model", lookups={"values": 3})
    with pytest.raises(GraphCaptureError, match="lookups are given for users, which gives no jagged feature"):
        capture(module, example, "model", lookups={"users": 3})


def test_a_feature_is_never_called_what_the_protocol_reserves():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 2)

        def forward(self, score):
            return self.bag(score)

    captured = capture(Named(), (keys(9, 4, 2),), "model")
    assert captured.spec.features[0].name == "score.bag"


def test_layers_that_begin_with_an_underscore_get_names_that_may_be_stored():
    module = from_function(lambda m, x: m._e(x) + m.e(x), e=bag(), _e=bag())
    captured = capture(module, (keys(20, 6, 3),), "model")
    assert [table.name for table in captured.spec.tables] == ["e", "e_"]
    assert check_split(module, (keys(20, 6, 3),), captured) <= 1e-6


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


def transposed():
    """Its rows are a buffer, too, turned over."""
    made = from_function(lambda m, x: m.e(x).sum(1) @ m.t[:, :3], e=nn.Embedding(20, 2))
    made.register_buffer("t", made.e.weight.detach().t())
    return made


def flattened():
    """Some of its rows are another parameter's, too, in another shape."""
    made = from_function(lambda m, x: m.e(x).sum(1) + m.flat[:2], e=nn.Embedding(20, 2))
    made.flat = nn.Parameter(made.e.weight.detach().view(-1)[6:12])
    return made


def filled(layer):
    with torch.no_grad():
        layer.weight.fill_(1.0)
    return layer


def traced(module, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, example)


@dataclasses.dataclass
class Batch:
    keys: torch.Tensor


X = keys(20, 6, 3)
REFUSED = {
    r"layer bag: mode 'max' together with offsets is not supported; keys \[items, n\] without are": (
        from_function(lambda m, x, o: m.bag(x, o), bag=bag(mode="max")),
        (X[:, 0].repeat(2)[:9], torch.arange(6)),
    ),
    "layer bag: mode 'max' together with padding_idx": (
        from_function(lambda m, x: m.bag(x), bag=bag(mode="max", padding_idx=0)),
        (X,),
    ),
    "layer bag: per_sample_weights together with offsets": (
        from_function(lambda m, x, o: m.bag(x, o, (x != 0).float()), bag=bag(mode="sum")),
        (X[:, 0].repeat(2)[:9], torch.arange(6)),
    ),
    r"layer e: its keys are \[items, 0\] in the example": (
        from_function(lambda m, x, y: m.bag(x) + m.e(y).sum(1), bag=bag(), e=nn.Embedding(20, 2)),
        (X, X[:, :0]),
    ),
    "example inputs are Batch: give a tensor, a sequence or a mapping of tensors": (
        from_function(lambda m, batch: m.bag(batch.keys), bag=bag()),
        Batch(X),
    ),
    "the module is TorchScript, made by torch.jit.trace or torch.jit.script": (traced(TwoBags(), TWO_BAGS), TWO_BAGS),
    "layer bag: the row of its padding_idx 2 is not zero": (
        from_function(lambda m, x: m.bag(x), bag=filled(bag(padding_idx=2))),
        (X,),
    ),
    "layer bag: padding_idx together with constants": (
        from_function(lambda m, x: m.bag(x + 1), bag=nn.EmbeddingBag(30, 2, padding_idx=0)),
        (X,),
    ),
    "layer e: max_norm": (from_function(lambda m, x: m.e(x).sum(1), e=nn.Embedding(20, 2, max_norm=1.0)), (X,)),
    r"layer bag: its keys go through aten.remainder.Scalar \(.*\) after another op on them: only keys as they were": (
        from_function(lambda m, x: m.bag((x + 3) % 20), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.clamp.default \(test_graph_capture.py, line .*\) after another op": (
        from_function(lambda m, x: m.bag((x % 20).clamp(0, 19)), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.clamp.default .*: a server can raise keys to 0 only": (
        from_function(lambda m, x: m.bag(x.clamp(1, 19)), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys .* aten._to_copy.default \(.*, which changes keys beyond 2\^31, and then aten.remainder": (
        from_function(lambda m, x: m.bag(x.int() % 20), bag=bag()),
        (X,),
    ),
    r"layer e: its keys .* which changes keys beyond 2\^24, and then aten.clamp.default .*: drop the cast, or": (
        from_function(lambda m, x: m.e(x.float()[:, 1].clamp(0, 19).long()), e=nn.Embedding(20, 2)),
        (X.int(),),
    ),
    r"layer bag: its keys go through aten._to_copy.default .*, which changes keys beyond 2\^53, and then aten.min": (
        from_function(lambda m, x: m.bag(torch.minimum(x.double().long(), torch.tensor(19))), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.fmod.Scalar \(.*; a server can select columns, take keys modulo": (
        from_function(lambda m, x: m.bag(torch.fmod(x, 20)), bag=bag()),
        (X,),
    ),
    "layer bag: its keys are brought into the range of 21 rows, where it has 20 for them": (
        from_function(lambda m, x: m.bag(x % 21), bag=bag()),
        (X,),
    ),
    "layer bag: its keys are brought into the range of 5 and of 7 rows, where it has 20 for them": (
        from_function(lambda m, x: m.bag(x % torch.tensor([5, 7, 5])), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten._to_copy.default": (
        from_function(lambda m, x: m.bag(x.bool().long()), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.add": (
        from_function(lambda m, x, y: m.bag(x + y), bag=bag()),
        (X // 2, X // 2),
    ),
    "input inputs_0: its values become keys of table bag, but the example has 10.5: keys must be whole numbers": (
        from_function(lambda m, x: m.bag(x.long()), bag=bag()),
        (X.float() + 0.5 * (X[0, 0] == X),),
    ),
    r"layer bag: its keys go through aten.add.Tensor": (
        from_function(lambda m, x: m.bag((x + 0.5).long()), bag=bag()),
        (X.float(),),
    ),
    "layer e: its keys go through aten.floor_divide": (
        from_function(lambda m, x, y: m.bag(x) + m.e(y // 7), bag=bag(), e=nn.Embedding(20, 2)),
        (X, X[:, 0]),
    ),
    "layer e: its keys go through aten.mul.Tensor": (
        from_function(lambda m, x: m.e(x).sum(1) + m.e(x * 0).sum(1), e=nn.Embedding(20, 2)),
        (X,),
    ),
    "input inputs_1: aten.unsqueeze.default .* computes with column 0, whose example has 1700000000: a number": (
        from_function(lambda m, x, y: m.bag(x) * torch.cos(y[:, None] / 86400.0), bag=bag()),
        (X, torch.full((6,), 1_700_000_000)),
    ),
    r"input inputs_0 is read as it is by aten.ge.Scalar .* column 0 becomes keys .* \(clamp_low\)": (
        from_function(lambda m, x: (m.e(x.clamp(min=0)) * (x >= 0)[..., None]).sum(1), e=nn.Embedding(20, 2)),
        (X - 1,),
    ),
    r"input inputs_0 is jagged but is also read by aten.ne.Scalar \(test_graph_capture.py, line": (
        from_function(lambda m, x, o: m.bag(x, o) * (x != 0).sum(), bag=bag()),
        (X[:, 0].repeat(2)[:9], torch.arange(6)),
    ),
    "layer bag: an item's keys must be columns of that item's own inputs": (
        from_function(lambda m, x: m.bag(torch.cat([x[1:], x[:1]])), bag=bag()),
        (X,),
    ),
    "has no nn.Embedding or nn.EmbeddingBag layer that its result": (
        from_function(lambda m, x: m.bag(torch.zeros_like(x, dtype=torch.int64)), bag=bag()),
        (floats(6, 3),),
    ),
    "has no nn.Embedding": (from_function(lambda m, x: m.top(x)[:, 0], top=nn.Linear(3, 1)), (floats(6, 3),)),
    "layer e: its rows are read outside of embedding lookups": (
        from_function(lambda m, x: (m.e(x).sum(1) @ m.e.weight.T)[:, :2], e=nn.Embedding(20, 2)),
        (X,),
    ),
    "layer t: its rows are read outside of embedding lookups": (transposed(), (X,)),
    "layer flat: its rows are read outside of embedding lookups": (flattened(), (X,)),
    "its rows are computed by aten.mul.Tensor": (
        from_function(lambda m, x: functional.embedding(x, m.e.weight * 2).sum(1), e=nn.Embedding(20, 2)),
        (X,),
    ),
    r"layer e: in one call its keys lie in rows 0 to 29 and in another in rows 1 to 29, by the constants and": (
        from_function(lambda m, x: m.e(x[:, 0]) + m.e(x[:, 1] + 1), e=nn.Embedding(30, 2)),
        (X,),
    ),
    "the constant -1 that is added to its keys lies outside": (
        from_function(lambda m, x: m.e(x[:, 0] - 1), e=nn.Embedding(30, 2)),
        (X + 1,),
    ),
    "input inputs_0: the example has key 19, outside of the 2 rows of table e.0": (
        from_function(lambda m, x: m.e(x + torch.tensor([0, 2, 4])).sum(1), e=nn.Embedding(30, 2)),
        (X.clamp(19),),
    ),
    "layer e: its rows are torch.float64: must be float32": (
        from_function(lambda m, x: m.e(x).sum(1).float(), e=nn.Embedding(20, 2).double()),
        (X,),
    ),
    r"the module would fail on a query in which inputs_1 are -1000000: aten.embedding.default.*: clamp it": (
        from_function(lambda m, x, y: m.bag(x) + m.e((y.abs() * 2).long()), bag=bag(), e=nn.Embedding(99, 2)),
        (X, floats(6)),
    ),
    r"the module itself fails on \d+ random item\(s\): index 19 is out of bounds": (
        from_function(lambda m, x: m.bag(x) * torch.arange(19)[x].sum(1, keepdim=True), bag=bag()),
        (X.clamp(0, 18),),
    ),
    r"the module would fail on a query whose keys are all the last: aten.index.Tensor": (
        from_function(
            lambda m, x: m.e(x).sum(1) * torch.ones(150_000)[x].sum(1, keepdim=True), e=nn.Embedding(150_001, 2)
        ),
        (X,),
    ),
    "example input inputs_0 is float64": (from_function(lambda m, x: m.e(x), e=bag()), (floats(6, 3).double(),)),
    "example input inputs_1 is float: every input": (from_function(lambda m, x, y: m.e(x) * y, e=bag()), (X, 3.0)),
    "returns tuple: it must return one tensor": (from_function(lambda m, x: (m.e(x), m.e(x)), e=bag()), (X,)),
    r"returns float32 \[6, 3, 2\]": (from_function(lambda m, x: m.e(x), e=nn.Embedding(20, 2)), (X,)),
    r"give 1 score\(s\): give an example of at least two": (from_function(lambda m, x: m.e(x), e=bag()), (X[:1],)),
    r"input inputs_1 has shape \[1, 3\] but there are 6 scores": (
        from_function(lambda m, x, y: m.e(x) + y.sum(), e=bag()),
        (X, floats(1, 3)),
    ),
    r"it fixes the number of items to that of the example, 6": (
        from_function(lambda m, x: m.e(x.view(6, -1)), e=bag()),
        (X,),
    ),
    "the module fails on the example inputs: ": (from_function(lambda m, x: m.e(x), e=bag()), (X + 20,)),
    "the module changes input inputs_1 while it scores": (
        from_function(lambda m, x, y: m.e(x) + y.add_(1)[:, :2], e=bag()),
        (X, floats(6, 3)),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        check_split(module, example, capture(module, example, "model"))


@pytest.mark.parametrize(
    ("example", "in_range"),
    [
        (X, lambda x: (x % 20).int()),
        (X, lambda x: x.clamp(0, 19).float().long()),
        (X, lambda x: x.long() % 20),
        (X.int(), lambda x: x.long() % 20),
        (X.int(), lambda x: (x.double() % 20).long()),
        (X.float(), lambda x: x.long() % 20),
        (X.float(), lambda x: (x % 20).long()),
    ],
)
def test_casts_that_leave_any_key_what_it_is_may_stand_before_a_rule(example, in_range):
    module = from_function(lambda m, x: m.bag(in_range(x)), bag=bag())
    captured = capture(module, (example,), "model")
    assert captured.spec.features[0].out_of_range is not OutOfRange.REFUSE
    assert check_split(module, (example,), captured) <= 1e-6


@pytest.mark.parametrize("mode", ["max", "sum", "mean"])
def test_the_keys_of_a_maximum_are_sent_whole(mode):
    module = from_function(lambda m, x: m.bag(x) + m.one(x[:, :1]), bag=bag(mode=mode), one=bag(mode="max"))
    features = capture(module, (X,), "model").spec.features
    assert [(f.lookups, f.whole) for f in features] == [(3, mode == "max"), (1, False)]
    assert ModelSpec.from_dict(capture(module, (X,), "model").spec.to_dict()).features == features


def test_a_feature_is_sent_whole_where_one_of_its_layers_takes_the_maximum():
    module = from_function(
        lambda m, x: m.e(x).amax(1) + m.bag(x), e=nn.Embedding(20, 2), bag=nn.EmbeddingBag(20, 2, mode="max")
    )
    module.bag.weight = module.e.weight
    assert [f.whole for f in capture(module, (X,), "model").spec.features] == [True]


def test_scores_that_depend_on_other_items_are_refused():
    module = from_function(lambda m, x: torch.softmax(m.e(x), 0), e=bag())
    captured = capture(module, (X,), "model")
    with pytest.raises(GraphCaptureError, match="an item's score depends on the other items of its batch"):
        check_split(module, (X,), captured)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_a_sum_over_all_items_is_captured_as_it_is(reduce):
    module = from_function(lambda m, x: m.e(x)[:, 0] + reduce(m.e(x)) * m.zero, e=nn.Embedding(20, 1))
    module.register_buffer("zero", torch.zeros(1))
    captured = capture(module, (X,), "model")
    assert all(feature.pooling is Pooling.CONCAT for feature in captured.spec.features)
    assert check_split(module, (X,), captured) <= 1e-6
    module.zero += 1
    with pytest.raises(GraphCaptureError, match="an item's score depends on the other items of its batch"):
        check_split(module, (X,), capture(module, (X,), "model"))


def test_a_split_that_differs_is_refused():
    module, example, captured = captured_case("two bags")
    state = {name: weight + 1e-3 for name, weight in captured.dense_state.items()}
    with pytest.raises(GraphCaptureError, match=r"the captured model differs on the example: by .*, more than 1e-05"):
        check_split(module, example, dataclasses.replace(captured, dense_state=state))


def test_scores_that_are_not_finite_are_refused():
    module = from_function(lambda m, x: m.e(x) / 0, e=bag())
    with pytest.raises(GraphCaptureError, match=r"scores that are not finite on the example: check its weights$"):
        check_split(module, (X,), capture(module, (X,), "model"))


def test_numbers_that_spoil_the_scores_are_named():
    module = from_function(lambda m, x, y: m.e(x) / y.round(), e=bag())
    numbers = torch.tensor([-5.0, -2, 3, 6, 7, 8])[:, None]
    for example, where in (
        ((X, numbers * (numbers != 3)), r"the example: check its weights, and what it makes of inputs_1$"),
        ((X, numbers), r"\d+ random item\(s\): .* what it makes of inputs_1: each number of inputs_1 lies between"),
    ):
        with pytest.raises(GraphCaptureError, match=f"the module gives scores that are not finite on {where}"):
            check_split(module, example, capture(module, example, "model"))


def test_random_numbers_are_those_of_the_example():
    least, greatest = torch.tensor([-5.0, 0, 2, -4]), torch.tensor([5.0, 1, 3, -3])  # the second and last never differ
    seen = []

    def score(m, x, y):
        if not torch.compiler.is_exporting():
            seen.append(y)
        return m.e(x) * y.nan_to_num().sum(1, keepdim=True)

    module = from_function(score, e=bag())
    example = X, torch.tensor([[-5.0, 0, 2, -3], [5, 0, 3, -3], [0, torch.nan, torch.inf, -3]]).repeat(2, 1)[:, :4]
    example[1][2::3, 2] = 2.5
    captured = capture(module, example, "model")
    assert check_split(module, example, captured) <= 1e-6
    drawn = torch.cat([y for y in seen if not y.isnan().any()])
    assert len(drawn) == 1 + 2 + 7 + 32
    assert ((drawn >= least) & (drawn <= greatest)).all()
    assert (drawn.amax(0) - drawn.amin(0) > 0.8 * (greatest - least)).all()


def test_what_torch_cannot_trace_is_refused(monkeypatch):
    module, example, captured = captured_case("two bags")

    def fails(*_arguments, **_options):
        raise RuntimeError("INTERNAL ASSERT FAILED\n\nno such op")

    monkeypatch.setattr(torch.jit, "trace", fails)
    with pytest.raises(GraphCaptureError, match=r"captured model cannot be traced, as serving it needs: no such op$"):
        check_split(module, example, captured)


def test_a_module_that_ends_the_program_is_refused():
    module = from_function(lambda *_: sys.exit(0), e=bag())
    with pytest.raises(GraphCaptureError, match="the module fails on the example inputs: SystemExit: 0"):
        capture(module, (X,), "model")


def test_an_export_that_fails_is_told_by_the_error_alone(capfd, caplog):
    module = from_function(lambda m, x: m.e(x) if x.max() > 10 else m.e(x) * 2, e=bag())
    before = logging.root.manager.disable
    with pytest.raises(GraphCaptureError, match=r"torch.export cannot capture the module: Could not guard on data"):
        capture(module, (X,), "model")
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert logging.root.manager.disable == before


def test_inputs_of_any_name_become_features():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.values, self.e = bag(), bag()

        def forward(self, batch):
            return sum(self.values(x) + self.e(x) for x in batch.values())

    module, example = Named(), {"user id": X, "user:id": X, "x" * 200: X}
    captured = capture(module, example, "model")
    names = [feature.name for feature in captured.spec.features]
    long = "x" * 128
    assert names == ["user_id", "user_id.e", "user_id_", "user_id_.e", long, "x" * 126 + ".2"]
    assert check_split(module, example, captured) <= 1e-6


def test_progress_counts_the_comparisons():
    module, example, captured = captured_case("stacked")
    seen = []
    check_split(module, example, captured, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]
