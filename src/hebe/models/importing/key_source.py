"""Where the keys of an embedding layer come from: which column of which input, by which rule, plus which constant.

Between its inputs and an embedding, a module may select columns, split, stack and reshape them, take them modulo or
clamped to the rows of a table, and add constants (the offsets of several fields in one table). The ops on the way are
run on inputs whose elements are all distinct, and what arrives tells where each element came from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from hebe.models.importing.exported_node import described, op_name
from hebe.models.importing.module_inputs import GraphCaptureError, ModuleInput
from hebe.spec import OutOfRange

_SELECTS = frozenset(
    {"select", "slice", "narrow", "index", "index_select", "split", "split_with_sizes", "chunk", "unbind"}
    | {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand"}
    | {"permute", "transpose", "t", "numpy_T", "movedim", "cat", "stack", "flip", "roll", "repeat", "tile", "unfold"}
    | {"clone", "alias", "detach", "contiguous", "lift_fresh_copy"}
)
_CASTS = frozenset({"_to_copy", "to"})
_EXACT_BITS = {torch.float32: 24, torch.int32: 31, torch.float64: 53, torch.int64: 63}
"""A cast to one of these leaves a key below 2 to that power what it is: any row of a table, but not any key that a
client may send."""

_ADDS = frozenset({"add", "sub"})
RULES: dict[str, tuple[str, ...]] = {
    "remainder": ("modulus",),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "maximum": ("min",),
    "minimum": ("max",),
}
"""Ops that bring keys into the range of a table, and what their arguments after the first are."""

_SHAPE_ONLY = frozenset({"sym_size", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
_SPACING = 1 << 36
"""Distance of the probe's elements: any constant added to a key is far smaller."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """A lookup's key is `input[:, column]`, brought into `[0, rows)` by `rule`, plus `offset`.

    Columns are counted over all but the first dimension. `rows` is None where the rule does not say.
    """

    input: str
    column: int
    offset: int = 0
    rule: OutOfRange = OutOfRange.REFUSE
    rows: int | None = None


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
        self._narrowing: dict[fx.Node, fx.Node | None] = {}
        self._starts: list[tuple[int, ModuleInput]] = []
        self._in_range: dict[int, tuple[int, KeySource]] = {}
        self._next = 1  # so that a constant that arrives is recognised: it has position 0
        for node, source in inputs.items():
            rows = 3 * items if source.items_offset is None else items + source.items_offset
            self._starts.append((self._next, source))
            self._known[node] = self._new_elements(rows * source.columns).reshape(rows, *source.example.shape[1:])

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

    def whole_input(self, node: fx.Node, layer: str) -> KeySource:
        """The source of a one-dimensional value that is a whole input, element by element.

        Raises `GraphCaptureError` for any other value.
        """
        value = self.value(node, layer)
        if value.dim() == 1 and len(value) and self.depends(node):
            found = [self._source(element, layer) for element in value.tolist()]
            source = found[0][1]
            whole = next(self._known[n] for n, known in self._inputs.items() if known.name == source.input)
            if whole.shape == value.shape and found == [(i, source) for i in range(len(found))]:
                return source
        raise GraphCaptureError(
            f"layer {layer}: its values and offsets must each be a whole one-dimensional input of the module"
        )

    def _new_elements(self, count: int) -> Tensor:
        """Elements unlike all before: int64, one dimension."""
        first, self._next = self._next, self._next + count
        return torch.arange(first, self._next) * _SPACING

    def _source(self, element: int, layer: str) -> tuple[int, KeySource]:
        """(item, source) of one element that arrived."""
        position = (element + _SPACING // 2) // _SPACING
        if not 1 <= position < self._next:
            raise _not_a_selection(layer)
        offset = element - position * _SPACING
        if position in self._in_range:
            item, source = self._in_range[position]
            return item, replace(source, offset=offset)
        start, given = next((start, given) for start, given in reversed(self._starts) if start <= position)
        item, column = divmod(position - start, given.columns)
        return item, KeySource(given.name, column, offset)

    def _run(self, node: fx.Node, layer: str) -> Any:
        if node.op != "call_function":
            raise GraphCaptureError(f"layer {layer}: its keys go through {node.op} {node.target}")
        name = op_name(node)
        if self.depends(node):
            if name in _CASTS and node.meta["val"].dtype in _EXACT_BITS:
                return self._known[node.all_input_nodes[0]]
            self._check(node, name, layer)
            if name in RULES:
                return self._brought_into_range(node, name, layer)
        arguments = fx.map_arg(node.args, lambda n: self._known[n])
        keywords = fx.map_arg(node.kwargs, lambda n: self._known[n])
        result = node.target(*arguments, **keywords)  # type: ignore[operator]
        if self.depends(node) and isinstance(result, Tensor) and result.dtype != torch.int64:
            raise _not_supported(node, layer)  # a fraction was added
        return result

    def _narrowed(self, node: fx.Node) -> fx.Node | None:
        """A cast on the way to `node`, since its keys were brought into range if they were, that changes large keys."""
        if node not in self._narrowing:
            found: fx.Node | None = None
            if self.depends(node) and node.op != "placeholder" and op_name(node) not in RULES:
                found = next(filter(None, map(self._narrowed, node.all_input_nodes)), None)
                if found is None and op_name(node) in _CASTS:
                    before, after = (n.meta["val"].dtype for n in (node.all_input_nodes[0], node))
                    # A float key is no whole number that int32 lacks, or nothing says what its cast gives.
                    if not before.is_floating_point and _EXACT_BITS.get(after, 63) < _EXACT_BITS.get(before, 0):
                        found = node
            self._narrowing[node] = found
        return self._narrowing[node]

    def _check(self, node: fx.Node, name: str, layer: str) -> None:
        dependent = [i for i, value in enumerate(node.args) if isinstance(value, fx.Node) and self.depends(value)]
        allowed = name in _SELECTS or node.target is operator.getitem
        if name in ("index", "index_select"):
            allowed = dependent == [0] and not any(self.depends(n) for n in node.all_input_nodes[1:])
        if name in _ADDS:
            allowed = (dependent == [0] or (name == "add" and dependent == [1])) and "alpha" not in node.kwargs
        if name in RULES:
            allowed = dependent == [0] and not any(map(self.depends, node.all_input_nodes[1:]))
        if not allowed:
            raise _not_supported(node, layer)

    def _brought_into_range(self, node: fx.Node, name: str, layer: str) -> Tensor:
        """New elements, whose sources have the rule of a remainder or a clamp."""
        rule, rows = self._rule(node, name, layer)
        if (cast := self._narrowed(node.all_input_nodes[0])) is not None:
            bits = _EXACT_BITS[cast.meta["val"].dtype]
            raise GraphCaptureError(
                f"layer {layer}: its keys go through {described(cast)}, which changes keys beyond 2^{bits}, and then "
                f"{described(node)}, which takes any key: drop the cast, or cast the keys in range"
            )
        keys = self._known[node.all_input_nodes[0]]
        counts = torch.zeros_like(keys) if rows is None else rows.expand_as(keys)
        elements = self._new_elements(keys.numel())
        for i, (element, count) in enumerate(zip(keys.flatten().tolist(), counts.flatten().tolist(), strict=True)):
            item, source = self._source(element, layer)
            if source.offset or source.rule is not OutOfRange.REFUSE:
                raise GraphCaptureError(
                    f"layer {layer}: its keys go through {described(node)} after another op on them: only keys as they "
                    "were sent can be brought into range: do the rest before sending"
                )
            ruled = replace(source, rule=rule, rows=None if rows is None else count)
            self._in_range[int(elements[i]) // _SPACING] = item, ruled
        return elements.reshape(keys.shape)

    def _rule(self, node: fx.Node, name: str, layer: str) -> tuple[OutOfRange, Tensor | None]:
        """The rule of a remainder or a clamp, and how many rows it leaves, None where it does not say."""
        given: dict[str, Any] = {**dict(zip(RULES[name], node.args[1:], strict=False)), **node.kwargs}
        limits = {
            limit: torch.as_tensor(self._known[value] if isinstance(value, fx.Node) else value)
            for limit, value in given.items()
            if value is not None
        }
        if any(limit.is_floating_point() for limit in limits.values()):
            raise _not_supported(node, layer)
        if "min" in limits and limits["min"].any():
            raise GraphCaptureError(
                f"layer {layer}: its keys go through {described(node)}: a server can raise keys to 0 only: do the rest "
                "before sending"
            )
        rows = limits["max"] + 1 if "max" in limits else limits.get("modulus")
        if rows is not None and int(rows.min()) < 1:
            raise _not_supported(node, layer)
        if name == "remainder":
            return OutOfRange.WRAP, rows
        if rows is None:
            return OutOfRange.CLAMP_LOW, None
        return (OutOfRange.CLAMP if "min" in limits else OutOfRange.CLAMP_HIGH), rows


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


def _not_supported(node: fx.Node, layer: str) -> GraphCaptureError:
    return GraphCaptureError(
        f"layer {layer}: its keys go through {described(node)}; a server can select columns, take keys modulo or "
        "clamped to the rows of a table, and add constants: do the rest before sending"
    )
