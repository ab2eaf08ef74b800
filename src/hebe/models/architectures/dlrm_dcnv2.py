"""DLRM-DCNv2, MLPerf's recommendation model: DLRM with a low-rank cross network as interaction.

The cross network is DCN-V2's (Wang et al. 2021, arXiv:2008.13535, Eq. 3) with x_0 the bottom vector and all pooled
embeddings side by side:

    x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l        V_l [rank, width], W_l [width, rank]

Towers   `bottom`  over the dense features; absent exactly where the model has no dense input
         `top`     over the last x; ends in the number of outputs
Settings `cross_layers` (default 3), `cross_rank` (default 512)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hebe.models.architectures.dense_net import DenseNet, check_fields, check_no_behaviours, count_setting, linear
from hebe.models.architectures.towers import PredictTower, Tower
from hebe.spec import ModelSpec


class CrossLayer(nn.Module):
    """One cross: (x_0, x_l) `[n, width]` to x_{l+1}."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = linear(width, rank, bias=False)
        self.up = linear(rank, width)

    def forward(self, first: Tensor, crossed: Tensor) -> Tensor:
        """See the class."""
        return torch.addcmul(crossed, first, self.up(self.down(crossed)))


class DlrmDcnV2(DenseNet):
    """DLRM-DCNv2's DenseNet."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("bottom", "top") if spec.dense_dim else ("top",), ("cross_layers", "cross_rank"))
        check_no_behaviours(spec)
        self.bottom = Tower(spec.dense_dim, spec.towers.get("bottom", ()))
        width = self.bottom.outputs + spec.sparse_width
        rank = count_setting(spec, "cross_rank", 512)
        self.crosses = nn.ModuleList(CrossLayer(width, rank) for _ in range(count_setting(spec, "cross_layers", 3)))
        self.top = PredictTower(spec, "top", width)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """See `DenseNet.logits`."""
        first = crossed = torch.cat((self.bottom(dense), sparse), 1)
        for cross in self.crosses:
            crossed = cross(first, crossed)
        result: Tensor = self.top(crossed)
        return result
