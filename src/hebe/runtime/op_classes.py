"""What kind of work an op of a DenseNet is: told by its ATen name, by the layer that it comes from, and by whether it
reads weights.
"""

from __future__ import annotations

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
    "layer_norm": OpClass.ELEMENT_WISE,
    "batch_norm": OpClass.ELEMENT_WISE,
    "prelu": OpClass.ELEMENT_WISE,
    "sum": OpClass.ELEMENT_WISE,
    "mean": OpClass.ELEMENT_WISE,
}
_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "einsum", "matmul", "mm"})


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
        if any(other.op == "get_attr" for other in node.all_input_nodes):
            return OpClass.FULLY_CONNECTED
        return OpClass.ATTENTION if attends else OpClass.INTERACTION
    if name in _OPS:
        return _OPS[name]
    return OpClass.ELEMENT_WISE if torch.Tag.pointwise in target.tags else OpClass.OTHER
