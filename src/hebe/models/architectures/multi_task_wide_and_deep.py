"""Multi-task Wide&Deep (Zhao et al., RecSys 2019): one trunk, then one tower for each of N tasks.

Every task has a score of its own (`outputs` = N) and, as in Wide&Deep, a linear half over all inputs that is added
to its tower's output before the sigmoid.

Towers   `trunk`  shared layers over the dense features and pooled embeddings side by side; may be left out, then
                  the task towers read those directly
         `task`   hidden layers of each task's tower, each followed by ReLU; its last, linear layer is implied
Settings none
"""

from __future__ import annotations

import torch
from torch import Tensor

from hebe.models.architectures.dense_net import DenseNet, check_fields, check_no_behaviours, linear
from hebe.models.architectures.towers import ParallelTowers, Tower
from hebe.spec import ModelSpec


class MultiTaskWideAndDeep(DenseNet):
    """Multi-task Wide&Deep's DenseNet; the towers of all tasks run as batched matrix products."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("task",), optional_towers=("trunk",))
        check_no_behaviours(spec)
        width = spec.dense_dim + spec.sparse_width
        self.wide = linear(width, spec.outputs, bias=False)
        self.trunk = Tower(width, spec.towers.get("trunk", ()))
        self.tasks = ParallelTowers(spec.outputs, self.trunk.outputs, spec.towers["task"])

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """See `DenseNet.logits`."""
        inputs = torch.cat((dense, sparse), 1)
        result: Tensor = self.wide(inputs) + self.tasks(self.trunk(inputs))
        return result
