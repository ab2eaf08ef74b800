"""Finds the embedding layers of an exported module, and says what tables and features they are.

layer `E[x[:, 2]]`            table E; feature `x_2`, one lookup
layer `E[x]`                  table E; feature `x`, as many lookups as x has columns, handed over unreduced
the same, then `.sum(1)`      feature `x` with sum pooling, as an EmbeddingBag's; `.mean(1)` is divided later
layer `E[x + offsets]`        fields side by side in one table: a table and a feature for each of them
layer `E[x % rows]`           feature `x`, whose keys the server takes modulo the rows
layer `E[arange(n)]`          positions, not keys: stays in the DenseNet, as do small tables whose keys are computed
bag of values and offsets     a jagged feature
bag with mode "max", weights  as `E[x]`, handed over unreduced; the DenseNet weighs and pools
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from hebe.models.importing.exported_node import op_name
from hebe.models.importing.key_source import RULES, KeyProbe, KeySource, same_lookups
from hebe.models.importing.layer_tables import Features, FeatureSource, LayerOutput, LayerUse, Tables, Weight
from hebe.models.importing.module_inputs import GraphCaptureError, ModuleInput
from hebe.models.repository.table_file import RowArray
from hebe.spec import EmbeddingTableSpec, FeatureSpec, OutOfRange, Pooling

_BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})
_REDUCES = frozenset({"sum", "mean"})
_NARROWS = frozenset({"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"})
_PROBE_ITEMS = (3, 5)

MOST_BYTES_LEFT = 64 << 20
"""The largest table that stays in the DenseNet, by whose ops its keys are computed, rather than being refused."""


@dataclass(frozen=True)
class EmbeddingCut:
    """Tables and their rows, features and their sources, and by node what the embedding layers' outputs become.

    `paddings` is the padding key of those features that have one. `selections` are the nodes that select some columns
    of an input, or bring these into the range of a feature's table: what the DenseNet can have of the inputs. `left`
    are embedding layers that stay in the DenseNet, each with why it could not become a table. `table_weights` are the
    module's weights that became tables.
    """

    tables: tuple[EmbeddingTableSpec, ...]
    rows: Mapping[str, RowArray]
    features: tuple[FeatureSpec, ...]
    sources: Mapping[str, FeatureSource]
    paddings: Mapping[str, int]
    outputs: Mapping[fx.Node, LayerOutput]
    selections: Mapping[fx.Node, tuple[KeySource, ...]]
    left: Mapping[fx.Node, GraphCaptureError]
    table_weights: tuple[Weight, ...]


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
    uses: list[LayerUse] = []
    left: dict[fx.Node, tuple[Weight, GraphCaptureError]] = {}
    for node in graph.nodes:
        if _is_embedding(node) and any(map(probes[0].depends, node.all_input_nodes)):
            weight = _weight_of(node, weights)
            try:
                uses.append(_use(node, weight, probes))
            except _ComputedKeys as fault:
                left[node] = weight, fault
    table_weights = tuple({use.weight.address: use.weight for use in uses}.values())
    for weight, reason in left.values():
        if not uses or any(map(weight.overlaps, table_weights)) or weight.value.nbytes > MOST_BYTES_LEFT:
            raise GraphCaptureError(str(reason))
    if not uses:
        raise GraphCaptureError("the module has no nn.Embedding or nn.EmbeddingBag layer that its result depends on")
    tables = Tables(uses)
    features = Features({source.name: source for source in inputs.values()}, lookups)
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
        features.paddings,
        outputs,
        _selections(graph, inputs, probes),
        {node: reason for node, (_, reason) in left.items()},
        table_weights,
    )


class _ComputedKeys(GraphCaptureError):
    """The keys of an nn.Embedding are computed as no server can; the DenseNet may be able to."""


def _is_embedding(node: fx.Node) -> bool:
    name = op_name(node)
    return name == "embedding" or name in _BAGS or name.startswith("embedding_renorm")


def _weight_of(node: fx.Node, weights: Mapping[fx.Node, Weight]) -> Weight:
    given = node.args[0]
    assert isinstance(given, fx.Node)
    if op_name(node).startswith("embedding_renorm"):
        while given not in weights and given.all_input_nodes:
            given = given.all_input_nodes[0]
        name = _layer(weights[given]) if given in weights else node.name
        raise GraphCaptureError(f"layer {name}: max_norm changes rows while scoring: not supported; set it to None")
    weight = weights.get(given)
    if weight is None:
        raise GraphCaptureError(
            f"{node.name}: its rows are computed by {given.target} rather than a parameter of an "
            "nn.Embedding or nn.EmbeddingBag: compute them once, before importing"
        )
    if weight.value.dtype != torch.float32:
        raise GraphCaptureError(
            f"layer {_layer(weight)}: its rows are {weight.value.dtype}: must be float32; use module.float()"
        )
    return weight


def _layer(weight: Weight) -> str:
    return weight.name.removesuffix(".weight")


def _use(node: fx.Node, weight: Weight, probes: list[KeyProbe]) -> LayerUse:
    keys = node.args[1]
    assert isinstance(keys, fx.Node)
    if op_name(node) == "embedding":
        return _embedding_use(node, weight, keys, probes)
    return _bag_use(node, weight, keys, probes)


def _embedding_use(node: fx.Node, weight: Weight, keys: fx.Node, probes: list[KeyProbe]) -> LayerUse:
    layer, dim = _layer(weight), weight.value.shape[1]
    try:
        sources = tuple(same_lookups(probes, keys, layer))
    except GraphCaptureError as fault:
        raise _ComputedKeys(str(fault)) from None
    if not sources:
        raise GraphCaptureError(
            f"layer {layer}: its keys are [items, 0] in the example: give it one a lookup, or leave it out"
        )
    use = LayerUse(layer, weight, sources, (*node.meta["val"].shape[1:-1], dim), (node,), padding=_padding(node, 2))
    users = list(node.users)
    if use.shape[:-1] == (len(sources),) and len(users) == 1 and op_name(users[0]) in _REDUCES:
        reduction = users[0]
        dims, keep = reduction.args[1:2], reduction.args[2:]  # neither, where it is over everything
        if dims in (([1],), ([-2],)) and keep in ((), (False,)) and not reduction.kwargs:
            # Not mean pooling, which divides by the keys that an item has: `.mean(1)` counts its padding too.
            divisor = len(sources) if op_name(reduction) == "mean" else None
            return replace(use, pooling=Pooling.SUM, divisor=divisor, shape=(dim,), results=(reduction,))
    return use


def _bag_use(node: fx.Node, weight: Weight, keys: fx.Node, probes: list[KeyProbe]) -> LayerUse:
    layer = _layer(weight)
    names = ("offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset")
    defaults = (None, False, 0, False, None, False)
    given = dict(zip(names, (*node.args[2:8], *defaults[len(node.args) - 2 :]), strict=True))
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    if len(results) != len(node.users):
        raise GraphCaptureError(f"layer {layer}: only the vectors of an EmbeddingBag may be used")
    offsets, weights = given["offsets"], given["per_sample_weights"]
    assert isinstance(offsets, fx.Node)
    assert weights is None or isinstance(weights, fx.Node)
    padding = _padding(node, 8)
    use = LayerUse(
        layer,
        weight,
        (),
        (weight.value.shape[1],),
        tuple(results),
        Pooling.SUM if given["mode"] == 0 else Pooling.MEAN,
        padding=padding,
        skips_padding=padding is not None,
    )
    in_dense_net = "mode 'max'" if given["mode"] == 2 else "per_sample_weights" if weights is not None else None
    if in_dense_net is not None:
        if probes[0].depends(offsets) or (padding is not None and weights is None):
            beside = "padding_idx" if padding is not None else "offsets"
            raise GraphCaptureError(
                f"layer {layer}: {in_dense_net} together with {beside} is not supported; keys [items, n] without are"
            )
        use = replace(use, pooling=None, reduce="max" if weights is None else "sum", weights=weights)
    if probes[0].depends(offsets):
        values, starts = probes[0].whole_input(keys, layer), probes[0].whole_input(offsets, layer)
        if starts.offset or starts.rule is not OutOfRange.REFUSE:
            raise GraphCaptureError(f"layer {layer}: its offsets are changed on the way; they must be an input")
        use = replace(
            use,
            sources=(replace(values, column=0),),
            offsets=starts.input,
            ends_with_total=bool(given["include_last_offset"]),
        )
    else:
        sources = tuple(same_lookups(probes, keys, layer, flat=True))
        for probe in probes:
            begins = probe.value(offsets, layer)
            count = probe.items + bool(given["include_last_offset"])
            if not torch.equal(begins, torch.arange(count) * len(sources)):
                raise GraphCaptureError(f"layer {layer}: its offsets must be an input, or divide the keys evenly")
        use = replace(use, sources=sources)
    if padding is not None:
        _check_skipped(use, padding)
    return use


def _padding(node: fx.Node, position: int) -> int | None:
    """The padding_idx of a layer, an argument that is None or -1 where it has none."""
    given = node.args[position] if len(node.args) > position else None
    return given if isinstance(given, int) and given >= 0 else None


def _check_skipped(use: LayerUse, padding: int) -> None:
    """The sum of an EmbeddingBag leaves its padding out: here its row is zero, so that it may be added."""
    if any(source.offset for source in use.sources):
        raise GraphCaptureError(
            f"layer {use.layer}: padding_idx together with constants added to its keys: not supported"
        )
    if use.weight.value[padding].any():
        raise GraphCaptureError(
            f"layer {use.layer}: the row of its padding_idx {padding} is not zero, though the layer leaves it out: set "
            "it to zero before importing"
        )


def _selections(
    graph: fx.Graph, inputs: Mapping[fx.Node, ModuleInput], probes: list[KeyProbe]
) -> dict[fx.Node, tuple[KeySource, ...]]:
    """The nodes that are columns of one input, perhaps brought into the range of a table, with their columns."""
    found = {
        node: tuple(KeySource(source.name, column) for column in range(source.columns))
        for node, source in inputs.items()
        if source.items_offset == 0
    }
    narrowed = set(found)
    for node in graph.nodes:
        narrows = op_name(node) in (_NARROWS | RULES.keys()) or node.target is operator.getitem
        if not narrows or node.args[0] not in narrowed:
            continue
        try:
            if isinstance(node.meta["val"], torch.Tensor):
                found[node] = tuple(same_lookups(probes, node, node.name))
            else:
                probes[0].value(node, node.name)  # several pieces, of which one is taken
        except GraphCaptureError:
            continue
        narrowed.add(node)
    return found
