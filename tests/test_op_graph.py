import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.op_graph import Op, OpGraph, OpGraphError

GRAPH = OpGraph(
    ("dense", "sparse"),
    (
        Op("a", "aten.neg.default", ({"input": "dense"},)),
        Op("b", "aten.cat.default", ([{"op": "a"}, {"input": "sparse"}], 1), {"like": {"op": "a"}}),
    ),
    "b",
)


def test_a_graph_is_read_back_from_plain_data():
    assert OpGraph.from_dict(GRAPH.to_dict()) == GRAPH
    assert GRAPH.ops[1].inputs() == ("a",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": "c"}, "output c is not an op"),
        ({"output": 3}, "3 stands where a name should"),
        ({"inputs": [None]}, "None stands where a name should"),
        ({"ops": GRAPH.to_dict()["ops"][::-1]}, "op b reads a before it is computed"),
        ({"ops": GRAPH.to_dict()["ops"] * 2}, "op a appears twice"),
        ({"ops": [{"name": "b", "target": "x", "arguments": [{"op": ["b"]}], "keywords": {}}]}, "does not name an op"),
        ({"ops": [{"name": "b", "target": "x"}]}, "malformed field 'arguments'"),
        ({"ops": None}, "malformed field"),
    ],
)
def test_what_is_not_well_formed_is_refused(change, message):
    with pytest.raises(OpGraphError, match=message):
        OpGraph.from_dict(GRAPH.to_dict() | change)


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["op", "name"]), inner, max_size=2),
    max_leaves=5,
)


@given(st.fixed_dictionaries({"inputs": ANYTHING, "output": ANYTHING, "ops": ANYTHING}) | ANYTHING)
def test_anything_else_is_an_op_graph_error(data):
    with pytest.raises(OpGraphError):
        OpGraph.from_dict(data)
