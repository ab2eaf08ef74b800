import json
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hebe.models.architectures.graph_module import INPUTS, KEYS, OpFailed, build
from hebe.op_graph import Op, OpGraph, OpGraphError

SPARSE = {"input": "sparse"}


def graph_of(*ops):
    graph = OpGraph(INPUTS, tuple(ops), ops[-1].name)
    return OpGraph.from_dict(json.loads(json.dumps(graph.to_dict())))


def inputs(items):
    return torch.randn(items, 2), torch.randn(items, 4), torch.zeros(items, 0, dtype=torch.int64)


LINEAR = graph_of(
    Op("first", "aten.slice.Tensor", (SPARSE, 1, 0, 3)),
    Op("score", "aten.linear.default", ({"op": "first"}, {"weight": "top.weight"}, {"weight": "top.bias"})),
)
WEIGHTS = {"top.weight": torch.randn(1, 3), "top.bias": torch.randn(1)}


def test_ops_run_in_order_on_inputs_and_weights():
    dense, sparse, lengths = inputs(5)
    expected = sparse[:, :3] @ WEIGHTS["top.weight"].T + WEIGHTS["top.bias"]
    torch.testing.assert_close(build(LINEAR, WEIGHTS)(dense, sparse, lengths), expected)


@pytest.mark.parametrize("items", [1, 2, 9])
def test_sizes_computed_from_the_number_of_items_stay_open_in_a_trace(items):
    graph = graph_of(
        Op("items", "aten.sym_size.int", (SPARSE, 0)),
        Op("twice", "aten.mul.int", ({"op": "items"}, 2)),
        Op("halves", "aten.view.default", (SPARSE, [{"op": "twice"}, 2])),
        Op("count", "aten.arange.start_step", (0, {"op": "twice"}, 1), {"dtype": {"dtype": "float32"}}),
        Op("column", "aten.unsqueeze.default", ({"op": "count"}, 1)),
        Op("sum", "aten.add.Tensor", ({"op": "halves"}, {"op": "column"})),
        Op("part", "aten.slice.Tensor", ({"op": "sum"}, 0, 0, {"op": "items"})),
        Op("less", "aten.sub.int", ({"op": "twice"}, 1)),
        Op("ones", "aten.full.default", ([{"op": "less"}, 2], 1.0), {"device": {"device": "of sparse"}}),
        Op("rest", "aten.slice.Tensor", ({"op": "ones"}, 0, 0, {"op": "items"})),
        Op("score", "aten.mul.Tensor", ({"op": "part"}, {"op": "rest"})),
    )
    net = build(graph, {}).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.freeze(torch.jit.trace(net, inputs(4), check_trace=False))
    dense, sparse, lengths = inputs(items)
    expected = (sparse.view(-1, 2) + torch.arange(2.0 * items)[:, None])[:items]
    torch.testing.assert_close(net(dense, sparse, lengths), expected)
    torch.testing.assert_close(traced(dense, sparse, lengths), expected)


def test_several_results_floats_that_are_not_finite_and_named_arguments():
    graph = graph_of(
        Op("split", "aten.split.Tensor", (SPARSE, 2, 1)),
        Op("second", "aten.__getitem__.t", ({"op": "split"}, 1)),
        Op("clamped", "aten.clamp.default", ({"op": "second"}, 0.0, {"float": "inf"})),
        Op("double", "aten._to_copy.default", ({"op": "clamped"},), {"dtype": {"dtype": "float64"}}),
        Op(
            "score",
            "aten.clone.default",
            ({"op": "double"},),
            {"memory_format": {"memory_format": "contiguous_format"}},
        ),
    )
    dense, sparse, lengths = inputs(3)
    torch.testing.assert_close(build(graph, {})(dense, sparse, lengths), sparse[:, 2:].clamp(min=0).double())


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Op("x", "os.system", ("true",)), "op x: 'os.system' is not an ATen op"),
        (Op("x", "prims.add.default", (SPARSE, SPARSE)), "is not an ATen op"),
        (Op("x", "aten.view", (SPARSE, [-1])), "is not an ATen op"),
        (Op("x", "aten.view.default.__globals__", (SPARSE,)), "is not an ATen op"),
        (Op("x", "aten.__class__.mro", ()), "has no aten.__class__.mro"),
        (Op("x", "aten.no_such_op.default", (SPARSE,)), "has no aten.no_such_op.default"),
        (Op("x", "aten.view.no_such_overload", (SPARSE, [-1])), "has no aten.view.no_such_overload"),
        (Op("x", "aten.add_.Tensor", (SPARSE, 1)), "aten.add_.Tensor is not allowed"),
        (Op("x", "aten.from_file.default", ("/etc/passwd",)), "aten.from_file.default is not allowed"),
        (Op("x", "aten.save.default", ([SPARSE, "text"], "/tmp/file")), "aten.save.default is not allowed"),
        (Op("x", "aten.set_grad_enabled.default", (True,)), "aten.set_grad_enabled.default is not allowed"),
        (Op("x", "aten.neg.default", ({"weight": "absent"},)), "op x: argument {'weight': 'absent'} names nothing"),
        (Op("x", "aten.neg.default", ({"input": "keys"},)), "names nothing"),
        (Op("x", "aten.neg.default", ({"dtype": "load"},)), "names nothing"),
        (Op("x", "aten.neg.default", ({"dtype": "float32", "op": "x"},)), "names nothing"),
        (Op("x", "aten.neg.default", ({"float": "1.0"},)), "names nothing"),
    ],
)
def test_what_a_graph_may_not_say_is_refused_when_it_is_built(op, message):
    with pytest.raises(OpGraphError, match=message):
        build(graph_of(op), {})


TAKES_A_NUMBER = (
    Op("greatest", "aten.max.default", (SPARSE,)),
    Op("number", "aten.item.default", ({"op": "greatest"},)),
    Op("score", "aten.mul.Tensor", (SPARSE, {"op": "number"})),
)


def test_a_graph_stored_with_a_number_of_its_batch_is_refused_when_it_is_built():
    with pytest.raises(
        OpGraphError, match=r"op number: aten.item.default takes a number out of the batch.*import the mod"
    ):
        build(graph_of(*TAKES_A_NUMBER), {})
    same = Op("same", "aten.equal.default", (SPARSE, {"input": "dense"}))
    with pytest.raises(OpGraphError, match=r"op same: aten.equal.default takes a number out of the batch"):
        build(graph_of(same), {})
    of_weight = Op("greatest", "aten.max.default", ({"weight": "scales"},))
    dense, sparse, lengths = inputs(3)
    net = build(graph_of(of_weight, *TAKES_A_NUMBER[1:]), {"scales": torch.tensor([2.0, 3.0])})
    torch.testing.assert_close(net(dense, sparse, lengths), sparse * 3)


def test_weights_must_be_those_that_the_graph_reads():
    with pytest.raises(OpGraphError, match=r"'top.bias'} names nothing"):
        build(LINEAR, {"top.weight": WEIGHTS["top.weight"]})
    with pytest.raises(OpGraphError, match=r"does not read weight\(s\) more"):
        build(LINEAR, {**WEIGHTS, "more": torch.zeros(1)})


def test_inputs_must_be_the_dense_nets():
    with pytest.raises(OpGraphError, match=r"unknown input\(s\) query"):
        build(OpGraph(("query",), LINEAR.ops, LINEAR.output), WEIGHTS)


def test_keys_are_an_input_of_those_graphs_that_read_them():
    ops = (Op("score", "aten.ne.Scalar", ({"input": "keys"}, 0)),)
    keys = torch.tensor([[0, 3], [-1, 0]])
    net = build(OpGraph((*INPUTS, KEYS), ops, "score"), {})
    assert net(*inputs(2), keys).tolist() == [[False, True], [True, False]]


def test_an_op_that_fails_is_named():
    graph = graph_of(Op("picked", "aten.select.int", (SPARSE, 1, 9)))
    with pytest.raises(OpFailed, match=r"op picked: .*out of range"):
        build(graph, {})(*inputs(2))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "weight", "input", "dtype", "float", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(arguments=st.lists(JSON, max_size=3), target=st.sampled_from(["aten.neg.default", "aten.mul.int", "os.x.y"]))
def test_any_arguments_are_built_or_refused(arguments, target):
    try:
        graph = OpGraph(INPUTS, (Op("x", target, tuple(arguments)),), "x")
        build(graph, {})
    except OpGraphError:
        pass
