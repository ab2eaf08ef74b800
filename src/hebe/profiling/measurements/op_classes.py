"""What kind of work an op of a DenseNet is: told by its ATen name, by the layer that it comes from, and by whether it
reads weights.
"""

from __future__ import annotations

import re
from enum import StrEnum

import torch
from torch import fx


class OpClass(StrEnum):
    """Kinds of ops, by what limits them."""

    EMBEDDING_LOOKUP = "embedding lookup"
    FULLY_CONNECTED = "fully connected"
    """Products with weights."""
    ATTENTION = "attention"
    """Weighing a behaviour sequence: its layers, and in models that have one all products without weights."""
    RECURRENT = "recurrent"
    INTERACTION = "interaction"
    """Where features meet: concatenation, products of activations with each other, cross layers."""
    ELEMENT_WISE = "element-wise"
    """Activations, arithmetic, normalisation."""
    OTHER = "other"
    """Views, copies, constants, and telling behaviours from the rest."""


_LAYERS = {
    "InterestExtractor": OpClass.RECURRENT,
    "Augru": OpClass.RECURRENT,
    "GRU": OpClass.RECURRENT,
    "LSTM": OpClass.RECURRENT,
    "RNN": OpClass.RECURRENT,
    "GRUCell": OpClass.RECURRENT,
    "LSTMCell": OpClass.RECURRENT,
    "RNNCell": OpClass.RECURRENT,
    "ActivationUnit": OpClass.ATTENTION,
    "MultiheadAttention": OpClass.ATTENTION,
    "CrossLayer": OpClass.INTERACTION,
    "Behaviours": OpClass.OTHER,
}
"""Layers all of whose ops are of one class."""

_OPS = {
    "linear": OpClass.FULLY_CONNECTED,
    "gru": OpClass.RECURRENT,
    "lstm": OpClass.RECURRENT,
    "rnn_tanh": OpClass.RECURRENT,
    "rnn_relu": OpClass.RECURRENT,
    "gru_cell": OpClass.RECURRENT,
    "lstm_cell": OpClass.RECURRENT,
    "scaled_dot_product_attention": OpClass.ATTENTION,
    "softmax": OpClass.ATTENTION,
    "cat": OpClass.INTERACTION,
    "stack": OpClass.INTERACTION,
    "index_select": OpClass.INTERACTION,
    "bilinear": OpClass.FULLY_CONNECTED,
    "prelu": OpClass.ELEMENT_WISE,
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "amax", "amin", "prod", "var", "std", "var_mean", "std_mean", "logsumexp"),
        OpClass.ELEMENT_WISE,
    ),
}
_FAMILIES = {
    re.compile(r"conv(olution|(_transpose)?\dd)"): OpClass.FULLY_CONNECTED,
    re.compile(r"\w*(norm(_legit\w*)?|pool\dd)"): OpClass.ELEMENT_WISE,
}
"""Ops of which there are many, each of one class: convolutions are products with weights too."""
_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "einsum", "matmul", "mm"})
_TURNS = frozenset(
    {"expand", "mT", "numpy_T", "permute", "reshape", "select", "squeeze", "t", "transpose", "unsqueeze", "view"}
)
"""Ops that leave a weight one."""


def class_of(node: fx.Node, attends: bool) -> OpClass:
    """The class of a node that calls a function, of an exported DenseNet; `attends`: of one that weighs a behaviour
    sequence.
    """
    for _, layer in (node.meta.get("nn_module_stack") or {}).values():
        name = layer if isinstance(layer, str) else layer.__name__
        if (of := _LAYERS.get(name.rpartition(".")[2])) is not None:
            return of
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return OpClass.OTHER
    name = target.overloadpacket.__name__
    if name in _PRODUCTS:
        if any(map(_is_weight, node.all_input_nodes)):
            return OpClass.FULLY_CONNECTED
        return OpClass.ATTENTION if attends else OpClass.INTERACTION
    if name in _OPS:
        return _OPS[name]
    for family, of in _FAMILIES.items():
        if family.fullmatch(name):
            return of
    return OpClass.ELEMENT_WISE if torch.Tag.pointwise in target.tags else OpClass.OTHER


def _is_weight(node: fx.Node) -> bool:
    """Whether it is one, or one in another shape."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__ in _TURNS:
        return _is_weight(node.all_input_nodes[0])
    return node.op == "get_attr"
