"""NCF: neural matrix factorisation, NeuMF (He et al., WWW 2017, Section 3.4).

Two halves with tables of their own: GMF multiplies a user's and an item's vector element by element, the MLP takes
all other vectors side by side; one linear layer over both halves gives the logit.

Features `gmf_user` and `gmf_item`, of one dim, are GMF's; every other feature is the MLP's (`mlp_user`, `mlp_item`).
Towers   `mlp`  hidden layers of the MLP half, each followed by ReLU; the prediction layer is implied
Settings none
"""

from __future__ import annotations

import torch
from torch import Tensor

from hebe.models.architectures.dense_net import DenseNet, check_fields, check_no_behaviours, column_runs, linear, take
from hebe.models.architectures.towers import Tower
from hebe.spec import FeatureSlot, ModelSpec, SpecError


class Ncf(DenseNet):
    """NeuMF's DenseNet. Dense features, where the model has any, join the MLP half."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("mlp",))
        check_no_behaviours(spec)
        user, item = _slot(spec, "gmf_user"), _slot(spec, "gmf_item")
        if user.width != item.width:
            raise SpecError(
                f"model {spec.name}: feature gmf_item is {item.width} wide but gmf_user {user.width}: GMF multiplies "
                "them element by element; give their tables one dim"
            )
        self.user, self.item = column_runs([user]), column_runs([item])
        rest = [slot for slot in spec.slots if slot not in (user, item)]
        if not rest:
            raise SpecError(f"model {spec.name}: the MLP half has no feature; add mlp_user and mlp_item")
        self.rest = column_runs(rest)
        self.mlp = Tower(spec.dense_dim + sum(slot.width for slot in rest), spec.towers["mlp"])
        self.predict = linear(user.width + self.mlp.outputs, spec.outputs)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """See `DenseNet.logits`."""
        product = take(sparse, self.user) * take(sparse, self.item)
        deep = self.mlp(torch.cat((dense, take(sparse, self.rest)), 1))
        result: Tensor = self.predict(torch.cat((product, deep), 1))
        return result


def _slot(spec: ModelSpec, feature: str) -> FeatureSlot:
    for slot in spec.slots:
        if slot.feature.name == feature:
            return slot
    raise SpecError(f"model {spec.name}: feature {feature} is missing: GMF multiplies gmf_user and gmf_item")
