import functools
import warnings

import pytest
import torch
from torch import nn

from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.key_source import KeyProbe, KeySource, same_lookups
from hebe.models.importing.module_inputs import ModuleInput
from hebe.models.importing.split_check import check_split
from hebe.spec import OutOfRange

from .small_modules import X, bag, from_function

Y = X[:, 0]

REFUSED = {
    r"layer bag: its keys go through aten.remainder.Scalar \(.*\) after another op on them: only keys as they were": (
        from_function(lambda m, x: m.bag((x + 3) % 20), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.clamp.default \(small_modules.py, line .*\) after another op": (
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
    r"layer bag: its keys go through aten._to_copy.default": (
        from_function(lambda m, x: m.bag(x.bool().long()), bag=bag()),
        (X,),
    ),
    r"layer bag: its keys go through aten.add": (
        from_function(lambda m, x, y: m.bag(x + y), bag=bag()),
        (X // 2, X // 2),
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
    "layer bag: an item's keys must be columns of that item's own inputs": (
        from_function(lambda m, x: m.bag(torch.cat([x[1:], x[:1]])), bag=bag()),
        (X,),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


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


@functools.cache
def probed(results):
    """Probes of what functions make of the inputs a and b, captured at once, and the node of each result."""
    items = torch.export.Dim("items")
    module = from_function(lambda _, a, b: tuple(function(a, b) for function in results))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(module, (X, Y), dynamic_shapes=(({0: items}, {0: items}),)).run_decompositions({})
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    given = {
        nodes[name]: ModuleInput(*it, 0) for name, it in zip(signature.user_inputs, (("a", X), ("b", Y)), strict=True)
    }
    constants = {nodes[name]: program.constants[at] for name, at in signature.inputs_to_lifted_tensor_constants.items()}
    (returned,) = (node for node in program.graph.nodes if node.op == "output")
    return [KeyProbe(given, constants, count) for count in (3, 5)], dict(zip(results, returned.args[0], strict=True))


def columns(*numbers, name="a", **fields):
    return [KeySource(name, number, **fields) for number in numbers]


SELECTIONS = {
    lambda a, _: a + 0: columns(0, 1, 2),
    lambda a, _: a[:, 1:].flip(1): columns(2, 1),
    lambda a, _: a.unsqueeze(2).expand(-1, -1, 2): columns(0, 0, 1, 1, 2, 2),
    lambda a, _: a.t().reshape(3, -1).t(): columns(0, 1, 2),
    lambda a, b: torch.cat([b[:, None], a[:, ::2]], 1): [*columns(0, name="b"), *columns(0, 2)],
    lambda a, b: torch.stack([*a.unbind(1), b], 1): [*columns(0, 1, 2), *columns(0, name="b")],
    lambda a, _: a[:, :2] + torch.tensor([0, 50]): [*columns(0), *columns(1, offset=50)],
    lambda a, _: a[:, 0] - 7 + 2: columns(0, offset=-5),
    lambda a, _: a[:, 0] + (1 << 34): columns(0, offset=1 << 34),  # far from the probe's next element
    lambda _, b: b % 20: columns(0, name="b", rule=OutOfRange.WRAP, rows=20),
    lambda a, _: a[:, :1].clamp(0, 19) + 5: columns(0, offset=5, rule=OutOfRange.CLAMP, rows=20),
    lambda a, _: a[:, 1].clamp(min=0): columns(1, rule=OutOfRange.CLAMP_LOW),
    lambda a, _: torch.minimum(a[:, 1], torch.tensor(8)): columns(1, rule=OutOfRange.CLAMP_HIGH, rows=9),
    lambda a, _: a[:, :2] % torch.tensor([5, 7]): [
        *columns(0, rule=OutOfRange.WRAP, rows=5),
        *columns(1, rule=OutOfRange.WRAP, rows=7),
    ],
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_lookup_is_traced_to_its_column_rule_and_constant(selection):
    probes, nodes = probed(tuple(SELECTIONS))
    assert same_lookups(probes, nodes[selection], "e") == SELECTIONS[selection]


OTHERS = {
    lambda a, _: a.roll(1, 0): "an item's keys must be columns of that item's own inputs",
    lambda a, _: a.flip(0): "an item's keys must be columns",
    lambda a, _: a[:1].expand(a.shape[0], -1): "an item's keys must be columns",
    lambda a, _: a.t(): "an item's keys must be columns",
    lambda a, _: torch.cat([a, torch.zeros_like(a)], 1): "an item's keys must be columns",
    lambda a, _: torch.zeros_like(a) + 3: "its keys are constants: take the layer out",
    lambda a, _: a * 1: "its keys go through aten.mul.Tensor",
    lambda a, b: a + b[:, None]: "its keys go through aten.add.Tensor",
    lambda a, b: a[:, b % 3]: "its keys go through aten.index.Tensor",
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_of_an_items_own_columns_is_no_selection(other):
    probes, nodes = probed(tuple(OTHERS))
    with pytest.raises(GraphCaptureError, match=f"layer e: {OTHERS[other]}"):
        same_lookups(probes, nodes[other], "e")


WHOLES = {
    lambda _, b: b + 0: True,
    lambda _, b: b.flip(0): False,
    lambda a, _: a[:, 0]: False,
    lambda a, _: a.flatten(): False,
    lambda _, b: torch.cat([b, b]): False,
    lambda _, b: torch.zeros_like(b): False,
}


@pytest.mark.parametrize("part", WHOLES)
def test_a_whole_input_is_told_from_a_part_of_it(part):
    (probe, _), nodes = probed(tuple(WHOLES))
    if WHOLES[part]:
        assert probe.whole_input(nodes[part], "e") == KeySource("b", 0)
    else:
        with pytest.raises(GraphCaptureError, match="must each be a whole one-dimensional input"):
            probe.whole_input(nodes[part], "e")


def test_only_elements_are_depended_on_and_no_shape():
    shape, elements = (lambda a, _: torch.zeros_like(a) + a.shape[0]), (lambda a, b: torch.zeros_like(a) + b[:, None])
    (probe, _), nodes = probed((shape, elements))
    assert not probe.depends(nodes[shape])
    assert probe.depends(nodes[elements])
