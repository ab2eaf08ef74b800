import pytest
import torch
from torch import nn
from torch.nn import functional

from hebe.models.importing import embedding_cut
from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.split_check import check_split
from hebe.spec import Pooling
from tests.models import public_modules

from .small_modules import X, bag, captured_case, floats, from_function


def filled(layer):
    with torch.no_grad():
        layer.weight.fill_(1.0)
    return layer


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
    "layer bag: the row of its padding_idx 2 is not zero": (
        from_function(lambda m, x: m.bag(x), bag=filled(bag(padding_idx=2))),
        (X,),
    ),
    "layer bag: padding_idx together with constants": (
        from_function(lambda m, x: m.bag(x + 1), bag=nn.EmbeddingBag(30, 2, padding_idx=0)),
        (X,),
    ),
    "layer e: max_norm": (from_function(lambda m, x: m.e(x).sum(1), e=nn.Embedding(20, 2, max_norm=1.0)), (X,)),
    "has no nn.Embedding or nn.EmbeddingBag layer that its result": (
        from_function(lambda m, x: m.bag(torch.zeros_like(x, dtype=torch.int64)), bag=bag()),
        (floats(6, 3),),
    ),
    "has no nn.Embedding": (from_function(lambda m, x: m.top(x)[:, 0], top=nn.Linear(3, 1)), (floats(6, 3),)),
    "its rows are computed by aten.mul.Tensor": (
        from_function(lambda m, x: functional.embedding(x, m.e.weight * 2).sum(1), e=nn.Embedding(20, 2)),
        (X,),
    ),
    "layer e: its rows are torch.float64: must be float32": (
        from_function(lambda m, x: m.e(x).sum(1).float(), e=nn.Embedding(20, 2).double()),
        (X,),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


def test_sums_and_means_over_a_sequence_are_pooled_by_the_sparse_net():
    _, _, captured = captured_case("pooled sequence")
    pooling = {feature.name: (feature.pooling, feature.lookups) for feature in captured.spec.features}
    assert pooling == {
        "history": (Pooling.SUM, 3),  # of which the DenseNet makes the mean
        "history_0_1": (Pooling.CONCAT, 2),
    }


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


def test_a_large_table_whose_keys_are_computed_is_refused(monkeypatch):
    module, example = public_modules.sas_rec_left_padded()
    monkeypatch.setattr(embedding_cut, "MOST_BYTES_LEFT", module.position.weight.nbytes - 1)
    with pytest.raises(
        GraphCaptureError, match=r"layer position: its keys go through aten.ne.Scalar \(public_modules.py"
    ):
        capture(module, example, "model")
