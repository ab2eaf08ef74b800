import dataclasses
import sys
import warnings

import pytest
import torch
from torch import nn

from hebe.models.importing.module_inputs import FlatModule, GraphCaptureError, usable_name
from hebe.spec import EmbeddingTableSpec

from .small_modules import TWO_BAGS, TwoBags, X, bag, floats, from_function


def traced(module, example):
    """Not compared with the module: that would import seconds' worth of torch into whatever collects this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, example, check_trace=False)


@dataclasses.dataclass
class Batch:
    keys: torch.Tensor


def exported():
    made = torch.export.export(from_function(lambda m, x: m.e(x), e=bag()), (X,))
    return made.module()


REFUSED = {
    "example inputs are Batch: give a tensor, a sequence or a mapping of tensors": (
        from_function(lambda m, batch: m.bag(batch.keys), bag=bag()),
        Batch(X),
    ),
    "the module is TorchScript, made by torch.jit.trace or torch.jit.script": (traced(TwoBags(), TWO_BAGS), TWO_BAGS),
    "its part script is TorchScript, made by torch.jit.trace": (
        from_function(lambda m, x, y: m.script(x, y), script=traced(TwoBags(), TWO_BAGS)),
        TWO_BAGS,
    ),
    r"the module has no evaluation mode \(.*\): where torch.export made it, give the torch.nn.Module": (
        exported(),
        (X,),
    ),
    "e.weight is on the device meta, where it has no values: give its weights": (
        from_function(lambda m, x: m.e(x), e=bag().to("meta")),
        (X,),
    ),
    "example input inputs_0 is on the device meta, where it has no values: make the example on the CPU": (
        from_function(lambda m, x: m.e(x), e=bag()),
        (X.to("meta"),),
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
    r"the module fails on the example inputs \(test_module_inputs.py, line \d+: `.*m.e\(x\).*`\): \w+Error: ": (
        from_function(lambda m, x: m.e(x), e=bag()),
        (X + 20,),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_an_input_or_a_result_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        FlatModule(module, example)


class Elsewhere(torch.Tensor):
    """A tensor that says that it is not on the CPU, and does not work there."""

    is_cpu = False

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def mul(self, other):
        raise RuntimeError(f"expected all tensors to be on the same device: {other}")

    __mul__ = mul


def test_module_and_example_are_brought_to_the_cpu():
    module = from_function(lambda m, x, y: m.e(x) * (m.scale * y).sum(), e=bag())
    module.register_buffer("scale", torch.ones(6, 1).as_subclass(Elsewhere))
    flat = FlatModule(module, (X.as_subclass(Elsewhere), floats(6, 1).as_subclass(Elsewhere)))
    assert type(flat.module.scale) is torch.Tensor
    assert [type(source.example) for source in flat.inputs] == [torch.Tensor, torch.Tensor]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_what_is_on_a_gpu_is_brought_to_the_cpu():
    module = from_function(lambda m, x, y: m.e(x) * y, e=bag().cuda())
    flat = FlatModule(module, (X.cuda(), floats(6, 1).cuda()))
    assert all(value.is_cpu for value in [*flat.parameters(), *(source.example for source in flat.inputs)])


def test_a_module_that_ends_the_program_is_refused():
    module = from_function(lambda *_: sys.exit(0), e=bag())
    with pytest.raises(GraphCaptureError, match=r"fails on the example inputs \(.* line .*\): SystemExit: 0"):
        FlatModule(module, (X,))


class Taking(nn.Module):
    """Sums whatever it is given, which `forward` names in every way that Python has."""

    def forward(self, first, *rest, named=None, **more):
        every = [first, *rest, named, *more.values()]
        tensors = [x for each in every for x in (each.values() if isinstance(each, dict) else [each]) if x is not None]
        return sum(tensor.sum(1) for tensor in tensors)


class TakingOne(nn.Module):
    def forward(self, batch):
        return sum(x.sum(1) for group in batch.values() for x in (group if isinstance(group, tuple) else [group]))


A, B = floats(4, 2), floats(4, 3)


@pytest.mark.parametrize(
    ("module", "example", "names"),
    [
        (Taking(), A, ["first"]),
        (Taking(), [A, B, A], ["first", "rest_0", "rest_1"]),
        (Taking(), {"named": A, "first": B, "other": A}, ["named", "first", "other"]),
        (Taking(), [{"user": A, "item": B}], ["user", "item"]),
        (Taking(), [{"user": A}, B], ["first_user", "rest_0"]),
        (TakingOne(), {"user id": A, "item": B}, ["user_id", "item"]),
        (TakingOne(), {"user": (A, B), "user 0": A, "?": B}, ["user_0", "user_1", "user_0_", "input"]),
    ],
)
def test_inputs_are_named_as_the_module_names_them(module, example, names):
    flat = FlatModule(module, example)
    assert [source.name for source in flat.inputs] == names
    together = sum(source.example.sum(1) for source in flat.inputs)
    torch.testing.assert_close(flat(*(source.example for source in flat.inputs)), together)


class TakingTwo(nn.Module):
    def forward(self, user, item):
        return user.sum(1) + item.sum(1)


class TakingTensor(nn.Module):
    def forward(self, user):
        return user.sum(1)


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (TakingTwo(), {"user": A, "item": B, "nope": A}, "^the example has nope: forward takes user, item$"),
        (TakingTensor(), {"x": A}, "; user was given the whole example, as forward has no argument called x$"),
    ],
)
def test_names_that_forward_does_not_have_are_told(module, example, message):
    with pytest.raises(GraphCaptureError, match=message):
        FlatModule(module, example)


def test_the_first_dimension_tells_inputs_of_items_from_jagged_ones():
    module = from_function(lambda m, x, values, starts, ends: m.bag(values, starts) + ends[1:, None] + x, bag=bag())
    values = torch.arange(9)
    flat = FlatModule(module, (torch.ones(4, 2), values, torch.tensor([0, 2, 2, 7]), torch.tensor([0, 2, 2, 7, 9])))
    assert (flat.items, flat.outputs) == (4, 2)
    assert [source.items_offset for source in flat.inputs] == [0, None, 0, 1]
    assert [source.columns for source in flat.inputs] == [2, 1, 1, 1]


def test_a_module_in_training_is_tried_in_evaluation_mode():
    module = from_function(lambda m, x: m.drop(m.bag(x))[:, 0], bag=filled_bag(), drop=nn.Dropout(1.0)).train()
    flat = FlatModule(module, (X,))
    assert not module.training
    assert flat.outputs == 1
    assert flat(X).all()


def filled_bag():
    layer = bag(mode="sum")
    nn.init.ones_(layer.weight)
    return layer


@pytest.mark.parametrize(
    ("text", "taken", "suffix", "name"),
    [
        ("user.id-2", (), "", "user.id-2"),
        ("caf\u00e9 / \u6771\u4eac", (), "", "caf_"),
        ("._-x", (), "", "x"),
        ("\u6771\u4eac", (), "", "table"),
        ("", ("table", "table_"), "", "table__"),
        ("a", ("a.1",), ".1", "a_.1"),
        ("x" * 200, ("x" * 128,), "", "x" * 127 + "_"),
        ("x" * 200, (), ".17", "x" * 125 + ".17"),
    ],
)
def test_a_name_that_may_be_stored_is_made_of_any_text(text, taken, suffix, name):
    assert usable_name(text, "table", taken, suffix) == name
    assert EmbeddingTableSpec(name, 1, 1).name not in taken
