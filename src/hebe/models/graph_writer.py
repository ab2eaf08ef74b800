"""What an exported module leaves once its embedding layers are cut out, written as an `OpGraph`.

The result's inputs are the DenseNet's. Where the module read a float input, the graph reads columns of `dense`;
where it read an embedding layer's output, columns of `sparse`; where it read the number of items, the rows of
`sparse`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from hebe.models.embedding_cut import EmbeddingCut, LayerOutput, Weight
from hebe.models.graph_module import GET_ITEM, INPUTS
from hebe.models.key_source import op_name
from hebe.models.module_inputs import GraphCaptureError, ModuleInput
from hebe.op_graph import Op, OpGraph
from hebe.spec import ModelSpec

_SCALAR_TARGETS: dict[Callable[..., Any], str] = {
    operator.add: "aten.add.int",
    operator.sub: "aten.sub.int",
    operator.mul: "aten.mul.int",
    operator.floordiv: "aten.floordiv.int",
    operator.neg: "aten.neg.int",
    operator.getitem: GET_ITEM,
}
_NEW = frozenset({"new_zeros", "new_ones", "new_full"})

_END = (1 << 63) - 1
"""The end of a slice that has none."""

_SPARSE = {"input": "sparse"}


def write_op_graph(
    graph: fx.Graph,
    spec: ModelSpec,
    cut: EmbeddingCut,
    inputs: Mapping[fx.Node, ModuleInput],
    weights: Mapping[fx.Node, Weight],
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The op graph, and the weights that it reads by name.

    Raises `GraphCaptureError` for ops outside of ATen, and for key inputs and tables that are read by anything but
    embedding layers.
    """
    writer = _Writer(spec, cut, inputs, weights)
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    (output,) = result if isinstance(result, list | tuple) else (result,)
    assert isinstance(output, fx.Node)
    needed = writer.needed(output)
    for node in graph.nodes:
        if node in needed:
            writer.write(node)
    reference = writer.emit("scores", "aten.reshape.default", writer.reference(output), [-1, spec.outputs])
    return OpGraph(INPUTS, tuple(writer.ops), reference["op"]), writer.dense_state


class _Writer:
    def __init__(
        self,
        spec: ModelSpec,
        cut: EmbeddingCut,
        inputs: Mapping[fx.Node, ModuleInput],
        weights: Mapping[fx.Node, Weight],
    ) -> None:
        self.ops: list[Op] = []
        self.dense_state: dict[str, Tensor] = {}
        self._inputs, self._weights, self._outputs = inputs, weights, cut.outputs
        self._table_addresses = cut.table_addresses
        self._slots = {slot.feature.name: slot for slot in spec.slots}
        self._references: dict[fx.Node, dict[str, str]] = {}
        self._names: set[str] = set()
        self._items: dict[str, str] | None = None
        self._dense_columns: dict[fx.Node, tuple[int, int]] = {}
        column = 0
        for node, source in inputs.items():
            if not source.is_keys:
                self._dense_columns[node] = (column, column + source.columns)
                column += source.columns
        self._dense_dim = column

    def needed(self, output: fx.Node) -> set[fx.Node]:
        """The nodes on which `output` depends; nothing behind an embedding layer is."""
        found: set[fx.Node] = set()
        waiting = [output]
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            if node not in self._outputs and self._sized_input(node) is None:
                waiting.extend(n for n in node.all_input_nodes if not self._is_pattern(node, n))
        return found

    def emit(self, name: str, target: str, *arguments: Any, **keywords: Any) -> dict[str, str]:
        """Add an op; returns what refers to it."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        self.ops.append(Op(name, target, arguments, keywords))
        return {"op": name}

    def reference(self, node: fx.Node) -> dict[str, str]:
        """What refers to a node already written."""
        return self._references[node]

    def write(self, node: fx.Node) -> None:
        """Add what computes `node`."""
        sized = self._sized_input(node)
        if sized is not None:
            self._references[node] = self._item_count(sized)
        elif node in self._outputs:
            self._references[node] = self._embedding_output(node.name, self._outputs[node])
        elif node in self._inputs:
            self._references[node] = self._dense_input(node)
        elif node in self._weights:
            self._references[node] = self._weight(node)
        elif _is_identity(node):
            self._references[node] = self._references[node.all_input_nodes[0]]
        else:
            pattern = node.args[0] if node.args else None
            if isinstance(pattern, fx.Node) and self._is_pattern(node, pattern):
                self._references[pattern] = _SPARSE
            arguments = [self._argument(node, value) for value in node.args]
            keywords = {name: self._argument(node, value) for name, value in node.kwargs.items()}
            if op_name(node) in _NEW:
                keywords["dtype"] = self._argument(node, node.meta["val"].dtype)
            self._references[node] = self.emit(node.name, _target(node), *arguments, **keywords)

    def _is_pattern(self, node: fx.Node, argument: fx.Node) -> bool:
        """Whether an op makes a new tensor of its own size, and has a key input only as a pattern of its kind."""
        return op_name(node) in _NEW and argument is node.args[0] and argument in self._inputs

    def _sized_input(self, node: fx.Node) -> ModuleInput | None:
        """The input whose first dimension `node` is, if it is one."""
        if op_name(node) != "sym_size":
            return None
        (sized,) = node.all_input_nodes
        return self._inputs.get(sized)

    def _item_count(self, source: ModuleInput) -> dict[str, str]:
        if source.items_offset is None:
            raise GraphCaptureError(f"the module computes with the number of values of {source.name}: not supported")
        if self._items is None:
            self._items = self.emit("items", "aten.sym_size.int", _SPARSE, 0)
        if source.items_offset:
            return self.emit(f"{source.name}_rows", "aten.add.int", self._items, source.items_offset)
        return self._items

    def _dense_input(self, node: fx.Node) -> dict[str, str]:
        source = self._inputs[node]
        if source.is_keys:
            readers = sorted({str(user.target) for user in node.users if not op_name(user).startswith("embedding")})
            raise GraphCaptureError(
                f"input {source.name} holds keys but is read by {', '.join(readers)} besides embedding layers; give "
                "what that needs (a mask, a length, a value) as a float32 input of its own"
            )
        start, stop = self._dense_columns[node]
        columns = self._columns("dense", source.name, [(start, stop)], self._dense_dim)
        if source.example.dim() == 2:
            return columns
        return self.emit(f"{source.name}_input", "aten.reshape.default", columns, [-1, *source.example.shape[1:]])

    def _weight(self, node: fx.Node) -> dict[str, str]:
        weight = self._weights[node]
        if weight.value.numel() and weight.value.data_ptr() in self._table_addresses:
            raise GraphCaptureError(
                f"layer {weight.name.removesuffix('.weight')}: its rows are read outside of embedding lookups; "
                "give that part of the module a copy of them"
            )
        self.dense_state[weight.name] = weight.value
        return {"weight": weight.name}

    def _embedding_output(self, name: str, output: LayerOutput) -> dict[str, str]:
        runs: list[tuple[int, int]] = []
        for feature in output.features:
            slot = self._slots[feature]
            if runs and runs[-1][1] == slot.column:
                runs[-1] = (runs[-1][0], slot.column + slot.width)
            else:
                runs.append((slot.column, slot.column + slot.width))
        sparse_width = max(slot.column + slot.width for slot in self._slots.values())
        result = self._columns("sparse", name, runs, sparse_width)
        if output.reduce is not None:
            result = self.emit(f"{name}_rows", "aten.reshape.default", result, [-1, output.lookups, output.dim])
            target = "aten.sum.dim_IntList" if output.reduce == "sum" else "aten.mean.dim"
            result = self.emit(f"{name}_pooled", target, result, [1])
        if len(output.shape) == 1:
            return result
        return self.emit(name, "aten.reshape.default", result, [-1, *output.shape])

    def _columns(self, source: str, name: str, runs: list[tuple[int, int]], width: int) -> dict[str, str]:
        """Columns of an input side by side; the input itself where these are all of it."""
        if runs == [(0, width)]:
            return {"input": source}
        pieces = [
            self.emit(f"{name}_{source}", "aten.slice.Tensor", {"input": source}, 1, start, stop)
            for start, stop in runs
        ]
        return pieces[0] if len(pieces) == 1 else self.emit(f"{name}_joined", "aten.cat.default", pieces, 1)

    def _argument(self, node: fx.Node, value: Any) -> Any:
        """An argument as JSON."""
        if isinstance(value, fx.Node):
            return self._references[value]
        if isinstance(value, list | tuple):
            return [self._argument(node, member) for member in value]
        if isinstance(value, torch.device):
            return {"device": "of sparse"}
        for kind in (torch.dtype, torch.layout, torch.memory_format):
            if isinstance(value, kind):
                return {kind.__name__: str(value).removeprefix("torch.")}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise GraphCaptureError(f"op {node.name} ({node.target}): argument {value!r} cannot be stored")


def _is_identity(node: fx.Node) -> bool:
    """Whether an op gives its argument as it is: what indexing by `:` and dropout leave behind."""
    if op_name(node) == "clone":
        return not node.kwargs
    return op_name(node) == "slice" and node.args[2:] == (0, _END)


def _target(node: fx.Node) -> str:
    if op_name(node):
        return str(node.target)
    if node.op == "call_function" and node.target in _SCALAR_TARGETS:
        return _SCALAR_TARGETS[node.target]
    raise GraphCaptureError(
        f"op {node.name}: {node.target} is not an ATen op, and only these can be stored; replace it by plain torch "
        "functions"
    )
