import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from hebe.models.architectures import graph_module
from hebe.models.importing import graph_writer
from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.split_check import check_split
from hebe.spec import Pooling

from .small_modules import X, bag, captured_case, floats, from_function

SEQUENCES = torch.tensor([[5, 6, 0, 0], [1, 2, 3, 4], [7, 0, 0, 0], [9, 8, 3, 0]])
FEW = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])


class Pooled(nn.Module):
    """Scores the rows of a sequence as `pool` makes one vector of them, and notes what it was given."""

    def __init__(self, pool, layer):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.top = layer, nn.Linear(4, 1)
        nn.init.normal_(self.layer.weight)
        if layer.padding_idx is not None:
            layer.weight.data[layer.padding_idx] = 0
        self.pool, self.seen = pool, []

    def forward(self, hist):
        if not torch.compiler.is_exporting():
            self.seen.append(hist.clone())
        return self.top(self.pool(self.layer, hist))


def sequence_layer(padding=0):
    return nn.Embedding(20, 4, padding_idx=padding)


def capture_of(module, example=SEQUENCES):
    return capture(module, (example,), "model")


@pytest.mark.parametrize(
    ("pool", "layer"),
    [
        (lambda e, x: e(x).mean(1), sequence_layer()),
        (lambda e, x: e(x).mean(1), sequence_layer(None)),
        (lambda e, x: e(x).sum(1), sequence_layer(None)),
        (lambda e, x: e(x).amax(1), sequence_layer()),
        (lambda e, x: (e(x) * (x != 0)[..., None]).sum(1) / (x != 0).sum(1, keepdim=True), sequence_layer()),
        (lambda e, x: e(x), nn.EmbeddingBag(20, 4, mode="sum")),
        (lambda e, x: e(x), nn.EmbeddingBag(20, 4, mode="mean", padding_idx=0)),
        (lambda e, x: e(x), nn.EmbeddingBag(20, 4, mode="mean")),
        (lambda e, x: e(x), nn.EmbeddingBag(20, 4, mode="max")),
    ],
)
@pytest.mark.parametrize("zero", [False, True])
def test_sequences_are_compared_without_their_padding_where_that_may_be_left_out(pool, layer, zero):
    module = Pooled(pool, layer)
    if layer.padding_idx is None and zero:
        layer.weight.data[0] = 0
    assert check_split(module, (SEQUENCES,), capture_of(module)) <= 1e-6


def test_a_mean_that_leaves_the_padding_out_where_the_module_counts_it_is_refused():
    module = Pooled(lambda e, x: e(x).mean(1), sequence_layer())
    captured = capture_of(module)
    ops = tuple(
        dataclasses.replace(op, arguments=(op.arguments[0], 1)) if op.target == "aten.div.Scalar" else op
        for op in captured.graph.ops
    )
    features = tuple(dataclasses.replace(f, pooling=Pooling.MEAN) for f in captured.spec.features)
    wrong = dataclasses.replace(
        captured,
        spec=dataclasses.replace(captured.spec, features=features),
        graph=dataclasses.replace(captured.graph, ops=ops),
    )
    with pytest.raises(GraphCaptureError, match="without the padding of hist the captured model differs from the modu"):
        check_split(module, (SEQUENCES,), wrong)


def test_items_and_modules_that_cannot_do_with_more_padding_are_left_out():
    divides = Pooled(lambda e, x: e(x).sum(1) / (x[:, 1:] != 0).sum(1, keepdim=True), sequence_layer())
    full = SEQUENCES.clamp(min=1)
    assert check_split(divides, (full,), capture_of(divides, full)) <= 1e-6

    def fails(e, x):
        if not torch.compiler.is_exporting() and (x[:, 1:] == 0).all(1).any():
            raise ValueError("at least two keys, please")
        return e(x).sum(1)

    module = Pooled(fails, sequence_layer())
    assert check_split(module, (full,), capture_of(module, full)) <= 1e-6
    assert (module.seen[-1][:, 1:] == 0).all(1).any(), "which it was asked last"


@pytest.mark.parametrize(
    ("rule", "dtype", "least", "greatest"),
    [
        (lambda x: x % 20, torch.int64, -(2**60), 2**60),
        (lambda x: x % 20, torch.int32, -(2**28), 2**28),
        (lambda x: (x % 20).long(), torch.float32, -(2**21), 2**21),
        (lambda x: x.clamp(0, 19), torch.int64, -(2**60), 2**60),
        (lambda x: x.clamp(min=0), torch.int64, -(2**60), 19),
        (lambda x: x.clamp(max=19), torch.int64, 0, 2**60),
        (lambda x: x, torch.int64, 0, 19),
    ],
)
def test_random_keys_are_any_that_the_model_takes(rule, dtype, least, greatest):
    module = Pooled(lambda e, x: e(rule(x)).sum(1), sequence_layer(None))
    assert check_split(module, (FEW.to(dtype),), capture_of(module, FEW.to(dtype))) <= 1e-6
    seen = torch.cat([x.flatten() for x in module.seen])
    assert seen.min() >= 0 if least == 0 else seen.min() <= least
    assert seen.max() <= 19 if greatest == 19 else seen.max() >= greatest
    assert ((seen >= 0) & (seen < 20)).any()


def test_a_module_that_draws_random_numbers_is_told_so():
    module = Pooled(lambda e, x: functional.dropout(e(x).sum(1)), sequence_layer())
    with pytest.raises(GraphCaptureError, match="the module draws random numbers: run on the example twice, its"):
        check_split(module, (SEQUENCES,), capture_of(module))


REFUSED = {
    "would fail on a query whose numbers lie between 0 and 1, as those that a server warms up with: aten.index": (
        from_function(lambda m, x, y: m.bag(x) * torch.arange(9.0)[(y - 99).long()], bag=bag()),
        (X, torch.tensor([[99.0], [107.0]]).repeat(3, 1)),
    ),
    r"the module would fail on a query in which inputs_1 are -1000000: aten.embedding.default.*: clamp it": (
        from_function(lambda m, x, y: m.bag(x) + m.e((y.abs() * 2).long()), bag=bag(), e=nn.Embedding(99, 2)),
        (X, floats(6)),
    ),
    r"the module would fail on a query whose numbers .*: aten.*cholesky.* is not positive-definite\)\.$": (
        from_function(
            lambda m, x, y: m.bag(x) + torch.linalg.cholesky(y.reshape(-1, 2, 2)).flatten(1)[:, :2], bag=bag()
        ),
        (X, torch.eye(2).flatten().expand(6, 4)),
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
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_would_fail_a_batch_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        check_split(module, example, capture(module, example, "model"))


def test_scores_that_depend_on_other_items_are_refused():
    module = from_function(lambda m, x: torch.softmax(m.e(x), 0), e=bag())
    captured = capture(module, (X,), "model")
    with pytest.raises(GraphCaptureError, match="an item's score depends on the other items of its batch"):
        check_split(module, (X,), captured)


def test_a_split_that_differs_is_refused():
    module, example, captured = captured_case("two bags")
    state = {name: weight + 1e-3 for name, weight in captured.dense_state.items()}
    with pytest.raises(GraphCaptureError, match=r"the captured model differs on the example: by .*, more than 1e-05"):
        check_split(module, example, dataclasses.replace(captured, dense_state=state))


def test_what_is_compared_is_traced_as_a_server_traces_it(monkeypatch):
    """On invented numbers: were a number of the traced batch frozen, these would have another than the cases have."""
    for refusing in (graph_module, graph_writer):
        monkeypatch.setattr(refusing, "frozen_number", lambda _ops: None)

    def cropped(m, x, lengths):
        rows = m.e(x) * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        return rows[:, : lengths.max()].sum(1)

    module, example = from_function(cropped, e=nn.Embedding(20, 2)), (X, torch.tensor([3, 2, 2, 1, 3, 2]))
    captured = capture(module, example, "model")
    with pytest.raises(GraphCaptureError, match="the captured model differs on the example"):
        check_split(module, example, captured)


def test_scores_that_are_not_finite_are_refused():
    module = from_function(lambda m, x: m.e(x) / 0, e=bag())
    with pytest.raises(GraphCaptureError, match=r"scores that are not finite on the example: check its weights$"):
        check_split(module, (X,), capture(module, (X,), "model"))


def test_rows_that_are_not_finite_are_refused_also_where_no_key_drawn_reads_them():
    module = from_function(lambda m, x: m.e(x), e=nn.EmbeddingBag(100_000, 2))
    module.e.weight.data[77_777, 1] = torch.nan
    with pytest.raises(GraphCaptureError, match=r"table e: row 77777 is not finite: check the module's weights$"):
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


def test_progress_counts_the_comparisons():
    module, example, captured = captured_case("stacked")
    seen = []
    check_split(module, example, captured, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]
