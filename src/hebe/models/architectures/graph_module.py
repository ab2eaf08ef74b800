"""A captured DenseNet that runs: an `OpGraph` and its weights as a module.

The graph comes from a file, so nothing in it is trusted: its ops must be ATen's, must compute a result rather than
change an argument, and no Python code is made from it.

Each op is called through `torch.ops`, except where an argument is computed from the number of items. Those go
through torch's Python functions, since only these leave the computation in a `torch.jit.trace`; through
`torch.ops` the number of the traced batch would be frozen in. That of an op which takes a number out of the batch
itself, as `item` does, always would be: no graph may have one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from hebe.op_graph import Op, OpGraph, OpGraphError

INPUTS = ("dense", "sparse", "lengths")
"""What every DenseNet takes."""

KEYS = "keys"
"""What a graph that computes with keys takes as well: the batch's key matrix, -1 where an item has none."""

SCALAR_OPS: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda tensor, dim: tensor.size(dim),
    "aten.add.int": operator.add,
    "aten.sub.int": operator.sub,
    "aten.mul.int": operator.mul,
    "aten.floordiv.int": operator.floordiv,
    "aten.neg.int": operator.neg,
}
"""Ops whose result is a whole number: arithmetic on the number of items."""

GET_ITEM = "aten.__getitem__.t"
"""Takes one result of an op that has several."""


class OpFailed(RuntimeError):
    """An op that cannot compute what it was given: its name, and torch's reason in one line."""

    def __init__(self, op: str, fault: Exception) -> None:
        self.op = op
        self.reason = next(iter(str(fault).strip().splitlines()), type(fault).__name__)
        super().__init__(f"op {op}: {self.reason}")


FREEZES = "takes a number out of the batch, and a trace would have that of its own batch for every query"
"""What is wrong with an op that `frozen_number` finds."""

_NUMBERS = frozenset({"NumberType", "BoolType"})
"""Results that are Python's, and of a tensor's values; sizes and strides are of other types."""

_TARGET_PATTERN = re.compile(r"aten\.([A-Za-z_]\w*)\.(\w+)\Z")
_FORBIDDEN = frozenset({"from_file"})
_NAMED = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_Values = dict[str, Any]
_Argument = Callable[[_Values], Any]


def build(graph: OpGraph, weights: Mapping[str, Tensor]) -> nn.Module:
    """The module that computes `graph`: `forward(dense, sparse, lengths)`, with `keys` where the graph reads them.

    Raises `OpGraphError` naming the op for one that is not ATen's or not allowed, for an argument that is not of
    the stored form, and for weights that the graph lacks or does not read.
    """
    return OpGraphModule(graph, weights)


class OpGraphModule(nn.Module):
    """Runs the ops of a graph one after another. Trace it (`hebe.models.scripted_net`) to run it fast.

    Raises as `build` does, and running it `OpFailed`, which names the op.
    """

    def __init__(self, graph: OpGraph, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        unknown = set(graph.inputs) - {*INPUTS, KEYS}
        if unknown:
            raise OpGraphError(f"graph reads unknown input(s) {', '.join(sorted(unknown))}")
        self._inputs = graph.inputs
        frozen = frozen_number(graph.ops)
        if frozen is not None:
            raise OpGraphError(f"op {frozen.name}: {frozen.target} {FREEZES}; import the model again without it")
        self._buffer_of: dict[str, str] = {}
        for i, (name, weight) in enumerate(weights.items()):
            self._buffer_of[name] = f"weight_{i}"
            self.register_buffer(f"weight_{i}", weight)
        self._read: set[str] = set()
        scalars = {op.name for op in graph.ops if op.target in SCALAR_OPS}
        self._steps = [self._step(op, scalars) for op in graph.ops]
        self._output = graph.output
        unread = set(weights) - self._read
        if unread:
            raise OpGraphError(f"graph does not read weight(s) {', '.join(sorted(unread))}")

    def forward(self, dense: Tensor, sparse: Tensor, lengths: Tensor, keys: Tensor | None = None) -> Tensor:
        """Scores as the imported module gave them, `[n, outputs]`. Raises `OpFailed`."""
        values: _Values = {"dense": dense, "sparse": sparse, "lengths": lengths, "keys": keys}
        for name, function, arguments, keywords in self._steps:
            try:
                values["op " + name] = function(
                    *(argument(values) for argument in arguments),
                    **{keyword: argument(values) for keyword, argument in keywords.items()},
                )
            except Exception as fault:  # torch raises errors of many kinds
                raise OpFailed(name, fault) from fault
        result: Tensor = values["op " + self._output]
        return result

    def _step(self, op: Op, scalars: set[str]) -> tuple[str, Callable[..., Any], list[_Argument], dict[str, _Argument]]:
        arguments = [self._argument(op, value) for value in op.arguments]
        keywords = {name: self._argument(op, value) for name, value in op.keywords.items()}
        overload = resolve(op)
        if scalars.intersection(op.inputs()):
            overload = _python_function(op, overload)
        return op.name, overload, arguments, keywords

    def _argument(self, op: Op, value: Any) -> _Argument:
        """How an argument is had when the graph runs."""
        if isinstance(value, list | tuple):
            members = [self._argument(op, member) for member in value]
            return lambda values: [member(values) for member in members]
        if not isinstance(value, Mapping):
            if value is not None and not isinstance(value, bool | int | float | str):
                raise OpGraphError(f"op {op.name}: argument {value!r} is of no known kind")
            return lambda _: value
        if len(value) == 1:
            ((kind, name),) = value.items()
            if not isinstance(name, str):
                raise OpGraphError(f"op {op.name}: argument {value!r} names nothing: its value must be a string")
            if kind == "op":
                key = f"op {name}"
                return lambda values: values[key]
            if kind == "input" and name in self._inputs:
                return lambda values: values[name]
            if kind == "weight" and name in self._buffer_of:
                self._read.add(name)
                buffer = self._buffer_of[name]
                return lambda _: getattr(self, buffer)
            if kind == "device":
                return lambda values: values["sparse"].device
            if kind == "float" and name in ("inf", "-inf", "nan"):
                number = float(name)
                return lambda _: number
            found = getattr(torch, str(name), None)
            if kind in _NAMED and isinstance(found, _NAMED[kind]):
                return lambda _: found
        raise OpGraphError(f"op {op.name}: argument {dict(value)!r} names nothing that the model has")


def resolve(op: Op) -> Callable[..., Any]:
    """The function that computes `op`; raises `OpGraphError` unless it is an allowed ATen op."""
    if op.target in SCALAR_OPS:
        return SCALAR_OPS[op.target]
    if op.target == GET_ITEM:
        return operator.getitem
    parts = _TARGET_PATTERN.match(op.target)
    if parts is None:
        raise OpGraphError(f"op {op.name}: {op.target!r} is not an ATen op; only aten.NAME.OVERLOAD may be stored")
    overload = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None)
    if not isinstance(overload, torch._ops.OpOverload):
        raise OpGraphError(f"op {op.name}: this torch ({torch.__version__}) has no {op.target}")
    if overload._schema.is_mutable or parts[1] in _FORBIDDEN or not _is_dispatched(overload):
        raise OpGraphError(f"op {op.name}: {op.target} is not allowed: it does more than compute its result")
    return overload


def frozen_number(ops: Iterable[Op]) -> Op | None:
    """The first op whose result is a Python number or truth value computed from the batch's, as `item`'s is. None where
    there is none; of constants it may be. Raises `OpGraphError` as `resolve` does.
    """
    of_batch: set[str] = set()
    for op in ops:
        if not op.graph_inputs() and of_batch.isdisjoint(op.inputs()):
            continue
        of_batch.add(op.name)
        function = resolve(op)
        if isinstance(function, torch._ops.OpOverload):
            results = {result.type.kind() for result in function._schema.returns}
            if results & _NUMBERS:
                return op
    return None


def _is_dispatched(overload: torch._ops.OpOverload) -> bool:
    """Whether it is an op on tensors; others under the same names are TorchScript's own, which write files, too."""
    try:
        overload._handle  # noqa: B018
    except RuntimeError:
        return False
    return True


def _python_function(op: Op, overload: Callable[..., Any]) -> Callable[..., Any]:
    if op.target in SCALAR_OPS:
        return overload
    if op.target == "aten.slice.Tensor":
        return _slice
    name = op.target.split(".")[1].removeprefix("_unsafe_")
    if op.arguments and isinstance(op.arguments[0], Mapping) and hasattr(Tensor, name):
        return cast(Callable[..., Any], getattr(Tensor, name))
    # not torch's attributes: some are Python functions that have such a name and do something else
    return cast(Callable[..., Any], getattr(torch._C._VariableFunctions, name, overload))


def _slice(tensor: Tensor, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Tensor:
    before = (slice(None),) * (dim % tensor.dim())
    return tensor[(*before, slice(start, stop, step))]
