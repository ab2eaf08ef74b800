"""The tables and features that the calls of a module's embedding layers become.

A layer's weight is a table; or several, cut where the fields of one table begin. What a call looks up is a feature of
its own for each input, rule and field that its keys come from; two calls with the same keys share theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from hebe.models.importing.key_source import KeySource
from hebe.models.importing.module_inputs import GraphCaptureError, ModuleInput, usable_name
from hebe.models.repository.table_file import RowArray
from hebe.query import bring_into_range
from hebe.spec import EmbeddingTableSpec, FeatureSpec, OutOfRange, Pooling

ABSENT = -1
"""The key that stands where an item has none."""

Address = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Where a tensor begins in memory, its shape and its strides."""


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the module."""

    name: str
    value: Tensor

    @property
    def address(self) -> Address:
        """Where it lies in memory: the same for a weight that has several names, another for a part of it."""
        return self.value.data_ptr(), tuple(self.value.shape), self.value.stride()

    def overlaps(self, other: Weight) -> bool:
        """Whether the two have an element in common, as where one is the other transposed."""
        return np.shares_memory(_elements(self.value), _elements(other.value))


def _elements(value: Tensor) -> npt.NDArray[np.generic]:
    """A view of the tensor's elements, as bytes of their size: NumPy lacks some of torch's dtypes."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(value.element_size(), value.dtype)
    return value.detach().view(bits).numpy()


@dataclass(frozen=True)
class FeatureSource:
    """Which input of the module gives a feature's keys: `columns` of `input`, counted over all but its first
    dimension; or, for a jagged feature, all of `input`, divided by the input `offsets`, which may end with the total.
    """

    input: str
    columns: tuple[int, ...] = ()
    offsets: str | None = None
    ends_with_total: bool = False

    def __str__(self) -> str:
        if self.offsets is not None:
            return f"{self.input} by {self.offsets}"
        first, last = self.columns[0], self.columns[-1]
        if len(self.columns) == 1:
            return f"{self.input} column {first}"
        if self.columns == tuple(range(first, last + 1)):
            return f"{self.input} columns {first} to {last}"
        return f"{self.input} columns {', '.join(map(str, self.columns))}"


@dataclass(frozen=True)
class LayerUse:
    """One call of an embedding layer. `results` are the nodes that its output takes the place of, `padding` its
    padding_idx, `skips_padding` whether its pooling leaves that key out.

    `reduce` is how the DenseNet pools the rows, where the SparseNet cannot: their "max", or the "sum" of rows that are
    multiplied by `weights`, a number for each. A sum is divided by `divisor`, if there is one.
    """

    layer: str
    weight: Weight
    sources: tuple[KeySource, ...]
    shape: tuple[int, ...]
    results: tuple[fx.Node, ...]
    pooling: Pooling | None = None
    offsets: str | None = None
    ends_with_total: bool = False
    padding: int | None = None
    skips_padding: bool = False
    reduce: str | None = None
    weights: fx.Node | None = None
    divisor: int | None = None

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of rows that its keys lie in: from each constant that is added to them to the next, or as many as
        the rule before leaves. Raises `GraphCaptureError` where they lie outside of the table or in each other's range.
        """
        rows = len(self.weight.value)
        starts = sorted({source.offset for source in self.sources})
        ranges = []
        for start, stop in itertools.pairwise((*starts, rows)):
            if not 0 <= start < rows:
                raise GraphCaptureError(
                    f"layer {self.layer}: the constant {start} that is added to its keys lies outside of its {rows} "
                    "rows"
                )
            counts = {source.rows or stop - start for source in self.sources if source.offset == start}
            if len(counts) > 1 or max(counts) > stop - start:
                raise GraphCaptureError(
                    f"layer {self.layer}: its keys are brought into the range of "
                    f"{' and of '.join(map(str, sorted(counts)))} rows, where it has {stop - start} for them"
                )
            ranges.append((start, start + counts.pop()))
        return tuple(ranges)


@dataclass(frozen=True)
class LayerOutput:
    """How the DenseNet has what an embedding layer gave: these features' columns of `sparse`, as `[items, lookups,
    dim]`, multiplied by `weights`, `[items, lookups]` in any shape, and reduced over the lookups if `reduce` ("sum",
    "max"), then as `[items, *shape]`.

    The sum is still to be divided by `divisor`, or with `mean_without` by the number of keys other than that one,
    `ABSENT` for all that an item has.
    """

    features: tuple[str, ...]
    lookups: int
    dim: int
    reduce: str | None
    shape: tuple[int, ...]
    mean_without: int | None = None
    weights: fx.Node | None = None
    divisor: int | None = None


class Tables:
    """The tables that the layers' weights become: whole, or cut where the fields of one table begin.

    Raises `GraphCaptureError` for a layer whose calls would cut it at unlike rows.
    """

    def __init__(self, uses: list[LayerUse]) -> None:
        self.specs: dict[str, EmbeddingTableSpec] = {}
        self.rows: dict[str, RowArray] = {}
        self._name_of: dict[tuple[Address, int], str] = {}
        cuts: dict[Address, LayerUse] = {}
        for use in uses:
            first = cuts.setdefault(use.weight.address, use)
            if first.ranges != use.ranges:
                raise GraphCaptureError(
                    f"layer {use.layer}: in one call its keys lie in rows {_ranges_text(first)} and in another in rows "
                    f"{_ranges_text(use)}, by the constants and the rules on the way: not supported; give each its own "
                    "layer"
                )
            if first is use:
                self._add(use)

    def spec(self, use: LayerUse, constant: int) -> EmbeddingTableSpec:
        """The table that keys plus this constant lie in."""
        return self.specs[self._name_of[use.weight.address, constant]]

    def _add(self, use: LayerUse) -> None:
        weight = use.weight.value
        for i, (start, stop) in enumerate(use.ranges):
            name = usable_name(use.layer, "table", self.specs, "" if len(use.ranges) == 1 else f".{i}")
            self.specs[name] = EmbeddingTableSpec(name, stop - start, weight.shape[1])
            self.rows[name] = weight[start:stop].numpy(force=True)
            self._name_of[use.weight.address, start] = name


class Features:
    """The features that the layers read, each named after its input and columns.

    `paddings` is the key that a feature's layers take for padding, where they have one.
    """

    def __init__(self, inputs: Mapping[str, ModuleInput], lookups: Mapping[str, int]) -> None:
        self.specs: list[FeatureSpec] = []
        self.sources: dict[str, FeatureSource] = {}
        self.paddings: dict[str, int] = {}
        self._inputs = inputs
        self._lookups = lookups

    def add(self, use: LayerUse, tables: Tables) -> LayerOutput:
        """Make sure of the features that a layer reads; returns what its output becomes.

        Raises `GraphCaptureError` where the example's keys are not in their tables.
        """
        groups = [list(group) for _, group in itertools.groupby(use.sources, lambda s: (s.input, s.offset, s.rule))]
        pooled_here = use.pooling is not None and len(groups) > 1
        mean_without = None
        if use.pooling is Pooling.MEAN:
            mean_without = use.padding if use.skips_padding else ABSENT if pooled_here else None
        use_pooling = use.pooling if mean_without is None else Pooling.SUM
        names = []
        for group in groups:
            source = FeatureSource(group[0].input, tuple(key.column for key in group))
            lookups = len(group)
            if use.offsets is not None:
                source = FeatureSource(group[0].input, (), use.offsets, use.ends_with_total)
                lookups = self._jagged_lookups(source)
            if use_pooling is not None and not pooled_here:
                pooling = use_pooling
            else:
                pooling = Pooling.CONCAT if lookups > 1 else Pooling.SUM
            table = tables.spec(use, group[0].offset)
            # What lies past the end of a jagged sequence has a vector of zeros, which a maximum may take.
            whole = use.reduce == "max" and len(use.sources) > 1
            names.append(self._feature(source, table, lookups, pooling, group[0].rule, whole))
            if use.padding is not None and 0 <= use.padding - group[0].offset < table.rows:
                self.paddings.setdefault(names[-1], use.padding - group[0].offset)
        reduce = use_pooling if pooled_here else use.reduce
        lookups = len(use.sources) if use_pooling is None or pooled_here else 1
        dim = use.weight.value.shape[1]
        return LayerOutput(tuple(names), lookups, dim, reduce, use.shape, mean_without, use.weights, use.divisor)

    def _feature(
        self,
        source: FeatureSource,
        table: EmbeddingTableSpec,
        lookups: int,
        pooling: Pooling,
        rule: OutOfRange,
        whole: bool,
    ) -> str:
        for i, spec in enumerate(self.specs):
            same = spec.table == table.name and spec.pooling is pooling and spec.out_of_range is rule
            if same and self.sources[spec.name] == source:
                self.specs[i] = replace(spec, whole=spec.whole or whole)
                return spec.name
        self._check_example(source, table, rule)
        name = next(name for name in self._names(source, table.name) if self._is_free(name))
        self.specs.append(FeatureSpec(name, table.name, lookups, pooling, rule, whole))
        self.sources[name] = source
        return name

    def _check_example(self, source: FeatureSource, table: EmbeddingTableSpec, rule: OutOfRange) -> None:
        keys = self._inputs[source.input].example
        if source.columns:
            keys = keys.reshape(len(keys), -1)[:, list(source.columns)]
        if keys.is_floating_point() and not torch.equal(keys, keys.trunc()):
            wrong = float(keys[keys != keys.trunc()][0])
            raise GraphCaptureError(
                f"input {source.input}: its values become keys of table {table.name}, but the example has {wrong:g}: "
                "keys must be whole numbers"
            )
        in_range = bring_into_range(keys.long().numpy(), table.rows, rule)
        if in_range.size and not 0 <= int(in_range.min()) <= int(in_range.max()) < table.rows:
            wrong = int(in_range.min()) if in_range.min() < 0 else int(in_range.max())
            raise GraphCaptureError(
                f"input {source.input}: the example has key {wrong}, outside of the {table.rows} rows of table "
                f"{table.name}; where constants are added to the keys of one layer, each field's rows must end "
                "where the next begins"
            )

    def _names(self, source: FeatureSource, table: str) -> Iterator[str]:
        name = source.input
        if source.columns and source.columns != tuple(range(self._inputs[source.input].columns)):
            first, last = source.columns[0], source.columns[-1]
            name += f"_{first}" if len(source.columns) == 1 else f"_{first}_{last}"
        yield usable_name(name, "", ())
        yield usable_name(f"{name}.{table}", "", ())
        yield from (usable_name(f"{name}.{table}", "", (), f".{i}") for i in itertools.count(2))

    def _is_free(self, name: str) -> bool:
        """Whether no other feature is called so, nor an input of the protocol."""
        reserved = name in ("dense", "score") or name.endswith((".values", ".lengths"))
        return not reserved and name not in self.sources

    def _jagged_lookups(self, source: FeatureSource) -> int:
        values = self._inputs[source.input].example
        assert source.offsets is not None
        offsets = self._inputs[source.offsets].example
        ends = offsets if source.ends_with_total else torch.cat([offsets, offsets.new_tensor([len(values)])])
        counts = ends.diff()
        if offsets[0] != 0 or ends[-1] != len(values) or counts.min() < 0:
            raise GraphCaptureError(
                f"example input {source.offsets} does not divide {source.input}: offsets start at 0, ascend, "
                f"and stay within its {len(values)} values"
            )
        most = max(1, int(counts.max()))
        if self._lookups.get(source.input, most) < most:
            raise GraphCaptureError(
                f"input {source.input}: the example has an item with {most} keys, more than allowed"
            )
        return self._lookups.get(source.input, most)


def _ranges_text(use: LayerUse) -> str:
    return ", ".join(f"{start} to {stop - 1}" for start, stop in use.ranges)
