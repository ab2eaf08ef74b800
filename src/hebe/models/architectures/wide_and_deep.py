"""Wide&Deep (Cheng et al. 2016, arXiv:1606.07792) and multi-task Wide&Deep (Zhao et al., RecSys 2019).

Wide&Deep is a linear model and a deep tower, added before the sigmoid. Both halves read the dense features and all
pooled embeddings side by side. The wide half is one linear layer over that vector: a key's wide weight is the inner
product of its row with the layer's weights for the feature. So a published configuration keeps exactly its tables, each
at its dim; a table of dim 1, where a model has one, acts as the wide weights proper of its keys.

Towers   `deep`  hidden layers of the deep half, each followed by ReLU; its last, linear layer is implied
Settings none

Multi-task Wide&Deep is one trunk, then one tower for each of N tasks. Every task has a score of its own (`outputs` = N)
and, as in Wide&Deep, a linear half over all inputs that is added to its tower's output before the sigmoid.

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


class WideAndDeep(DenseNet):
    """Wide&Deep's DenseNet."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        check_fields(spec, ("deep",))
        check_no_behaviours(spec)
        width = spec.dense_dim + spec.sparse_width
        self.wide = linear(width, spec.outputs, bias=False)
        self.deep = Tower(width, spec.towers["deep"])
        self.predict = linear(self.deep.outputs, spec.outputs)

    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """See `DenseNet.logits`."""
        inputs = torch.cat((dense, sparse), 1)
        result: Tensor = self.wide(inputs) + self.predict(self.deep(inputs))
        return result


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
