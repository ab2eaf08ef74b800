import pytest
import torch
from torch import nn

from hebe.models.importing.graph_capture import GraphCaptureError, capture

from .small_modules import X, bag, captured_case, from_function, keys


def test_dense_inputs_stand_side_by_side_in_order():
    _, _, captured = captured_case("many floats")
    assert captured.dense_columns == {"price": (0,), "image": (0, 1, 2, 3, 4, 5)}
    assert captured.spec.dense_dim == 7


REFUSED = {
    "input inputs_1: aten.unsqueeze.default .* computes with column 0, whose example has 1700000000: a number": (
        from_function(lambda m, x, y: m.bag(x) * torch.cos(y[:, None] / 86400.0), bag=bag()),
        (X, torch.full((6,), 1_700_000_000)),
    ),
    r"input inputs_0 is read as it is by aten.ge.Scalar .* column 0 becomes keys .* \(clamp_low\)": (
        from_function(lambda m, x: (m.e(x.clamp(min=0)) * (x >= 0)[..., None]).sum(1), e=nn.Embedding(20, 2)),
        (X - 1,),
    ),
    r"input inputs_0 is jagged but is also read by aten.ne.Scalar \(small_modules.py, line": (
        from_function(lambda m, x, o: m.bag(x, o) * (x != 0).sum(), bag=bag()),
        (X[:, 0].repeat(2)[:9], torch.arange(6)),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


def columns_read(read):
    """The columns of an input of ten whole numbers that a module reads beside its key, column 9."""
    module = from_function(lambda m, x: m.bag(x[:, 9:]) * read(x).float().sum(1, keepdim=True), bag=bag())
    captured = capture(module, (keys(20, 6, 10),), "model")
    return captured.dense_columns.get("inputs_0", ()), captured.spec.reads_keys


@pytest.mark.parametrize(
    ("read", "columns", "reads_keys"),
    [
        (lambda x: x[:, 2:4], (2, 3), False),
        (lambda x: torch.cat([x[:, 7:8], x[:, 2:3]], 1), (2, 7), False),
        (lambda x: x[:, 0:9:3], (0, 3, 6), False),
        (lambda x: x[:, 0:9:2], (0, 1, 2, 3, 4, 5, 6, 7, 8), True),  # five runs: put together of all columns
        (lambda x: x[:, 8:], (8,), True),
        (lambda x: x.new_ones(len(x), 1), (), False),
    ],
)
def test_only_the_columns_that_are_read_are_sent(read, columns, reads_keys):
    assert columns_read(read) == (columns, reads_keys)


def test_numbers_whole_in_float32_may_be_whole_numbers_and_no_larger():
    module = from_function(lambda m, x, y: m.bag(x) * y[:, None].float().cos(), bag=bag())
    largest = torch.full((6,), 1 << 24)
    assert capture(module, (X, -largest), "model").dense_columns == {"inputs_1": (0,)}
    with pytest.raises(GraphCaptureError, match="whose example has 16777217: a number comes as float32"):
        capture(module, (X, -largest - 1), "model")


def test_what_nothing_reads_is_not_asked_for_unless_it_is_a_number():
    module = from_function(lambda m, x, _y, _z: m.bag(x), bag=bag())
    captured = capture(module, (X, X[:, 0], X[:, 0].float()), "model")
    assert captured.dense_columns == {"inputs_2": (0,)}
