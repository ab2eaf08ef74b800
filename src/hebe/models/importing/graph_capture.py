"""Import of any PyTorch ranking model: `torch.export` gives its ops, its embedding layers are cut out.

What is cut out becomes the SparseNet: each `nn.Embedding` and `nn.EmbeddingBag` a table, each of their inputs a
feature. What remains becomes the DenseNet: an `OpGraph` over `sparse`, sliced and reshaped to what each layer gave, and
over what it reads of the inputs as numbers.
`split_check.check_split` shows that both together compute what the module does.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hebe.models.importing.embedding_cut import cut_embeddings
from hebe.models.importing.graph_writer import result_of, write_op_graph
from hebe.models.importing.layer_tables import FeatureSource, Weight
from hebe.models.importing.module_inputs import FlatModule, GraphCaptureError
from hebe.models.importing.number_inputs import NumberInputs
from hebe.models.importing.user_code import user_line_of
from hebe.models.repository.table_file import RowArray
from hebe.op_graph import OpGraph
from hebe.spec import ModelSpec, SlaTarget

__all__ = ["CapturedModel", "FeatureSource", "GraphCaptureError", "capture"]

ARCHITECTURE = "imported"
"""The architecture of a spec whose DenseNet is a stored graph."""

_ADVICE = {
    "pack_padded_sequence": (
        "it cannot follow packed sequences: run the layer over the padded batch [items, n, dim] itself, and take the "
        "output at each item's last key, by gather over the lengths, or mask what lies past the end"
    ),
    "data-dependent expression": (
        "it branches, loops or indexes by a number that is known only once tensors are computed: keep it a tensor, "
        "without .item() and .tolist(); compute both sides of a condition and choose with torch.where; mask rather "
        "than select"
    ),
    "Constraints violated": (
        "it fixes the number of items to that of the example, {items}: use x.shape[0] as it is, without len(), int() "
        "or a condition on it"
    ),
}
"""By what torch.export says of a module, in the order of precedence: what that means, and what to do."""


@dataclass(frozen=True)
class CapturedModel:
    """A module split in two, ready for `ModelRepository.write`.

    `tables` float32 `[rows, dim]` by table name, views of the module's weights; `dense_state` the weights that
    `graph` reads; `sources` which input of the module each feature's keys come from; `paddings` the padding key of
    features that have one; `dense_columns` the columns of inputs that stand side by side in `dense`, counted over all
    but the first dimension; `origins` what each op of `graph` was in the module, for people.
    """

    spec: ModelSpec
    tables: Mapping[str, RowArray]
    dense_state: Mapping[str, Tensor]
    graph: OpGraph
    sources: Mapping[str, FeatureSource]
    paddings: Mapping[str, int]
    dense_columns: Mapping[str, tuple[int, ...]]
    origins: Mapping[str, str]


def capture(
    module: nn.Module,
    example_inputs: Mapping[str, Any] | Sequence[Any] | Tensor,
    name: str,
    sla: SlaTarget | None = None,
    lookups: Mapping[str, int] | None = None,
    notes: str = "",
) -> CapturedModel:
    """Split `module`, given inputs of at least two items as it is called with.

    A mapping of inputs is passed by keyword, or as it is where `forward` takes one mapping. `lookups` says how many
    keys an item may have for a jagged feature (values and offsets); without it, as many as in the example.
    Raises `GraphCaptureError` naming the layer, input or op that cannot be captured.
    """
    flat = FlatModule(module, example_inputs)
    program = _export(flat)
    program.graph.eliminate_dead_code()
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = {
        placeholders[placeholder]: source
        for placeholder, source in zip(program.graph_signature.user_inputs, flat.inputs, strict=True)
    }
    _check_pure(program, {node.name: source.name for node, source in inputs.items()})
    weights = _weights(program, placeholders)
    cut = cut_embeddings(program.graph, inputs, weights, lookups or {})
    numbers = NumberInputs(result_of(program.graph), cut, inputs)
    spec = ModelSpec(
        name=name,
        architecture=ARCHITECTURE,
        tables=cut.tables,
        features=cut.features,
        dense_dim=numbers.dense_dim,
        settings={"reads_keys": True} if numbers.reads_keys else {},
        outputs=flat.outputs,
        sla=sla or SlaTarget(100.0),
        source=f"imported PyTorch module {type(module).__qualname__}",
        notes=notes,
    )
    graph, dense_state, origins = write_op_graph(program.graph, spec, cut, numbers, weights)
    dense_columns = numbers.dense_columns
    return CapturedModel(spec, cut.rows, dense_state, graph, cut.sources, cut.paddings, dense_columns, origins)


def _export(flat: FlatModule) -> torch.export.ExportedProgram:
    items = torch.export.Dim("items")
    shapes: list[dict[int, Any]] = []
    for i, source in enumerate(flat.inputs):
        if source.items_offset is None:
            shapes.append({0: torch.export.Dim(f"values_{i}")})
        else:
            shapes.append({0: items + 1 if source.items_offset else items})
    examples = tuple(source.example for source in flat.inputs)
    faults: list[Exception] = []
    # Strict mode (by bytecode) is pickier about Python but keeps the number of items open through `len`.
    for strict in (False, True):
        try:
            with torch.no_grad(), warnings.catch_warnings(), _quiet():
                warnings.simplefilter("ignore")
                program: torch.export.ExportedProgram = torch.export.export(
                    flat, examples, dynamic_shapes=(tuple(shapes),), strict=strict
                )
                # No decompositions: composite ops (linear, layer_norm, gru) run faster whole.
                captured: torch.export.ExportedProgram = program.run_decompositions({})
            return captured
        except Exception as fault:  # torch.export raises errors of many kinds, all of them about the module
            faults.append(fault)
    raise GraphCaptureError(f"torch.export cannot capture the module{_why_not(faults, flat.items)}") from faults[0]


def _why_not(faults: Sequence[Exception], items: int) -> str:
    """Of the tries' faults: the line of the user's code and what to do about it, as far as they are known."""
    reason = ": ".join([type(faults[0]).__name__, *str(faults[0]).strip().splitlines()[:1]])
    for told, advice in _ADVICE.items():
        if alike := [fault for fault in faults if told in str(fault)]:
            faults, reason = alike, advice.format(items=items)
            break
    line = next(filter(None, map(user_line_of, faults)), None)
    return f" ({line}): {reason}" if line else f": {reason}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch logs and prints of its tries: dozens of lines where one fails. The error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _check_pure(program: torch.export.ExportedProgram, input_names: Mapping[str, str]) -> None:
    signature = program.graph_signature
    changed = [name.removeprefix("module.") for name in signature.buffers_to_mutate.values()]
    changed += [f"input {input_names[name]}" for name in signature.user_inputs_to_mutate.values()]
    if changed:
        raise GraphCaptureError(f"the module changes {', '.join(changed)} while it scores: it must not")


def _weights(program: torch.export.ExportedProgram, placeholders: Mapping[str, fx.Node]) -> dict[fx.Node, Weight]:
    signature = program.graph_signature
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    found: dict[fx.Node, Weight] = {}
    for placeholder, target in targets.items():
        value = program.state_dict.get(target, program.constants.get(target))
        assert isinstance(value, Tensor)
        found[placeholders[placeholder]] = Weight(target.removeprefix("module."), value.detach())
    return found
