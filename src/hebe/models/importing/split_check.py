"""Shows that a captured model computes what the module it was captured from does.

Compared on the example and on random inputs of other sizes, through the scripted DenseNet, traced on what a server
traces it on: the function that is served, with whatever its trace froze (a server told to run it eager or compiled
makes these of the same graph, and nothing compares them); and each half of the items alone with the whole, since a
server splits and joins queries; and each sequence without its padding with the module, which has it. Last, on inputs
that only a server sees, which no item may fail for those that share its batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hebe.models.architectures.graph_module import OpFailed, build
from hebe.models.importing.graph_capture import CapturedModel
from hebe.models.importing.layer_tables import FeatureSource
from hebe.models.importing.module_inputs import FlatModule, GraphCaptureError
from hebe.models.scripted_net import TRACED_ITEMS, example_inputs, scores_of, served
from hebe.query import bring_into_range
from hebe.spec import FeatureSpec, OutOfRange, Pooling

TOLERANCE = 1e-5
SIZES = (1, 2, 7, 32)
"""Numbers of items of the random inputs."""

Inputs = dict[str, Tensor]
Range = tuple[int, int]
Lengths = Mapping[str, Tensor]
"""By feature: how many keys each item has of it, where it is sent without its padding."""

_NO_LENGTHS: Lengths = MappingProxyType({})
_JAGGED_ITEMS = 7
_KEY_BITS = {torch.int64: 63, torch.int32: 31, torch.float32: 24}
"""Whole numbers below 2 to that power, and above its negative, are keys that an input can hold."""

_EXAMPLE = "the example"
_OF_AN_INDEX = re.compile(r"\bind(ex|ices)\b|out of (range|bounds)|Class values")
"""In torch's words for an op that was given an index which is none."""
_WARM_UP = "whose numbers lie between 0 and 1, as those that a server warms up with"


def check_split(
    module: nn.Module,
    example_inputs: Mapping[str, Any] | Sequence[Any] | Tensor,
    captured: CapturedModel,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """The greatest difference between a score of `module` and of the captured model.

    Raises `GraphCaptureError` where it exceeds 1e-5 (relative to the score where that is above 1), where a row or a
    score is not finite, where scores differ from run to run, where an item's score depends on the other items of its
    batch, and where some number or key that a client may send fails the batch.
    """
    for table, rows in captured.tables.items():
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise GraphCaptureError(f"table {table}: row {finite.argmin()} is not finite: check the module's weights")
    flat = FlatModule(module, example_inputs)
    generator = torch.Generator().manual_seed(seed)
    cases: list[tuple[str, Inputs]] = [(_EXAMPLE, {source.name: source.example for source in flat.inputs})]
    cases += [(f"{items} random item(s)", _random_inputs(flat, captured, items, generator)) for items in SIZES]
    originals = [_original(flat, inputs, case) for case, inputs in cases]
    for (case, _), scores in zip(cases, originals, strict=True):
        _check_finite(scores, captured, case)
    _check_repeatable(originals[0], _original(flat, cases[0][1], _EXAMPLE))
    dense_net = _served(captured)
    greatest = 0.0
    for done, ((case, inputs), expected) in enumerate(zip(cases, originals, strict=True)):
        tensors = dense_net_inputs(captured, inputs)
        with torch.no_grad():
            try:
                scores = dense_net(*tensors)
                middle = len(scores) // 2
                halves = (slice(middle), slice(middle, None)) if middle else ()
                parts = [dense_net(*(tensor[half] for tensor in tensors)) for half in halves]
            except RuntimeError as fault:
                reason = _reason(captured, tensors, fault)
                raise GraphCaptureError(f"the captured model fails on {case}: {reason}") from fault
            greatest = max(greatest, _difference(expected, scores, f"the captured model differs on {case}"))
            if parts:
                _difference(
                    scores,
                    torch.cat(parts),
                    f"an item's score depends on the other items of its batch ({case}), so queries cannot be split or "
                    "joined",
                )
        if progress is not None:
            progress(done + 1, len(cases))
    greatest = max([greatest, *_jagged_differences(flat, captured, dense_net, generator)])
    _check_served_inputs(captured, dense_net)
    return greatest


def dense_net_inputs(
    captured: CapturedModel, inputs: Mapping[str, Tensor], jagged: Lengths = _NO_LENGTHS
) -> tuple[Tensor, ...]:
    """(dense, sparse, lengths), and keys where the DenseNet reads them, looked up with torch's own functions from the
    module's inputs; features of `jagged` without the keys past the end.
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
        if feature.name in jagged:
            counts = jagged[feature.name]
            present = torch.arange(feature.lookups) < counts[:, None]
            vectors = functional.embedding(keys, rows) * present[..., None]
            key_matrix.append(torch.where(present, keys, -1))
            if feature.pooling.reduces:
                divisor = counts.clamp(min=1) if feature.pooling is Pooling.MEAN else torch.ones_like(counts)
                columns.append(vectors.sum(1) / divisor[:, None])
            else:
                columns.append(vectors.flatten(1))
                lengths.append(counts)
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
    """Inputs of `items` items: floats and keys that the model takes, drawn uniformly.

    Each item follows one of the example's, which tells what goes together: it has its padding where that has, and its
    whole numbers and truth values that are no keys.
    """
    inputs: Inputs = {}
    like = torch.randint(0, flat.items, (items,), generator=generator)
    for source in flat.inputs:
        if source.items_offset != 0:
            inputs[source.name] = torch.zeros(items, dtype=source.example.dtype)  # of a jagged feature, set below
        elif source.example.is_floating_point():
            inputs[source.name] = _random_numbers(source.example, items, generator)
        else:
            inputs[source.name] = source.example[like].contiguous()
    examples = {source.name: source.example for source in flat.inputs}
    for (name, column), (near, far, paddings) in _key_ranges(captured, examples).items():
        keys = _random_keys(near, far, items, generator)
        given = examples[name].reshape(flat.items, -1)[like, column].long()
        for padding in paddings:
            keys = torch.where(given == padding, padding, keys)
        inputs[name].view(items, -1)[:, column] = keys.to(inputs[name].dtype)
    for group in _jagged_groups(captured):
        most = min(feature.lookups for feature in group)
        counts = torch.randint(0, most + 1, (items,), generator=generator)
        ends = counts.cumsum(0)
        ranges: dict[str, tuple[Range, Range]] = {}
        for feature in group:
            keys_from = captured.sources[feature.name]
            assert keys_from.offsets is not None
            starts = torch.cat([ends - counts, ends[-1:]]) if keys_from.ends_with_total else ends - counts
            inputs[keys_from.offsets] = starts.to(inputs[keys_from.offsets].dtype)
            own = _feature_ranges(captured, feature, examples[keys_from.input].dtype)
            ranges[keys_from.input] = _common(ranges.get(keys_from.input, own), own)
        for name, (near, far) in ranges.items():
            values = _random_keys(near, far, int(ends[-1]), generator)
            inputs[name] = values.to(inputs[name].dtype)
    return inputs


def _random_keys(near: Range, far: Range, count: int, generator: torch.Generator) -> Tensor:
    """Keys int64 `[count]`, about half of them drawn from either range, or all where these are the same."""
    keys = torch.randint(*near, (count,), generator=generator)
    if near == far:
        return keys
    chosen = torch.rand(count, generator=generator) < 0.5
    return torch.where(chosen, torch.randint(*far, (count,), generator=generator), keys)


def _random_numbers(example: Tensor, items: int, generator: torch.Generator) -> Tensor:
    """Floats `[items, ...]`, each between the least and the greatest of its column in the example: a module that takes
    their logarithm, say, may have said by these what it is given. One that is always the same varies by up to 1.
    """
    finite = example.isfinite()
    least = torch.where(finite, example, torch.inf).amin(0)
    greatest = torch.where(finite, example, -torch.inf).amax(0)
    least, greatest = (torch.where(least <= greatest, limit, 0.0) for limit in (least, greatest))
    still = least == greatest
    least = torch.where(still & (least < 0), least - 1, least)
    greatest = torch.where(still & (greatest >= 0), greatest + 1, greatest)
    return least + (greatest - least) * torch.rand((items, *example.shape[1:]), generator=generator)


def _jagged_groups(captured: CapturedModel) -> list[list[FeatureSpec]]:
    """The jagged features, those together that have values or offsets in common: each has as many keys an item."""
    groups: list[tuple[set[str], list[FeatureSpec]]] = []
    for feature in captured.spec.features:
        source = captured.sources[feature.name]
        if source.offsets is None:
            continue
        names, members = {source.input, source.offsets}, [feature]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, members = names | group[0], [*group[1], *members]
        groups.append((names, members))
    return [members for _, members in groups]


def _feature_ranges(captured: CapturedModel, feature: FeatureSpec, dtype: torch.dtype) -> tuple[Range, Range]:
    """The keys to draw, [least, end): its table's rows, and where the feature takes keys beyond them those near them,
    and all that an input of `dtype` can hold.
    """
    rows = captured.spec.table(feature.table).rows
    rule = feature.out_of_range
    below = rule in (OutOfRange.WRAP, OutOfRange.CLAMP, OutOfRange.CLAMP_LOW)
    above = rule in (OutOfRange.WRAP, OutOfRange.CLAMP, OutOfRange.CLAMP_HIGH)
    near = -2 * rows if below else 0, 3 * rows if above else rows
    most = 1 << _KEY_BITS.get(dtype, 1)
    return near, (min(near[0], -most) if below else 0, max(near[1], most - 1) if above else rows)


def _common(first: tuple[Range, Range], second: tuple[Range, Range]) -> tuple[Range, Range]:
    """What both have of either range."""
    (near, far), (other_near, other_far) = first, second
    return (
        (max(near[0], other_near[0]), min(near[1], other_near[1])),
        (max(far[0], other_far[0]), min(far[1], other_far[1])),
    )


def _key_ranges(
    captured: CapturedModel, examples: Mapping[str, Tensor]
) -> dict[tuple[str, int], tuple[Range, Range, set[int]]]:
    """By input and column: the keys that all features take that read it, near and far, and their padding keys."""
    ranges: dict[tuple[str, int], tuple[Range, Range, set[int]]] = {}
    for feature in captured.spec.features:
        source = captured.sources[feature.name]
        own = _feature_ranges(captured, feature, examples[source.input].dtype)
        for column in source.columns:
            *known, paddings = ranges.get((source.input, column), (*own, set()))
            paddings.add(captured.paddings.get(feature.name, 0))
            ranges[source.input, column] = *_common((known[0], known[1]), own), paddings
    return ranges


def _jagged_differences(
    flat: FlatModule, captured: CapturedModel, dense_net: Callable[..., Tensor], generator: torch.Generator
) -> Iterator[float]:
    """For each sequence: the greatest difference between the module's scores of items with padding at the end and the
    captured model's, without it.

    What is past the end has a vector of zeros. Left out are sequences whose padding has another row, means of an
    EmbeddingBag, which are over the keys that there are, and items for which the module has no score.
    """
    for feature in captured.spec.features:
        source = captured.sources[feature.name]
        columns = list(source.columns)
        padding = captured.paddings.get(feature.name, 0)
        is_zero = not captured.tables[feature.table][padding].any()
        of_bag = feature.pooling is Pooling.MEAN and feature.name not in captured.paddings
        if feature.whole or of_bag or not is_zero or len(columns) < 2 or len(set(columns)) < len(columns):
            continue
        inputs = _random_inputs(flat, captured, _JAGGED_ITEMS, generator)
        counts = torch.randint(1, feature.lookups + 1, (_JAGGED_ITEMS,), generator=generator)
        keys = inputs[source.input].view(_JAGGED_ITEMS, -1)
        past = torch.arange(feature.lookups) >= counts[:, None]
        keys[:, columns] = keys[:, columns].masked_fill(past, padding)
        try:
            expected = _original(flat, inputs, "")
        except GraphCaptureError:  # it cannot do with so much padding, and need not
            continue
        tensors = dense_net_inputs(captured, inputs, {feature.name: counts})
        try:
            with torch.no_grad():
                scores = dense_net(*tensors)
        except RuntimeError as fault:
            reason = _reason(captured, tensors, fault)
            raise GraphCaptureError(f"the captured model fails on {feature.name} sent jagged: {reason}") from fault
        known = expected.isfinite().all(1)
        if known.any():
            what = f"without the padding of {feature.name} the captured model differs from the module with it"
            yield _difference(expected[known], scores[known], what)


def _check_served_inputs(captured: CapturedModel, dense_net: Callable[..., Tensor], items: int = 4) -> None:
    """Raise for a query that the module would fail on, as clients may send and as a server warms up with."""
    spec = captured.spec
    rows = torch.tensor([spec.table(f.table).rows for f in spec.features for _ in range(f.lookups)])
    zeros = torch.zeros(items, len(rows), dtype=torch.int64)
    fractions, sparse, lengths, *read = example_inputs(spec, items)
    drawn = read[0] if read else zeros
    numbers = ", ".join(captured.dense_columns)
    cases = [
        (_WARM_UP, fractions, drawn),
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
            raise _would_fail(case, _reason(captured, tensors, fault)) from fault
        if i == 0 and not torch.isfinite(scores).all():
            raise GraphCaptureError(
                f"the module gives scores that are not finite on a query {case}: see to divisions by {numbers}, with "
                "clamp(min=1) say, and to its logarithms and roots"
            )


def _would_fail(case: str, reason: str) -> GraphCaptureError:
    remedy = ""
    if _OF_AN_INDEX.search(reason):
        remedy = "; what it takes as an index must stay in range whatever is sent: clamp it"
    return GraphCaptureError(f"the module would fail on a query {case}: {reason}{remedy}")


def _check_repeatable(first: Tensor, second: Tensor) -> None:
    """Raise where the module gives other scores when it is run on the same inputs again."""
    difference = float((first - second).abs().max())
    if difference > TOLERANCE:
        raise GraphCaptureError(
            f"the module draws random numbers: run on the example twice, its scores differ by {difference:.2g}; "
            "functional.dropout and the like need training=self.training"
        )


def _check_finite(scores: Tensor, captured: CapturedModel, case: str) -> None:
    """Raise where the module itself gives a score that is not finite."""
    if torch.isfinite(scores).all():
        return
    numbers = ", ".join(captured.dense_columns)
    remedy = "check its weights" + (f", and what it makes of {numbers}" if numbers else "")
    if case != _EXAMPLE and numbers:
        remedy += (
            f": each number of {numbers} lies between the least and the greatest of its column in the example, which "
            "should have the whole range of what is served"
        )
    raise GraphCaptureError(f"the module gives scores that are not finite on {case}: {remedy}")


def _served(captured: CapturedModel) -> Callable[..., Tensor]:
    """The function that a server makes of the captured model."""
    net, tensors = build(captured.graph, captured.dense_state).eval(), example_inputs(captured.spec, TRACED_ITEMS)
    try:
        with torch.no_grad():
            net(*tensors)
    except OpFailed as fault:
        raise _would_fail(_WARM_UP, _reason(captured, tensors, fault)) from fault
    try:
        function = served(net, captured.spec)
    except Exception as fault:  # torch.jit raises errors of many kinds, all of them about the graph
        reason = _reason(captured, tensors, fault)
        raise GraphCaptureError(f"the captured model cannot be traced, as serving it needs: {reason}") from fault
    return lambda *inputs: scores_of(function, inputs, captured.spec.outputs)


def _original(flat: FlatModule, inputs: Inputs, case: str) -> Tensor:
    try:
        with torch.no_grad():
            scores: Tensor = flat(*(inputs[source.name] for source in flat.inputs))
    except Exception as fault:  # whatever the user's module raises
        reason = next(iter(str(fault).splitlines()), type(fault).__name__)
        raise GraphCaptureError(f"the module itself fails on {case}: {reason}") from fault
    return scores.reshape(-1, flat.outputs)


def _reason(captured: CapturedModel, tensors: tuple[Tensor, ...], fault: Exception) -> str:
    """Where in the module the graph fails and why, found by running it untraced."""
    try:
        with torch.no_grad():
            build(captured.graph, captured.dense_state).eval()(*tensors)
    except OpFailed as failed:
        return f"{captured.origins.get(failed.op, f'op {failed.op}')}: {failed.reason}"
    if isinstance(fault, OpFailed):  # of the trace alone
        return f"{captured.origins.get(fault.op, f'op {fault.op}')}: {fault.reason}"
    return next(reversed(str(fault).strip().splitlines()), type(fault).__name__)


def _difference(expected: Tensor, scores: Tensor, what: str) -> float:
    if scores.shape != expected.shape:
        raise GraphCaptureError(f"{what}: scores {list(scores.shape)}, expected {list(expected.shape)}")
    difference = float(((scores - expected).abs() / expected.abs().clamp(min=1)).max())
    if not difference <= TOLERANCE:
        raise GraphCaptureError(f"{what}: by {difference:.2g}, more than {TOLERANCE:g}")
    return difference
