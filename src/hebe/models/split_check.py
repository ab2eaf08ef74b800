"""Shows that a captured model computes what the module it was captured from does.

Compared on the example and on random inputs of other sizes, through the traced graph, which is what is served; and
each half of the items alone with the whole, since a server splits and joins queries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hebe.models.graph_capture import CapturedModel
from hebe.models.graph_module import build
from hebe.models.module_inputs import FlatModule, GraphCaptureError

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
    are not finite, and where an item's score depends on the other items of its batch.
    """
    flat = FlatModule(module, example_inputs)
    generator = torch.Generator().manual_seed(seed)
    cases: list[tuple[str, Inputs]] = [("the example", {source.name: source.example for source in flat.inputs})]
    cases += [(f"{items} random item(s)", _random_inputs(flat, captured, items, generator)) for items in SIZES]
    dense_net = _traced(captured, cases[-1][1])
    greatest = 0.0
    for done, (case, inputs) in enumerate(cases):
        expected = _original(flat, inputs, case)
        dense, sparse, lengths = dense_net_inputs(captured, inputs)
        with torch.no_grad():
            try:
                scores = dense_net(dense, sparse, lengths)
            except RuntimeError as fault:
                reason = str(fault).strip().splitlines()[-1]
                raise GraphCaptureError(f"the captured model fails on {case}: {reason}") from fault
            greatest = max(greatest, _difference(expected, scores, f"the captured model differs on {case}"))
            half = len(sparse) // 2
            if half:
                parts = [dense_net(dense[s], sparse[s], lengths[s]) for s in (slice(0, half), slice(half, None))]
                _difference(
                    scores,
                    torch.cat(parts),
                    f"an item's score depends on the other items of its batch ({case}), so queries cannot be split or "
                    "joined",
                )
        if progress is not None:
            progress(done + 1, len(cases))
    return greatest


def dense_net_inputs(captured: CapturedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(dense, sparse, lengths) for the DenseNet, looked up with torch's own functions from the module's inputs."""
    columns: list[Tensor] = []
    lengths: list[Tensor] = []
    for feature in captured.spec.features:
        rows = torch.from_numpy(captured.tables[feature.table])
        source = captured.sources[feature.name]
        keys = inputs[source.input]
        if source.offsets is not None:
            offsets = inputs[source.offsets]
            columns.append(
                functional.embedding_bag(
                    keys, rows, offsets, mode=str(feature.pooling), include_last_offset=source.ends_with_total
                )
            )
            continue
        keys = keys.reshape(len(keys), -1)[:, list(source.columns)]
        if feature.pooling.reduces:
            columns.append(functional.embedding_bag(keys, rows, mode=str(feature.pooling)))
        else:
            columns.append(functional.embedding(keys, rows).flatten(1))
            lengths.append(torch.full((len(keys),), feature.lookups, dtype=torch.int64))
    sparse = torch.cat(columns, 1)
    dense = [inputs[name].reshape(len(sparse), -1) for name in captured.dense_inputs]
    return (
        torch.cat(dense, 1) if dense else sparse.new_zeros(len(sparse), 0),
        sparse,
        torch.stack(lengths, 1) if lengths else torch.zeros(len(sparse), 0, dtype=torch.int64),
    )


def _random_inputs(flat: FlatModule, captured: CapturedModel, items: int, generator: torch.Generator) -> Inputs:
    """Inputs of `items` items: standard normal floats, uniform keys within the rows of their tables."""
    inputs: Inputs = {}
    for source in flat.inputs:
        shape = (items, *source.example.shape[1:])
        if source.is_keys:
            inputs[source.name] = torch.zeros(shape, dtype=source.example.dtype)
        else:
            inputs[source.name] = torch.randn(shape, generator=generator)
    for input_name, column, rows in _key_ranges(captured):
        keys = inputs[input_name].view(items, -1)
        keys[:, column] = torch.randint(0, rows, (items,), generator=generator, dtype=keys.dtype)
    for feature in captured.spec.features:
        keys_from = captured.sources[feature.name]
        if keys_from.offsets is not None:
            counts = torch.randint(0, feature.lookups + 1, (items,), generator=generator)
            ends = counts.cumsum(0)
            starts = ends - counts
            if keys_from.ends_with_total:
                starts = torch.cat([starts, ends[-1:]])
            rows = captured.spec.table(feature.table).rows
            values = torch.randint(0, rows, (int(ends[-1]),), generator=generator)
            inputs[keys_from.offsets] = starts.to(inputs[keys_from.offsets].dtype)
            inputs[keys_from.input] = values.to(inputs[keys_from.input].dtype)
    return inputs


def _key_ranges(captured: CapturedModel) -> list[tuple[str, int, int]]:
    """(input, column, rows): the fewest rows among the tables that a column's keys index."""
    fewest: dict[tuple[str, int], int] = {}
    for feature in captured.spec.features:
        source = captured.sources[feature.name]
        rows = captured.spec.table(feature.table).rows
        for column in source.columns:
            fewest[source.input, column] = min(rows, fewest.get((source.input, column), rows))
    return [(name, column, rows) for (name, column), rows in fewest.items()]


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


def _difference(expected: Tensor, scores: Tensor, what: str) -> float:
    if scores.shape != expected.shape:
        raise GraphCaptureError(f"{what}: scores {list(scores.shape)}, expected {list(expected.shape)}")
    if not torch.isfinite(expected).all():
        raise GraphCaptureError("the module gives scores that are not finite: check its weights")
    difference = float(((scores - expected).abs() / expected.abs().clamp(min=1)).max())
    if not difference <= TOLERANCE:
        raise GraphCaptureError(f"{what}: by {difference:.2g}, more than {TOLERANCE:g}")
    return difference
