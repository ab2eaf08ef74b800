import operator

import pytest
import torch
from torch import fx

from hebe.models.importing.exported_node import described, op_name

OWN = 'File "/home/me/net.py", line {}, in forward\n    {}\n'
TORCHS = f'File "{torch.__path__[0]}/nn/functional.py", line 99, in softmax\n    ret = input.softmax(dim)\n'


def node_of(target, stack_trace=None):
    graph = fx.Graph()
    node = graph.call_function(target, (graph.placeholder("x"),))
    node.meta["stack_trace"] = stack_trace
    return node


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.ops.aten.ne.Scalar, "ne"),
        (torch.ops.aten._to_copy.default, "_to_copy"),
        (torch.ops.prims.sin.default, ""),
        (operator.getitem, ""),
        (torch.relu, ""),
    ],
)
def test_only_aten_ops_have_a_name(target, name):
    assert op_name(node_of(target)) == name


def test_inputs_have_no_op():
    assert op_name(next(iter(node_of(torch.relu).graph.nodes))) == ""


@pytest.mark.parametrize(
    ("stack_trace", "where"),
    [
        (None, ""),
        ("", ""),
        (TORCHS, ""),
        (OWN.format(31, "mask = seq != 0"), " (net.py, line 31: `mask = seq != 0`)"),
        (OWN.format(31, "a(seq)") + OWN.format(7, "b(seq)") + TORCHS, " (net.py, line 7: `b(seq)`)"),
        (OWN.format(2, "x" * 80), f" (net.py, line 2: `{'x' * 80}`)"),
        (OWN.format(2, "x" * 81), f" (net.py, line 2: `{'x' * 77}...`)"),
    ],
)
def test_an_op_is_described_by_the_users_own_innermost_line(stack_trace, where):
    assert described(node_of(torch.ops.aten.ne.Scalar, stack_trace)) == f"aten.ne.Scalar{where}"
