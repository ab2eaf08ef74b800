"""How DIN, DIEN and BST see their sparse input: behaviours, the candidate that they are compared with, the rest.

A behaviour sequence is a feature pooled by ATTENTION. Its candidate is the reduced feature that reads the same
table: `item_history` and `item` share one item table. A behaviour may have several parts, `item_history` and
`category_history` say; they are aligned position by position, their vectors and their candidates' stand side by
side, and a behaviour exists where all of its parts do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hebe.models.architectures.dense_net import column_runs, take
from hebe.spec import FeatureSlot, ModelSpec, Pooling, SpecError


class Behaviours(nn.Module):
    """Splits `(sparse, lengths)` into what an attention model reads.

    `dim` is the width of a behaviour and of its candidate, `steps` the most behaviours an item has, `context_width`
    the columns of everything but the behaviours (the candidate is context too, as in all three papers). Raises
    `SpecError` for a model without behaviours, parts of unlike `lookups`, and a part without exactly one candidate.
    """

    steps_range: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        sequences = [slot for slot in spec.slots if slot.feature.pooling is Pooling.ATTENTION]
        if not sequences:
            raise SpecError(
                f"model {spec.name}: {spec.architecture} needs a behaviour sequence: a feature of pooling 'attention'"
            )
        for slot in sequences:
            if slot.feature.lookups != sequences[0].feature.lookups:
                raise SpecError(
                    f"model {spec.name}: feature {slot.feature.name} has {slot.feature.lookups} lookups but "
                    f"{sequences[0].feature.name} has {sequences[0].feature.lookups}: parts of a behaviour need as many"
                )
        candidates = [_candidate(spec, slot) for slot in sequences]
        context = [slot for slot in spec.slots if slot not in sequences]
        self.steps = sequences[0].feature.lookups
        self.dim = sum(slot.dim for slot in sequences)
        self.context_width = sum(slot.width for slot in context)
        self._sequences = [(slot.column, slot.width, slot.dim) for slot in sequences]
        order = [feature.name for feature in spec.sequences]
        self._lengths = [order.index(slot.feature.name) for slot in sequences]
        self._candidate, self._context = column_runs(candidates), column_runs(context)
        self.register_buffer("steps_range", torch.arange(self.steps), persistent=False)

    def forward(self, sparse: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """To (context `[n, context_width]`, candidate `[n, dim]`, behaviours `[n, steps, dim]`, valid `[n, steps]`)."""
        parts = [
            sparse.narrow(1, column, width).reshape(sparse.shape[0], self.steps, dim)
            for column, width, dim in self._sequences
        ]
        shortest = lengths[:, self._lengths[0]]
        for column in self._lengths[1:]:
            shortest = torch.minimum(shortest, lengths[:, column])
        return (
            take(sparse, self._context),
            take(sparse, self._candidate),
            parts[0] if len(parts) == 1 else torch.cat(parts, 2),
            self.steps_range < shortest.unsqueeze(1),
        )


def _candidate(spec: ModelSpec, sequence: FeatureSlot) -> FeatureSlot:
    feature = sequence.feature
    found = [slot for slot in spec.slots if slot.feature.table == feature.table and slot.feature.pooling.reduces]
    if len(found) != 1:
        raise SpecError(
            f"model {spec.name}: feature {feature.name}: its candidate must be exactly one sum- or mean-pooled feature "
            f"of table {feature.table}; there are {len(found)}"
        )
    return found[0]
