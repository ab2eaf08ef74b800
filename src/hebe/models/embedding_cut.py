"""Finds the embedding layers of an exported module, and says what tables and features they are.

layer `E[x[:, 2]]`            table E; feature `x_2`, one lookup
layer `E[x]`                  table E; feature `x`, as many lookups as x has columns, handed over unreduced
the same, then `.sum(1)`      feature `x` with sum pooling, as an EmbeddingBag's
layer `E[x + offsets]`        fields side by side in one table: a table and a feature for each of them
bag of values and offsets     a jagged feature
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from hebe.models.key_source import KeyProbe, KeySource, op_name, same_lookups
from hebe.models.module_inputs import GraphCaptureError, ModuleInput
from hebe.models.table_file import RowArray
from hebe.spec import EmbeddingTableSpec, FeatureSpec, Pooling

_BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})
_REDUCES = {"sum": Pooling.SUM, "mean": Pooling.MEAN}
_PROBE_ITEMS = (3, 5)


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the module."""

    name: str
    value: Tensor


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
class LayerOutput:
    """How the DenseNet has what an embedding layer gave: these features' columns of `sparse`, as `[items, lookups,
    dim]`, reduced over the lookups if `reduce`, then as `[items, *shape]`.
    """

    features: tuple[str, ...]
    lookups: int
    dim: int
    reduce: Pooling | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class EmbeddingCut:
    """Tables and their rows, features and their sources, and by node what the embedding layers' outputs become.

    `table_addresses` tells by their address in memory which of the module's weights became tables.
    """

    tables: tuple[EmbeddingTableSpec, ...]
    rows: Mapping[str, RowArray]
    features: tuple[FeatureSpec, ...]
    sources: Mapping[str, FeatureSource]
    outputs: Mapping[fx.Node, LayerOutput]
    table_addresses: frozenset[int]


@dataclass(frozen=True)
class _Use:
    """One call of an embedding layer. `results` are the nodes that its output takes the place of."""

    layer: str
    weight: Weight
    sources: tuple[KeySource, ...]
    offsets: str | None
    ends_with_total: bool
    pooling: Pooling | None
    shape: tuple[int, ...]
    results: tuple[fx.Node, ...]

    @property
    def constants(self) -> tuple[int, ...]:
        """The constants that are added to keys, in ascending order."""
        return tuple(sorted({source.offset for source in self.sources}))


def cut_embeddings(
    graph: fx.Graph,
    inputs: Mapping[fx.Node, ModuleInput],
    weights: Mapping[fx.Node, Weight],
    lookups: Mapping[str, int],
) -> EmbeddingCut:
    """The embedding layers of an exported graph; `lookups` is the most keys per item of jagged features by name.

    Raises `GraphCaptureError` naming the layer, for what cannot be captured.
    """
    constants = {node: weight.value for node, weight in weights.items()}
    probes = [KeyProbe(inputs, constants, items) for items in _PROBE_ITEMS]
    uses = [_use(node, weights, probes) for node in graph.nodes if _is_embedding(node)]
    if not uses:
        raise GraphCaptureError("the module has no nn.Embedding or nn.EmbeddingBag layer that its result depends on")
    tables = _Tables(uses)
    features = _Features({source.name: source for source in inputs.values()}, lookups)
    outputs: dict[fx.Node, LayerOutput] = {}
    for use in uses:
        output = features.add(use, tables)
        outputs.update(dict.fromkeys(use.results, output))
    unknown = set(lookups) - {source.input for source in features.sources.values() if source.offsets}
    if unknown:
        raise GraphCaptureError(f"lookups are given for {', '.join(sorted(unknown))}, which gives no jagged feature")
    return EmbeddingCut(
        tuple(tables.specs.values()),
        tables.rows,
        tuple(features.specs),
        features.sources,
        outputs,
        frozenset(_address(use.weight) for use in uses),
    )


def _is_embedding(node: fx.Node) -> bool:
    name = op_name(node)
    return name == "embedding" or name in _BAGS or name.startswith("embedding_renorm")


def _use(node: fx.Node, weights: Mapping[fx.Node, Weight], probes: list[KeyProbe]) -> _Use:
    given, keys = node.args[0], node.args[1]
    assert isinstance(given, fx.Node)
    assert isinstance(keys, fx.Node)
    if op_name(node).startswith("embedding_renorm"):
        while given not in weights and given.all_input_nodes:
            given = given.all_input_nodes[0]
        name = weights[given].name.removesuffix(".weight") if given in weights else node.name
        raise GraphCaptureError(f"layer {name}: max_norm changes rows while scoring: not supported; set it to None")
    weight = weights.get(given)
    if weight is None:
        raise GraphCaptureError(
            f"{node.name}: its rows are computed by {given.target} rather than a parameter of an "
            "nn.Embedding or nn.EmbeddingBag: compute them once, before importing"
        )
    layer = weight.name.removesuffix(".weight")
    if weight.value.dtype != torch.float32:
        raise GraphCaptureError(
            f"layer {layer}: its rows are {weight.value.dtype}: must be float32; use module.float()"
        )
    if op_name(node) == "embedding":
        return _embedding_use(node, layer, weight, keys, probes)
    return _bag_use(node, layer, weight, keys, probes)


def _embedding_use(node: fx.Node, layer: str, weight: Weight, keys: fx.Node, probes: list[KeyProbe]) -> _Use:
    sources = tuple(same_lookups(probes, keys, layer))
    dim = weight.value.shape[1]
    use = _Use(layer, weight, sources, None, False, None, (*node.meta["val"].shape[1:-1], dim), (node,))
    users = list(node.users)
    if use.shape[:-1] == (len(sources),) and len(users) == 1 and op_name(users[0]) in _REDUCES:
        reduction = users[0]
        _, dims, *keep = (*reduction.args, *reduction.kwargs.values())
        if dims in ([1], [-2]) and not reduction.kwargs and keep in ([], [False]):
            pooling = _REDUCES[op_name(reduction)]
            return replace(use, pooling=pooling, shape=(dim,), results=(reduction,))
    return use


def _bag_use(node: fx.Node, layer: str, weight: Weight, keys: fx.Node, probes: list[KeyProbe]) -> _Use:
    names = ("offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset", "padding")
    defaults = (None, False, 0, False, None, False, None)
    given = dict(zip(names, (*node.args[2:], *defaults[len(node.args) - 2 :]), strict=True))
    if given["mode"] == 2:
        raise GraphCaptureError(f"layer {layer}: mode 'max' is not supported; 'sum' and 'mean' are")
    if given["per_sample_weights"] is not None:
        raise GraphCaptureError(f"layer {layer}: per_sample_weights are not supported; plain sums and means are")
    if given["padding"] not in (None, -1):
        raise GraphCaptureError(
            f"layer {layer}: padding_idx of an EmbeddingBag is not supported; send jagged keys without the padding"
        )
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    if len(results) != len(node.users):
        raise GraphCaptureError(f"layer {layer}: only the vectors of an EmbeddingBag may be used")
    offsets = given["offsets"]
    assert isinstance(offsets, fx.Node)
    pooling = Pooling.SUM if given["mode"] == 0 else Pooling.MEAN
    use = _Use(layer, weight, (), None, False, pooling, (weight.value.shape[1],), tuple(results))
    if probes[0].depends(offsets):
        values, constant = probes[0].whole_input(keys, layer)
        offsets_input, shift = probes[0].whole_input(offsets, layer)
        if shift:
            raise GraphCaptureError(f"layer {layer}: a constant is added to its offsets")
        return replace(
            use,
            sources=(KeySource(values, 0, constant),),
            offsets=offsets_input,
            ends_with_total=bool(given["include_last_offset"]),
        )
    sources = tuple(same_lookups(probes, keys, layer, flat=True))
    for probe in probes:
        starts = probe.value(offsets, layer)
        count = probe.items + bool(given["include_last_offset"])
        if not torch.equal(starts, torch.arange(count) * len(sources)):
            raise GraphCaptureError(f"layer {layer}: its offsets must be an input, or divide the keys evenly")
    return replace(use, sources=sources)


class _Tables:
    """The tables that the layers' weights become: whole, or cut where the fields of one table begin."""

    def __init__(self, uses: list[_Use]) -> None:
        self.specs: dict[str, EmbeddingTableSpec] = {}
        self.rows: dict[str, RowArray] = {}
        self._name_of: dict[tuple[int, int], str] = {}
        cuts: dict[int, tuple[str, tuple[int, ...]]] = {}
        for use in uses:
            layer, constants = cuts.setdefault(_address(use.weight), (use.layer, use.constants))
            if constants != use.constants:
                raise GraphCaptureError(
                    f"layer {layer}: constants {list(constants)} are added to its keys in one call and "
                    f"{list(use.constants)} in another: not supported"
                )
            if self._name_of.get((_address(use.weight), constants[0])) is None:
                self._add(use)

    def spec(self, use: _Use, constant: int) -> EmbeddingTableSpec:
        """The table that keys plus this constant lie in."""
        return self.specs[self._name_of[_address(use.weight), constant]]

    def _add(self, use: _Use) -> None:
        weight = use.weight.value
        starts = use.constants
        if starts[0] < 0 or starts[-1] >= len(weight):
            raise GraphCaptureError(
                f"layer {use.layer}: the constant {starts[0] if starts[0] < 0 else starts[-1]} that is added to its "
                f"keys lies outside of its {len(weight)} rows"
            )
        for i, (start, stop) in enumerate(itertools.pairwise((*starts, len(weight)))):
            name = use.layer.lstrip("_") or "table"  # names begin with a letter or digit
            name = name if len(starts) == 1 else f"{name}.{i}"
            while name in self.specs:
                name += "_"
            self.specs[name] = EmbeddingTableSpec(name, stop - start, weight.shape[1])
            self.rows[name] = weight[start:stop].numpy(force=True)
            self._name_of[_address(use.weight), start] = name


class _Features:
    """The features that the layers read, each named after its input and columns."""

    def __init__(self, inputs: Mapping[str, ModuleInput], lookups: Mapping[str, int]) -> None:
        self.specs: list[FeatureSpec] = []
        self.sources: dict[str, FeatureSource] = {}
        self._inputs = inputs
        self._lookups = lookups

    def add(self, use: _Use, tables: _Tables) -> LayerOutput:
        """Make sure of the features that a layer reads; returns what its output becomes."""
        groups = [list(group) for _, group in itertools.groupby(use.sources, lambda s: (s.input, s.offset))]
        pooled_here = use.pooling is not None and len(groups) > 1
        names = []
        for group in groups:
            source = FeatureSource(group[0].input, tuple(key.column for key in group))
            lookups = len(group)
            if use.offsets is not None:
                source = FeatureSource(group[0].input, (), use.offsets, use.ends_with_total)
                lookups = self._jagged_lookups(source)
            if use.pooling is not None and not pooled_here:
                pooling = use.pooling
            else:
                pooling = Pooling.CONCAT if lookups > 1 else Pooling.SUM
            names.append(self._feature(source, tables.spec(use, group[0].offset), lookups, pooling))
        reduce = use.pooling if pooled_here else None
        lookups = len(use.sources) if use.pooling is None or pooled_here else 1
        return LayerOutput(tuple(names), lookups, use.weight.value.shape[1], reduce, use.shape)

    def _feature(self, source: FeatureSource, table: EmbeddingTableSpec, lookups: int, pooling: Pooling) -> str:
        for spec in self.specs:
            same = spec.table == table.name and spec.pooling is pooling
            if same and self.sources[spec.name] == source:
                return spec.name
        self._check_example(source, table)
        name = next(name for name in self._names(source, table.name) if name not in self.sources)
        self.specs.append(FeatureSpec(name, table.name, lookups, pooling))
        self.sources[name] = source
        return name

    def _check_example(self, source: FeatureSource, table: EmbeddingTableSpec) -> None:
        keys = self._inputs[source.input].example
        if source.columns:
            keys = keys.reshape(len(keys), -1)[:, list(source.columns)]
        if keys.numel() and not 0 <= int(keys.min()) <= int(keys.max()) < table.rows:
            wrong = int(keys.min()) if keys.min() < 0 else int(keys.max())
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
        if name not in ("dense", "score"):
            yield name
        yield f"{name}.{table}"
        yield from (f"{name}.{table}.{i}" for i in itertools.count(2))

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


def _address(weight: Weight) -> int:
    return weight.value.data_ptr()
