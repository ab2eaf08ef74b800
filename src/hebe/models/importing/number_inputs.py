"""What the DenseNet reads of the module's inputs themselves, and where it has it.

A column whose keys a feature has comes from `keys`, the batch's key matrix: a mask `keys != 0` is computed from the
keys that were looked up. Every other column, of whatever dtype, is a column of `dense`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from hebe.models.importing.embedding_cut import EmbeddingCut
from hebe.models.importing.exported_node import described, op_name
from hebe.models.importing.key_source import KeySource
from hebe.models.importing.module_inputs import GraphCaptureError, ModuleInput
from hebe.spec import OutOfRange

NEW_TENSORS = frozenset({"new_zeros", "new_ones", "new_full"})
"""Ops that make a tensor of their own size, and read another only for its dtype and device."""

_LARGEST_EXACT = 1 << 24
"""Whole numbers up to this are exact in float32, the dtype of `dense`."""

_MOST_RUNS = 4
"""A selection of more runs of columns than this is computed from its whole input rather than put together."""


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Columns `[start, stop)` of the DenseNet's input `source`, "dense" or "keys"; `padding` is the key that stands
    where an item has none.
    """

    source: str
    start: int
    stop: int
    padding: int = 0


class NumberInputs:
    """What the op graph reads: made from an exported graph's result `output` and the cut of its embedding layers.

    `needed` are the nodes on which the result depends, `dense_columns` the columns of the module's inputs that stand
    side by side in `dense`, by input and in order. Raises `GraphCaptureError` naming the input and the line for what
    neither `dense` nor `keys` can give.
    """

    def __init__(self, output: fx.Node, cut: EmbeddingCut, inputs: Mapping[fx.Node, ModuleInput]) -> None:
        self._cut = cut
        self._inputs = inputs
        self._by_name = {source.name: source for source in inputs.values()}
        self._key_columns = dict(self._feature_columns())
        self._jagged = {
            name for source in cut.sources.values() if source.offsets for name in (source.input, source.offsets)
        }
        self._selections = {node: sources for node, sources in cut.selections.items() if self._is_had(node, sources)}
        self.needed = self._needed(output)
        self.reads_keys = any(
            output.mean_without is not None for node, output in cut.outputs.items() if node in self.needed
        )
        self._check_left()
        self.dense_columns = self._dense_columns()
        dense = [(name, column) for name, columns in self.dense_columns.items() for column in columns]
        self._dense_at = {column: i for i, column in enumerate(dense)}

    @property
    def dense_dim(self) -> int:
        """Columns of `dense`."""
        return len(self._dense_at)

    def runs(self, node: fx.Node) -> list[ColumnRun] | None:
        """The columns that `node` is, flattened to `[items, columns]`; None for a node that is no selection of them."""
        sources = self._selections.get(node)
        if sources is None:
            return None
        runs: list[ColumnRun] = []
        for source in sources:
            where, column, padding = self._place(source)
            last = runs[-1] if runs else None
            if last is not None and (last.source, last.stop, last.padding) == (where, column, padding):
                runs[-1] = ColumnRun(where, last.start, column + 1, padding)
            else:
                runs.append(ColumnRun(where, column, column + 1, padding))
        return runs

    def key_columns(self, feature: str) -> tuple[int, int]:
        """The columns of `keys` that hold the keys of a feature: (first, one past the last)."""
        start = 0
        for spec in self._cut.features:
            if spec.name == feature:
                return start, start + spec.lookups
            start += spec.lookups
        raise KeyError(feature)

    def sized_input(self, node: fx.Node) -> ModuleInput | None:
        """The input whose first dimension `node` is, if it is one."""
        if op_name(node) != "sym_size":
            return None
        (sized,) = node.all_input_nodes
        return self._inputs.get(sized)

    def is_pattern(self, node: fx.Node, argument: object) -> bool:
        """Whether an op makes a new tensor of its own size, and has an input only as a pattern of its kind."""
        return op_name(node) in NEW_TENSORS and argument is node.args[0] and argument in self._inputs

    def _feature_columns(self) -> Iterator[tuple[tuple[str, int, OutOfRange, int | None], tuple[str, int, int]]]:
        """By input, column, rule and rows of the rule: ("keys", its column there, padding)."""
        rows_of = {table.name: table.rows for table in self._cut.tables}
        for feature in reversed(self._cut.features):  # the first of several with the same keys comes last, and stays
            source, (start, _) = self._cut.sources[feature.name], self.key_columns(feature.name)
            rule = feature.out_of_range
            ruled = rule not in (OutOfRange.REFUSE, OutOfRange.CLAMP_LOW)
            for position, column in enumerate(source.columns):
                rows = rows_of[feature.table] if ruled else None
                padding = self._cut.paddings.get(feature.name, 0)
                yield (source.input, column, rule, rows), ("keys", start + position, padding)

    def _place(self, source: KeySource) -> tuple[str, int, int]:
        """("dense" or "keys", column, padding)."""
        found = self._key_columns.get((source.input, source.column, source.rule, source.rows))
        return found or ("dense", self._dense_at[source.input, source.column], 0)

    def _is_key(self, source: KeySource) -> bool:
        return (source.input, source.column, source.rule, source.rows) in self._key_columns

    def _is_had(self, node: fx.Node, sources: tuple[KeySource, ...]) -> bool:
        """Whether a selection can be put together of a few runs; one in range only if a feature has those keys."""
        if node in self._inputs:
            return True
        if any(source.rule is not OutOfRange.REFUSE and not self._is_key(source) for source in sources):
            return False
        columns = [source.column for source in sources]
        breaks = sum(later != earlier + 1 for earlier, later in itertools.pairwise(columns))
        return breaks < _MOST_RUNS

    def _needed(self, output: fx.Node) -> set[fx.Node]:
        found: set[fx.Node] = set()
        waiting = [output]
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            given = self._inputs.get(node)
            if given is not None and (given.name in self._jagged or given.items_offset != 0):
                raise GraphCaptureError(
                    f"input {given.name} is jagged but is also read by {self._readers(node, found)}; give what that "
                    "needs as an input of its own"
                )
            if node in self._cut.outputs:
                weights = self._cut.outputs[node].weights
                waiting += [] if weights is None else [weights]
                continue
            if node in self._selections or self.sized_input(node) is not None:
                continue
            waiting.extend(argument for argument in node.all_input_nodes if not self.is_pattern(node, argument))
        return found

    def _dense_columns(self) -> dict[str, tuple[int, ...]]:
        """Floats whole, where no column of them is a key; of all else what is read."""
        read: dict[str, set[int]] = {name: set() for name in self._by_name}
        rules = {(name, column): rule for name, column, rule, _ in self._key_columns}
        keyed = {name for name, _ in rules}
        for name, given in self._by_name.items():
            if given.example.is_floating_point() and name not in keyed:
                read[name].update(range(given.columns))
        for node in self.needed & self._selections.keys():
            for source in self._selections[node]:
                if self._is_key(source):
                    self.reads_keys = True
                    continue
                self._check_read(node, source, rules.get((source.input, source.column)))
                read[source.input].add(source.column)
        return {name: tuple(sorted(columns)) for name, columns in read.items() if columns}

    def _check_read(self, node: fx.Node, source: KeySource, rule: OutOfRange | None) -> None:
        """Raise unless `dense` can give a column; `rule` is that of the feature which has it, if one does."""
        if rule is not None:
            raise GraphCaptureError(
                f"input {source.input} is read as it is by {self._readers(node, self.needed)}, but its column "
                f"{source.column} becomes keys that the server brings into the range of their table ({rule}) before "
                "the model has them: read the keys in range instead, and pad with one of these"
            )
        given = self._by_name[source.input].example
        if given.is_floating_point():
            return
        largest = int(given.reshape(len(given), -1)[:, source.column].long().abs().max())
        if largest > _LARGEST_EXACT:
            raise GraphCaptureError(
                f"input {source.input}: {self._readers(node, self.needed)} computes with column {source.column}, whose "
                f"example has {largest}: a number comes as float32, which is exact up to {_LARGEST_EXACT} only; give "
                "it as float32, in a unit that fits"
            )

    def _check_left(self) -> None:
        """Raise for an embedding layer in the DenseNet whose keys are computed from others than a feature has: `dense`
        would not give those exactly.
        """
        for layer, fault in self._cut.left.items():
            if layer not in self.needed:
                continue
            keys = layer.args[1]
            assert isinstance(keys, fx.Node)
            for node in self._needed(keys) & self._selections.keys():
                for source in self._selections[node]:
                    if not self._is_key(source) and not self._by_name[source.input].example.is_floating_point():
                        raise GraphCaptureError(str(fault))

    def _readers(self, node: fx.Node, needed: set[fx.Node]) -> str:
        readers = [described(user) for user in node.users if user in needed and not self.is_pattern(user, node)]
        return " and ".join(dict.fromkeys(readers)) or "the result"
