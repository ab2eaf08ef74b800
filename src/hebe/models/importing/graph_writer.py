"""What an exported module leaves once its embedding layers are cut out, written as an `OpGraph`.

The result's inputs are the DenseNet's. Where the module read an input, the graph reads columns of `dense` and `keys`;
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

from hebe.models.architectures.graph_module import FREEZES, GET_ITEM, INPUTS, KEYS, frozen_number
from hebe.models.importing.embedding_cut import EmbeddingCut
from hebe.models.importing.exported_node import described, op_name
from hebe.models.importing.layer_tables import LayerOutput, Weight
from hebe.models.importing.module_inputs import GraphCaptureError, ModuleInput
from hebe.models.importing.number_inputs import NEW_TENSORS, ColumnRun, NumberInputs
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
_END = (1 << 63) - 1
"""The end of a slice that has none."""

_SPARSE = {"input": "sparse"}

_REDUCTIONS = {"sum": "aten.sum.dim_IntList", "max": "aten.amax.default"}

_TARGETS = {"aten.view.default": "aten.reshape.default"}
"""What is stored in place of another op. torch.export makes a view of whatever is reshaped and was contiguous in the
module, where the graph may have columns of an input that is wider."""


def write_op_graph(
    graph: fx.Graph,
    spec: ModelSpec,
    cut: EmbeddingCut,
    numbers: NumberInputs,
    weights: Mapping[fx.Node, Weight],
) -> tuple[OpGraph, dict[str, Tensor], dict[str, str]]:
    """The op graph, the weights that it reads by name, and by op what it was in the module.

    Raises `GraphCaptureError` for ops outside of ATen, for numbers taken out of the batch, and for tables that are read
    by anything but embedding layers.
    """
    writer = _Writer(spec, cut, numbers, weights)
    for node in graph.nodes:
        if node in numbers.needed:
            writer.write(node)
    output = writer.reference(result_of(graph))
    reference = writer.emit("scores", "aten.reshape.default", output, [-1, spec.outputs])
    frozen = frozen_number(writer.ops)
    if frozen is not None:
        raise GraphCaptureError(
            f"{writer.origins[frozen.name]} {FREEZES}: keep it a tensor; a crop to the longest sequence can go, where "
            "the padding is masked or has a row of zeros"
        )
    inputs = (*INPUTS, KEYS) if spec.reads_keys else INPUTS
    return OpGraph(inputs, tuple(writer.ops), reference["op"]), writer.dense_state, writer.origins


def result_of(graph: fx.Graph) -> fx.Node:
    """The node that the module returns."""
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    (output,) = result if isinstance(result, list | tuple) else (result,)
    assert isinstance(output, fx.Node)
    return output


class _Writer:
    def __init__(
        self, spec: ModelSpec, cut: EmbeddingCut, numbers: NumberInputs, weights: Mapping[fx.Node, Weight]
    ) -> None:
        self.ops: list[Op] = []
        self.dense_state: dict[str, Tensor] = {}
        self.origins: dict[str, str] = {}
        self._numbers, self._weights, self._outputs = numbers, weights, cut.outputs
        self._table_weights = cut.table_weights
        self._slots = {slot.feature.name: slot for slot in spec.slots}
        self._widths = {"dense": spec.dense_dim, "keys": spec.lookups_per_item}
        self._references: dict[fx.Node, dict[str, str]] = {}
        self._names: set[str] = set()
        self._items: dict[str, str] | None = None

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
        sized = self._numbers.sized_input(node)
        runs = self._numbers.runs(node)
        if sized is not None:
            self._references[node] = self._item_count(sized)
        elif node in self._outputs:
            self._references[node] = self._embedding_output(node.name, self._outputs[node])
        elif runs is not None:
            self._references[node] = self._selection(node, runs)
        elif node in self._weights:
            self._references[node] = self._weight(node)
        elif _is_identity(node):
            self._references[node] = self._references[node.all_input_nodes[0]]
        elif str(node.target) == "aten.fill.Tensor":
            self._references[node] = self._filled(node)
        else:
            arguments = [
                _SPARSE if self._numbers.is_pattern(node, value) else self._argument(node, value) for value in node.args
            ]
            keywords = {name: self._argument(node, value) for name, value in node.kwargs.items()}
            if op_name(node) in NEW_TENSORS:
                keywords["dtype"] = self._argument(node, node.meta["val"].dtype)
            self._references[node] = reference = self.emit(node.name, _target(node), *arguments, **keywords)
            self.origins[reference["op"]] = described(node)

    def _item_count(self, source: ModuleInput) -> dict[str, str]:
        if source.items_offset is None:
            raise GraphCaptureError(f"the module computes with the number of values of {source.name}: not supported")
        if self._items is None:
            self._items = self.emit("items", "aten.sym_size.int", _SPARSE, 0)
        if source.items_offset:
            return self.emit(f"{source.name}_rows", "aten.add.int", self._items, source.items_offset)
        return self._items

    def _selection(self, node: fx.Node, runs: list[ColumnRun]) -> dict[str, str]:
        """Columns of the module's inputs, from where the DenseNet has them, in the shape and dtype of `node`."""
        value = node.meta["val"]
        pieces = []
        for run in runs:
            piece = self._columns(run.source, node.name, [(run.start, run.stop)], self._widths[run.source])
            if run.source == KEYS:
                absent = self.emit(f"{node.name}_absent", "aten.lt.Scalar", piece, 0)
                piece = self.emit(f"{node.name}_present", "aten.masked_fill.Scalar", piece, absent, run.padding)
            if value.dtype != (torch.int64 if run.source == KEYS else torch.float32):
                dtype = self._argument(node, value.dtype)
                piece = self.emit(f"{node.name}_cast", "aten._to_copy.default", piece, dtype=dtype)
            pieces.append(piece)
        joined = pieces[0] if len(pieces) == 1 else self.emit(f"{node.name}_joined", "aten.cat.default", pieces, 1)
        if value.dim() == 2:
            return joined
        return self.emit(f"{node.name}_input", "aten.reshape.default", joined, [-1, *value.shape[1:]])

    def _filled(self, node: fx.Node) -> dict[str, str]:
        """`x[:, 0] = 0`: a value that is a tensor itself, in the shape of another; torch.jit cannot trace the op."""
        like, value = (self._argument(node, argument) for argument in node.args[:2])
        dtype = self._argument(node, node.meta["val"].dtype)
        value = self.emit(f"{node.name}_value", "aten._to_copy.default", value, dtype=dtype)
        zeros = self.emit(f"{node.name}_zeros", "aten.zeros_like.default", like)
        return self.emit(node.name, "aten.add.Tensor", zeros, value)

    def _weight(self, node: fx.Node) -> dict[str, str]:
        weight = self._weights[node]
        if any(map(weight.overlaps, self._table_weights)):
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
            if output.weights is not None:
                weights = self.emit(
                    f"{name}_weights",
                    "aten.reshape.default",
                    self._references[output.weights],
                    [-1, output.lookups, 1],
                )
                result = self.emit(f"{name}_weighted", "aten.mul.Tensor", result, weights)
            result = self.emit(f"{name}_pooled", _REDUCTIONS[output.reduce], result, [1])
        if output.divisor is not None:
            result = self.emit(f"{name}_mean", "aten.div.Scalar", result, output.divisor)
        if output.mean_without is not None:
            result = self.emit(f"{name}_mean", "aten.div.Tensor", result, self._counts(name, output))
        if len(output.shape) == 1:
            return result
        return self.emit(name, "aten.reshape.default", result, [-1, *output.shape])

    def _counts(self, name: str, output: LayerOutput) -> dict[str, str]:
        """How many keys an item has besides the one left out, at least 1: float32 `[items, 1]`."""
        runs = [self._numbers.key_columns(feature) for feature in output.features]
        keys = self._columns(KEYS, name, runs, self._widths[KEYS])
        present = self.emit(f"{name}_present", "aten.ge.Scalar", keys, 0)
        others = self.emit(f"{name}_others", "aten.ne.Scalar", keys, output.mean_without)
        counted = self.emit(f"{name}_counted", "aten.logical_and.default", present, others)
        counts = self.emit(f"{name}_counts", "aten.sum.dim_IntList", counted, [1], True)
        return self.emit(f"{name}_divisor", "aten.clamp.default", counts, 1)

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
        return _TARGETS.get(str(node.target), str(node.target))
    if node.op == "call_function" and node.target in _SCALAR_TARGETS:
        return _SCALAR_TARGETS[node.target]
    raise GraphCaptureError(
        f"op {node.name}: {node.target} is not an ATen op, and only these can be stored; replace it by plain torch "
        "functions"
    )
