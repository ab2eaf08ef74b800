"""The DenseNet contract: pooled embeddings and dense features in, one probability per item and output out.

An architecture is one file beside this one with one `DenseNet` subclass. It is built from a `ModelSpec`, checks
with `check_fields` that it reads every tower and setting that the spec gives, and computes with tensors only: no
Python decision depends on the number of items, so that one trace or export serves every batch size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection

import torch
from torch import Tensor, nn

from hebe.spec import FeatureSlot, ModelSpec, Pooling, SpecError

SPARSE_SETTINGS = frozenset({"row_bound"})
"""Settings about the tables rather than the DenseNet, allowed for every architecture (`ranking_model`)."""


class DenseNet(nn.Module, ABC):
    """Everything after pooling. Subclasses compute `logits`."""

    @abstractmethod
    def logits(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        """Scores before the sigmoid, float32 `[n, outputs]`; training uses them.

        `dense` float32 `[n, dense_dim]`; `sparse` float32 `[n, sparse_width]`, laid out as `spec.slots` says;
        `lengths` int64 `[n, len(spec.sequences)]`, the valid rows of each unreduced feature.
        """

    def forward(self, dense: Tensor, sparse: Tensor, lengths: Tensor) -> Tensor:
        """Probabilities in [0, 1], float32 `[n, outputs]`; arguments as for `logits`."""
        return torch.sigmoid(self.logits(dense, sparse, lengths))


def check_fields(
    spec: ModelSpec,
    towers: Collection[str],
    settings: Collection[str] = (),
    optional_towers: Collection[str] = (),
) -> None:
    """Raise `SpecError` where `spec` lacks one of `towers` or carries a tower or setting that nothing reads.

    `settings` are the names that the architecture reads; values are checked where they are read (`choice_setting`,
    `count_setting`).
    """
    where = f"model {spec.name} ({spec.architecture})"
    for name in towers:
        if not spec.towers.get(name):
            raise SpecError(f"{where}: towers.{name} is missing: give the widths of its layers")
    for name in spec.towers:
        if name not in towers and name not in optional_towers:
            known = ", ".join(sorted({*towers, *optional_towers}))
            raise SpecError(f"{where}: towers.{name} is not read by this architecture; it reads {known}")
    readable = {*settings, *SPARSE_SETTINGS}
    for name in spec.settings:
        if name not in readable:
            known = ", ".join(sorted(readable))
            raise SpecError(f"{where}: settings.{name} is not read by this architecture; it reads {known}")


def choice_setting(spec: ModelSpec, name: str, choices: Collection[str], default: str) -> str:
    """The setting `name`, one of `choices`; raises `SpecError`."""
    value = spec.settings.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise SpecError(f"model {spec.name}: settings.{name} is {value!r}: must be one of {', '.join(choices)}")
    return value


def count_setting(spec: ModelSpec, name: str, default: int) -> int:
    """The setting `name`, a whole number of at least 1; raises `SpecError`."""
    value = spec.settings.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"model {spec.name}: settings.{name} is {value!r}: must be a whole number of at least 1")
    return value


def check_no_behaviours(spec: ModelSpec) -> None:
    """Raise `SpecError` where a feature asks for attention pooling, which only DIN, DIEN and BST compute."""
    for feature in spec.features:
        if feature.pooling is Pooling.ATTENTION:
            raise SpecError(
                f"model {spec.name}: feature {feature.name}: pooling 'attention' is not computed by "
                f"{spec.architecture}; use sum, mean or concat"
            )


def initialise(net: nn.Module, seed: int) -> None:
    """Draw all weights of `net` from `seed`, with a generator of its own; the global random state is untouched.

    Linear layers as DLRM's reference draws them: weights normal(0, sqrt(2 / (inputs + outputs))), biases
    normal(0, sqrt(1 / outputs)). PReLU starts at 0.25, LayerNorm at identity. A module with weights of another
    kind draws them in its own `draw(generator)`. Raises ValueError for a seed outside [0, 2**63).
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}: must be between 0 and 2**63 - 1")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Linear):
                draw_linear(module.weight, module.in_features, module.out_features, generator)
                if module.bias is not None:
                    draw_bias(module.bias, module.out_features, generator)
            elif isinstance(module, nn.PReLU):
                module.weight.fill_(0.25)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            else:
                draw = getattr(module, "draw", None)
                if draw is not None:
                    draw(generator)


def draw_linear(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Fill a linear map's weight in place (see `initialise`)."""
    weight.normal_(0.0, math.sqrt(2.0 / (inputs + outputs)), generator=generator)


def draw_bias(bias: Tensor, outputs: int, generator: torch.Generator) -> None:
    """Fill a linear map's bias in place (see `initialise`)."""
    bias.normal_(0.0, math.sqrt(1.0 / outputs), generator=generator)


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer whose weights are allocated but not drawn; `initialise` draws them."""
    # Not by nn.utils.skip_init, whose way from the meta device to memory imports sympy: half a second at each start.
    layer = nn.Linear(inputs, outputs, bias, device="meta")
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer


Runs = tuple[tuple[int, int], ...]
"""Ranges of columns, `(first, count)` each."""


def column_runs(slots: Collection[FeatureSlot]) -> Runs:
    """The columns of `slots` in the SparseNet's output, neighbours merged: as few copies as can be."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and sum(runs[-1]) == slot.column:
            runs[-1] = (runs[-1][0], runs[-1][1] + slot.width)
        else:
            runs.append((slot.column, slot.width))
    return tuple(runs)


def take(sparse: Tensor, runs: Runs) -> Tensor:
    """The columns `runs` of `sparse` side by side; a view where there is one run."""
    parts = [sparse.narrow(1, first, count) for first, count in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
