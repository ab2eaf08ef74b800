"""Where the keys of an embedding layer come from: which column of which input, plus which constant.

Between its inputs and an embedding, a module may select columns, split, stack and reshape them, and add constants
(the offsets of several fields in one table). First every op on the way is checked to be of that kind; then the ops
are run on inputs whose elements are all distinct, and what arrives tells where each element came from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hebe.models.module_inputs import GraphCaptureError, ModuleInput

_SELECTS = frozenset(
    {"select", "slice", "narrow", "index", "index_select", "split", "split_with_sizes", "chunk", "unbind"}
    | {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand"}
    | {"permute", "transpose", "t", "numpy_T", "cat", "stack"}
    | {"clone", "alias", "detach", "contiguous", "lift_fresh_copy"}
)
_CASTS = frozenset({"_to_copy", "to", "_assert_tensor_metadata"})
_ADDS = frozenset({"add", "sub"})
_SHAPE_ONLY = frozenset({"sym_size", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
_SPACING = 1 << 36
"""Distance of the probe's elements: any constant added to a key is far smaller."""


def op_name(node: fx.Node) -> str:
    """The ATen name of a node's op, without overload; empty for other functions."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target.overloadpacket.__name__)
    return ""


@dataclass(frozen=True, slots=True)
class KeySource:
    """A lookup's key is `input[:, column] + offset`, columns counted over all but the first dimension."""

    input: str
    column: int
    offset: int


class KeyProbe:
    """Runs what lies between the inputs and the embeddings of an exported graph, on recognisable inputs.

    `inputs` and `constants` are the graph's placeholders; `items` the number of items to probe with.
    """

    def __init__(
        self,
        inputs: Mapping[fx.Node, ModuleInput],
        constants: Mapping[fx.Node, Tensor],
        items: int,
    ) -> None:
        self.items = items
        self._known: dict[fx.Node, Any] = dict(constants)
        self._dependent: dict[fx.Node, bool] = {}
        self._inputs = inputs
        self._starts: list[tuple[int, ModuleInput]] = []
        total = 1  # so that a constant that arrives is recognised: it has position 0
        for node, source in inputs.items():
            rows = 3 * items if source.items_offset is None else items + source.items_offset
            shape = (rows, *source.example.shape[1:])
            if not source.is_keys:
                self._known[node] = torch.zeros(shape)
                continue
            count = rows * source.columns
            self._starts.append((total, source))
            self._known[node] = (torch.arange(total, total + count) * _SPACING).reshape(shape)
            total += count

    def depends(self, node: fx.Node) -> bool:
        """Whether a value depends on the elements of an input (its shape does not count)."""
        known = self._dependent.get(node)
        if known is None:
            if node.op == "placeholder":
                known = node in self._inputs
            else:
                known = op_name(node) not in _SHAPE_ONLY and any(map(self.depends, node.all_input_nodes))
            self._dependent[node] = known
        return known

    def value(self, node: fx.Node, layer: str) -> Any:
        """What `node` is on the probe's inputs; raises `GraphCaptureError` for an op that is not a selection."""
        if node not in self._known:
            for needed in node.all_input_nodes:
                self.value(needed, layer)
            self._known[node] = self._run(node, layer)
        return self._known[node]

    def lookups(self, keys: fx.Node, layer: str, flat: bool = False) -> list[KeySource]:
        """The source of each of an item's keys, in order; raises `GraphCaptureError`.

        `keys` has the items in its first dimension, or is `flat`: all keys in one dimension, item after item.
        """
        value = self.value(keys, layer)
        if not self.depends(keys):
            raise GraphCaptureError(f"layer {layer}: its keys are constants: take the layer out of the module")
        rows = value.numel() if flat else value.shape[0] if value.dim() else 1
        if rows % self.items:
            raise _not_a_selection(layer)
        elements = value.reshape(self.items, -1).tolist()
        found = [[self._source(element, layer) for element in row] for row in elements]
        for item, row in enumerate(found):
            if any(source_item != item for source_item, _ in row):
                raise _not_a_selection(layer)
        columns = [[source for _, source in row] for row in found]
        if any(row != columns[0] for row in columns):
            raise _not_a_selection(layer)
        return columns[0]

    def whole_input(self, node: fx.Node, layer: str) -> tuple[str, int]:
        """(name, constant) if a one-dimensional value is a whole input plus a constant; else `GraphCaptureError`."""
        value = self.value(node, layer)
        if value.dim() == 1 and len(value) and self.depends(node):
            _, first = self._source(int(value[0]), layer)
            whole = next(self._known[n] for n, source in self._inputs.items() if source.name == first.input)
            if torch.equal(value, whole + first.offset):
                return first.input, first.offset
        raise GraphCaptureError(
            f"layer {layer}: its values and offsets must each be a whole one-dimensional input of the module"
        )

    def _source(self, element: int, layer: str) -> tuple[int, KeySource]:
        """(item, source) of one element that arrived."""
        position = (element + _SPACING // 2) // _SPACING
        if position < 1:
            raise _not_a_selection(layer)
        start, source = next((start, source) for start, source in reversed(self._starts) if start <= position)
        item, column = divmod(position - start, source.columns)
        return item, KeySource(source.name, column, element - position * _SPACING)

    def _run(self, node: fx.Node, layer: str) -> Any:
        if node.op != "call_function":
            raise GraphCaptureError(f"layer {layer}: its keys go through {node.op} {node.target}")
        name = op_name(node)
        if self.depends(node):
            for needed in node.all_input_nodes:
                if needed in self._inputs and not self._inputs[needed].is_keys:
                    raise GraphCaptureError(
                        f"layer {layer}: its keys are made from float input {self._inputs[needed].name} by "
                        f"{node.target}: give the keys as an int64 input"
                    )
            if name in _CASTS:
                return self._known[node.all_input_nodes[0]]
            self._check(node, name, layer)
        arguments = fx.map_arg(node.args, lambda n: self._known[n])
        keywords = fx.map_arg(node.kwargs, lambda n: self._known[n])
        return node.target(*arguments, **keywords)  # type: ignore[operator]

    def _check(self, node: fx.Node, name: str, layer: str) -> None:
        dependent = [i for i, value in enumerate(node.args) if isinstance(value, fx.Node) and self.depends(value)]
        allowed = name in _SELECTS or node.target is operator.getitem
        if name in ("index", "index_select"):
            allowed = dependent == [0] and not any(self.depends(n) for n in node.all_input_nodes[1:])
        if name in _ADDS:
            allowed = (dependent == [0] or (name == "add" and dependent == [1])) and "alpha" not in node.kwargs
        if not allowed:
            raise GraphCaptureError(
                f"layer {layer}: its keys go through {node.target}; between an input and an embedding only the "
                "selection of columns and the addition of constants can be captured: do the rest before sending"
            )


def same_lookups(probes: Iterable[KeyProbe], keys: fx.Node, layer: str, flat: bool = False) -> list[KeySource]:
    """The lookups on which all probes (of unlike numbers of items) agree; raises `GraphCaptureError`."""
    first, *others = (probe.lookups(keys, layer, flat) for probe in probes)
    if any(other != first for other in others):
        raise _not_a_selection(layer)
    return first


def _not_a_selection(layer: str) -> GraphCaptureError:
    return GraphCaptureError(
        f"layer {layer}: an item's keys must be columns of that item's own inputs, plus constants, the items in "
        "the first dimension"
    )
