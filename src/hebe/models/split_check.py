"""Shows that a captured model computes what the module it was captured from does.

Compared on the example and on random inputs of other sizes, through the traced graph, which is what is served; and
each half of the items alone with the whole, since a server splits and joins queries. Last, on inputs that only a
server sees, which no item may fail for those that share its batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hebe.models.graph_capture import CapturedModel
from hebe.models.graph_module import OpFailed, build
from hebe.models.layer_tables import FeatureSource
from hebe.models.module_inputs import FlatModule, GraphCaptureError
from hebe.query import bring_into_range
from hebe.spec import FeatureSpec, OutOfRange

TOLERANCE = 1e-5
SIZES = (1, 2, 7, 32)
"""Numbers of items of the random inputs."""

Inputs = dict[str, Tensor]


def check_split(
    module: nn.Module,
    example_inputs: Mapping[str, Any] | Sequence[Any] | Tensor,
    captured: CapturedModel,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """The greatest difference between a score of `module` and of the captured model.

    Raises `GraphCaptureError` where it exceeds 1e-5 (relative to the score where that is above 1), where scores
    are not finite, where an item's score depends on the other items of its batch, and where some number or key that a
    client may send fails the batch.
    """
    flat = FlatModule(module, example_inputs)
    generator = torch.Generator().manual_seed(seed)
    cases: list[tuple[str, Inputs]] = [("the example", {source.name: source.example for source in flat.inputs})]
    cases += [(f"{items} random item(s)", _random_inputs(flat, captured, items, generator)) for items in SIZES]
    originals = [_original(flat, inputs, case) for case, inputs in cases]
    dense_net = _traced(captured, cases[-1][1])
    greatest = 0.0
    for done, ((case, inputs), expected) in enumerate(zip(cases, originals, strict=True)):
        tensors = dense_net_inputs(captured, inputs)
        with torch.no_grad():
            try:
                scores = dense_net(*tensors)
            except RuntimeError as fault:
                reason = _reason(captured, tensors, fault)
                raise GraphCaptureError(f"the captured model fails on {case}: {reason}") from fault
            greatest = max(greatest, _difference(expected, scores, f"the captured model differs on {case}"))
            half = len(scores) // 2
            if half:
                parts = [dense_net(*(tensor[s] for tensor in tensors)) for s in (slice(0, half), slice(half, None))]
                _difference(
                    scores,
                    torch.cat(parts),
                    f"an item's score depends on the other items of its batch ({case}), so queries cannot be split or "
                    "joined",
                )
        if progress is not None:
            progress(done + 1, len(cases))
    _check_served_inputs(captured, dense_net, generator)
    return greatest


def dense_net_inputs(captured: CapturedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """(dense, sparse, lengths), and keys where the DenseNet reads them, looked up with torch's own functions from the
    module's inputs.
    """
    columns: list[Tensor] = []
    lengths: list[Tensor] = []
    key_matrix: list[Tensor] = []
    for feature in captured.spec.features:
        rows = torch.from_numpy(captured.tables[feature.table])
        source = captured.sources[feature.name]
        keys = _keys_of(feature, source, inputs[source.input], len(rows))
        if source.offsets is not None:
            offsets = inputs[source.offsets]
            columns.append(
                functional.embedding_bag(
                    keys, rows, offsets, mode=str(feature.pooling), include_last_offset=source.ends_with_total
                )
            )
            key_matrix.append(_padded(keys, offsets, source.ends_with_total, feature.lookups))
            continue
        key_matrix.append(keys)
        if feature.pooling.reduces:
            columns.append(functional.embedding_bag(keys, rows, mode=str(feature.pooling)))
        else:
            columns.append(functional.embedding(keys, rows).flatten(1))
            lengths.append(torch.full((len(keys),), feature.lookups, dtype=torch.int64))
    sparse = torch.cat(columns, 1)
    items = len(sparse)
    dense = [
        inputs[name].reshape(items, -1)[:, list(given)].to(torch.float32)
        for name, given in captured.dense_columns.items()
    ]
    tensors = (
        torch.cat(dense, 1) if dense else sparse.new_zeros(items, 0),
        sparse,
        torch.stack(lengths, 1) if lengths else torch.zeros(items, 0, dtype=torch.int64),
    )
    return (*tensors, torch.cat(key_matrix, 1)) if captured.spec.reads_keys else tensors


def _keys_of(feature: FeatureSpec, source: FeatureSource, given: Tensor, rows: int) -> Tensor:
    """A feature's keys of an input, in the range of its table: int64 `[items, lookups]`, or all of a jagged input."""
    if source.offsets is None:
        given = given.reshape(len(given), -1)[:, list(source.columns)]
    return torch.from_numpy(bring_into_range(given.long().numpy(), rows, feature.out_of_range))


def _padded(values: Tensor, offsets: Tensor, ends_with_total: bool, lookups: int) -> Tensor:
    """Jagged keys as rows of a key matrix: `[items, lookups]`, -1 past an item's last."""
    ends = offsets if ends_with_total else torch.cat([offsets, offsets.new_tensor([len(values)])])
    present = torch.arange(lookups) < ends.diff()[:, None]
    matrix = torch.full(present.shape, -1)
    matrix[present] = values
    return matrix


def _random_inputs(flat: FlatModule, captured: CapturedModel, items: int, generator: torch.Generator) -> Inputs:
    """Inputs of `items` items: standard normal floats, uniform keys that the model takes.

    Each item follows one of the example's, which tells what goes together: it has its padding where that has, and its
    whole numbers and truth values that are no keys.
    """
    inputs: Inputs = {}
    like = torch.randint(0, flat.items, (items,), generator=generator)
    for source in flat.inputs:
        if source.items_offset != 0:
            inputs[source.name] = torch.zeros(items, dtype=source.example.dtype)  # of a jagged feature, set below
        elif source.example.is_floating_point():
            inputs[source.name] = torch.randn((items, *source.example.shape[1:]), generator=generator)
        else:
            inputs[source.name] = source.example[like].contiguous()
    examples = {source.name: source.example for source in flat.inputs}
    for (name, column), (least, end, paddings) in _key_ranges(captured).items():
        keys = torch.randint(least, end, (items,), generator=generator)
        given = examples[name].reshape(flat.items, -1)[like, column].long()
        for padding in paddings:
            keys = torch.where(given == padding, padding, keys)
        inputs[name].view(items, -1)[:, column] = keys.to(inputs[name].dtype)
    for feature in captured.spec.features:
        keys_from = captured.sources[feature.name]
        if keys_from.offsets is not None:
            counts = torch.randint(0, feature.lookups + 1, (items,), generator=generator)
            ends = counts.cumsum(0)
            starts = ends - counts
            if keys_from.ends_with_total:
                starts = torch.cat([starts, ends[-1:]])
            least, end = _key_range(captured, feature)
            values = torch.randint(least, end, (int(ends[-1]),), generator=generator)
            inputs[keys_from.offsets] = starts.to(inputs[keys_from.offsets].dtype)
            inputs[keys_from.input] = values.to(inputs[keys_from.input].dtype)
    return inputs


def _key_range(captured: CapturedModel, feature: FeatureSpec) -> tuple[int, int]:
    """(least, end) of the keys to draw: its table's rows, and beyond them where the feature takes such keys."""
    rows = captured.spec.table(feature.table).rows
    rule = feature.out_of_range
    below = rule in (OutOfRange.WRAP, OutOfRange.CLAMP, OutOfRange.CLAMP_LOW)
    above = rule in (OutOfRange.WRAP, OutOfRange.CLAMP, OutOfRange.CLAMP_HIGH)
    return -2 * rows if below else 0, 3 * rows if above else rows


def _key_ranges(captured: CapturedModel) -> dict[tuple[str, int], tuple[int, int, set[int]]]:
    """By input and column: (least, end) of the keys that all features take that read it, and their padding keys."""
    ranges: dict[tuple[str, int], tuple[int, int, set[int]]] = {}
    for feature in captured.spec.features:
        source = captured.sources[feature.name]
        least, end = _key_range(captured, feature)
        for column in source.columns:
            known_least, known_end, paddings = ranges.get((source.input, column), (least, end, set()))
            paddings.add(captured.paddings.get(feature.name, 0))
            ranges[source.input, column] = max(least, known_least), min(end, known_end), paddings
    return ranges


def _check_served_inputs(
    captured: CapturedModel, dense_net: Callable[..., Tensor], generator: torch.Generator, items: int = 4
) -> None:
    """Raise for a query that the module would fail on, as clients may send and as a server warms up with."""
    spec = captured.spec
    rows = torch.tensor([spec.table(f.table).rows for f in spec.features for _ in range(f.lookups)])
    sparse = torch.rand(items, spec.sparse_width, generator=generator) * 0.1
    lengths = torch.tensor([feature.lookups for feature in spec.sequences], dtype=torch.int64).expand(items, -1)
    zeros = torch.zeros(items, len(rows), dtype=torch.int64)
    drawn = (torch.rand(zeros.shape, generator=generator) * rows).long()
    fractions = torch.rand(items, spec.dense_dim, generator=generator)
    numbers = ", ".join(captured.dense_columns)
    cases = [
        ("whose numbers lie between 0 and 1, as those that a server warms up with", fractions, drawn),
        (f"in which {numbers} are -1000000", fractions - 1e6, drawn),
        (f"in which {numbers} are 1000000", fractions + 1e6, drawn),
        ("whose keys are all 0", fractions, zeros),
        ("whose keys are all the last", fractions, zeros + rows - 1),
        ("that has no keys", fractions, zeros - 1),
    ]
    for i, (case, dense, keys) in enumerate(cases):
        tensors = (dense, sparse, lengths, keys) if spec.reads_keys else (dense, sparse, lengths)
        try:
            with torch.no_grad():
                scores = dense_net(*tensors)
        except RuntimeError as fault:
            raise GraphCaptureError(
                f"the module would fail on a query {case}: {_reason(captured, tensors, fault)}; what it takes as an "
                "index must stay in range whatever is sent: clamp it"
            ) from fault
        if i == 0 and not torch.isfinite(scores).all():
            raise GraphCaptureError(
                f"the module gives scores that are not finite on a query {case}: see to divisions by {numbers}, with "
                "clamp(min=1) say"
            )


def _traced(captured: CapturedModel, inputs: Inputs) -> Callable[..., Tensor]:
    net = build(captured.graph, captured.dense_state).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced: Callable[..., Tensor] = torch.jit.trace(  # type: ignore[no-untyped-call]
            net, dense_net_inputs(captured, inputs), check_trace=False
        )
    return traced


def _original(flat: FlatModule, inputs: Inputs, case: str) -> Tensor:
    try:
        with torch.no_grad():
            scores: Tensor = flat(*(inputs[source.name] for source in flat.inputs))
    except (RuntimeError, IndexError, ValueError) as fault:
        raise GraphCaptureError(f"the module itself fails on {case}: {str(fault).splitlines()[0]}") from fault
    return scores.reshape(-1, flat.outputs)


def _reason(captured: CapturedModel, tensors: tuple[Tensor, ...], fault: RuntimeError) -> str:
    """Where in the module the graph fails and why, found by running it untraced."""
    try:
        with torch.no_grad():
            build(captured.graph, captured.dense_state).eval()(*tensors)
    except OpFailed as failed:
        return f"{captured.origins.get(failed.op, f'op {failed.op}')}: {failed.reason}"
    return str(fault).strip().splitlines()[-1]


def _difference(expected: Tensor, scores: Tensor, what: str) -> float:
    if scores.shape != expected.shape:
        raise GraphCaptureError(f"{what}: scores {list(scores.shape)}, expected {list(expected.shape)}")
    if not torch.isfinite(expected).all():
        raise GraphCaptureError("the module gives scores that are not finite: check its weights")
    difference = float(((scores - expected).abs() / expected.abs().clamp(min=1)).max())
    if not difference <= TOLERANCE:
        raise GraphCaptureError(f"{what}: by {difference:.2g}, more than {TOLERANCE:g}")
    return difference
