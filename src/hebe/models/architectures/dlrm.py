"""DLRM (Naumov et al. 2019, arXiv:1906.00091): bottom tower, pairwise interaction of all vectors, top tower.

Towers   `bottom`  over the dense features; absent exactly where the model has no dense input
         `top`     over the interaction; ends in the number of outputs
Settings `interaction`  "dot" (default): the dot products of all pairs among the bottom vector and the pooled
                        embeddings, beside the bottom vector; all must have one dim
                        "concat": the bottom vector and the pooled embeddings side by side
"""

from __future__ import annotations

import torch
from torch import Tensor

from hebe.models.architectures.dense_net import DenseNet, check_fields, check_no_behaviours, choice_setting
from hebe.models.architectures.towers import PredictTower, Tower
from hebe.spec import ModelSpec, SpecError


class Dlrm(DenseNet):
    """DLRM's DenseNet."""

    pairs: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("bottom", "top") if spec.dense_dim else ("top",), ("interaction",))
        check_no_behaviours(spec)
        self.dot = choice_setting(spec, "interaction", ("dot", "concat"), "dot") == "dot"
        self.bottom = Tower(spec.dense_dim, spec.towers.get("bottom", ()))
        width = self.bottom.outputs + spec.sparse_width
        if self.dot:
            self.dim = _common_dim(spec, self.bottom.outputs)
            self.vectors = width // self.dim
            if self.vectors < 2:
                raise SpecError(
                    f"model {spec.name}: settings.interaction is 'dot' but there is one vector only; use 'concat'"
                )
            # Where the strict lower triangle lies in the flattened matrix of products.
            row, column = torch.tril_indices(self.vectors, self.vectors, -1)
            self.register_buffer("pairs", row * self.vectors + column, persistent=False)
            width = self.bottom.outputs + self.pairs.numel()
        self.top = PredictTower(spec, "top", width)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """See `DenseNet.logits`."""
        bottom = self.bottom(dense)
        inputs = torch.cat((bottom, sparse), 1)
        if self.dot:
            stacked = inputs.reshape(inputs.shape[0], self.vectors, self.dim)
            products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
            inputs = torch.cat((bottom, products.index_select(1, self.pairs)), 1)
        result: Tensor = self.top(inputs)
        return result


def _common_dim(spec: ModelSpec, bottom_width: int) -> int:
    dim = spec.slots[0].dim
    for slot in spec.slots:
        if slot.dim != dim:
            raise SpecError(
                f"model {spec.name}: feature {slot.feature.name} has dim {slot.dim} but {spec.features[0].name} has "
                f"{dim}: settings.interaction 'dot' needs one dim; give the tables one, or use 'concat'"
            )
    if bottom_width and bottom_width != dim:
        raise SpecError(
            f"model {spec.name}: towers.bottom ends in {bottom_width} but the tables have dim {dim}: "
            "settings.interaction 'dot' needs them equal"
        )
    return dim
