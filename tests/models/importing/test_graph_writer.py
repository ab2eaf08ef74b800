import json

import pytest
import torch
from torch import nn

from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.split_check import check_split
from hebe.op_graph import OpGraph

from .small_modules import X, bag, floats, from_function

LENGTHS = torch.tensor([3, 2, 2, 1, 3, 2])


def scored(function):
    """A module of a sequence, masked, and its lengths."""

    def score(m, x, lengths):
        rows = m.e(x) * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        return function(m, rows, lengths)

    return from_function(score, e=nn.Embedding(20, 2))


TAKES_A_NUMBER = [
    scored(lambda _, rows, lengths: rows[:, : lengths.max()].sum(1)),
    scored(lambda _, rows, lengths: rows[:, : lengths.max().item()].sum(1)),
    scored(lambda _, rows, lengths: rows.narrow(1, 0, lengths.max().item()).sum(1)),
    scored(lambda _, rows, lengths: rows.sum(1) * (lengths / lengths.max().item())[:, None]),
    scored(lambda _, rows, lengths: rows.sum(1) * lengths.sum().tolist()),
    from_function(lambda m, x, _: m.e(x)[:, : (x != 0).sum(1).max()].sum(1), e=nn.Embedding(20, 2)),
    from_function(lambda m, x, _: m.e(x).sum(1) * m.e(x).max().item(), e=nn.Embedding(20, 2)),
]


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


REFUSED = {
    "layer e: its rows are read outside of embedding lookups": (
        from_function(lambda m, x: (m.e(x).sum(1) @ m.e.weight.T)[:, :2], e=nn.Embedding(20, 2)),
        (X,),
    ),
    "layer t: its rows are read outside of embedding lookups": (transposed(), (X,)),
    "layer flat: its rows are read outside of embedding lookups": (flattened(), (X,)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


@pytest.mark.parametrize("module", TAKES_A_NUMBER)
def test_a_number_taken_out_of_the_batch_is_refused_for_a_trace_would_keep_its_own(module):
    with pytest.raises(
        GraphCaptureError,
        match=r"aten\.item\.default \(.*line \d+: .*takes a number out of the batch, .*: keep it a tensor",
    ):
        capture(module, (X, LENGTHS), "model")


def test_a_number_taken_out_of_a_weight_stays_that_number():
    module = scored(lambda m, rows, _: rows.sum(1) * m.scales.max().item())
    module.register_buffer("scales", torch.tensor([2.0, 3.0]))
    assert check_split(module, (X, LENGTHS), capture(module, (X, LENGTHS), "model")) <= 1e-6


def test_arguments_of_every_kind_survive_as_json():
    def score(m, x):
        y = m.e(x).masked_fill(x[..., None] == 3, float("-inf")).amax(1).clamp(-2.0, float("inf"))
        return y.to(torch.float64, memory_format=torch.contiguous_format).float() + torch.ones(2, dtype=torch.float32)

    module = from_function(score, e=nn.Embedding(20, 2))
    captured = capture(module, (X,), "model")
    text = json.dumps(captured.graph.to_dict(), allow_nan=False)
    assert OpGraph.from_dict(json.loads(text)) == captured.graph
    assert {"float": "-inf"} in [argument for op in captured.graph.ops for argument in op.arguments]
    assert check_split(module, (X,), captured) <= 1e-6


def test_what_gives_its_argument_as_it_is_leaves_no_op():
    module = from_function(lambda m, x: m.top(m.drop(m.bag(x)[:])), bag=bag(), drop=nn.Dropout(), top=nn.Linear(2, 1))
    graph = capture(module, (X,), "model").graph
    assert [op.target for op in graph.ops] == ["aten.linear.default", "aten.reshape.default"]


BY_POSITION = {
    "reshaped": lambda m, x, y: (m.part(m.e(x).reshape(-1, 2)).relu().reshape(len(x), -1), m.user(y[:, 0])),
    "viewed": lambda m, x, y: (m.part(m.e(x).view(len(x) * 3, 2)).relu().view(len(x), 3), m.user(y[:, 0])),
    "flattened": lambda m, x, y: (m.part(m.e(x).flatten(0, 1)).unflatten(0, (-1, 3)).flatten(1), m.user(y[:, 0])),
    "masked": lambda m, x, y: ((m.e(x).reshape(-1, 2) * (x != 0).view(-1, 1)).view(len(x), -1), m.user(y[:, 0])),
}


@pytest.mark.parametrize("score", BY_POSITION.values(), ids=BY_POSITION)
def test_items_and_positions_are_merged_beside_other_features(score):
    """The module's view of a layer's output is of some columns of `sparse`, which allow none."""
    module = from_function(
        lambda m, x, y: torch.cat(score(m, x, y), 1),
        e=nn.Embedding(20, 2),
        user=nn.Embedding(20, 2),
        part=nn.Linear(2, 1),
    )
    assert check_split(module, (X, X[:, :1]), capture(module, (X, X[:, :1]), "model")) <= 1e-6


def test_only_weights_that_are_read_are_stored_under_their_names():
    module = from_function(
        lambda m, x: m.top(m.bag(x)) * m.scale, bag=bag(), top=nn.Linear(2, 1), never=nn.Linear(2, 1)
    )
    module.register_buffer("scale", torch.ones(1))
    state = capture(module, (X,), "model").dense_state
    assert set(state) == {"top.weight", "top.bias", "scale"}
    assert state["top.weight"].data_ptr() == module.top.weight.data_ptr(), "not a copy"


def test_every_op_that_the_module_had_is_known_by_its_line():
    module = from_function(lambda m, x, y: m.bag(x) * y.exp(), bag=bag())
    captured = capture(module, (X, floats(6, 2)), "model")
    assert set(captured.origins) < {op.name for op in captured.graph.ops}
    assert [origin.partition(" (small_modules.py, line ")[0] for origin in captured.origins.values()] == [
        "aten.exp.default",
        "aten.mul.Tensor",
    ]


def test_the_number_of_items_is_that_of_sparse_and_the_number_of_values_is_nothing_to_compute_with():
    jagged = (X.flatten()[:9], torch.tensor([0, 2, 2, 5]))
    by_items = from_function(lambda m, x, starts: m.bag(x, starts) / torch.ones(starts.shape[0], 1), bag=bag())
    captured = capture(by_items, jagged, "model")
    assert ("aten.sym_size.int", ({"input": "sparse"}, 0)) in [(op.target, op.arguments) for op in captured.graph.ops]
    assert check_split(by_items, jagged, captured) <= 1e-6
    by_values = from_function(lambda m, x, starts: m.bag(x, starts) / x.shape[0], bag=bag())
    with pytest.raises(GraphCaptureError, match="computes with the number of values of inputs_0: not supported"):
        capture(by_values, jagged, "model")
