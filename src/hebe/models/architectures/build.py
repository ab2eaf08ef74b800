"""From a model's spec to its DenseNet: which architecture name is which class."""

from __future__ import annotations

from hebe.models.architectures.bst import Bst
from hebe.models.architectures.dense_net import DenseNet, initialise
from hebe.models.architectures.dien import Dien
from hebe.models.architectures.din import Din
from hebe.models.architectures.dlrm import Dlrm
from hebe.models.architectures.dlrm_dcnv2 import DlrmDcnV2
from hebe.models.architectures.ncf import Ncf
from hebe.models.architectures.wide_and_deep import MultiTaskWideAndDeep, WideAndDeep
from hebe.spec import ModelSpec, SpecError

ARCHITECTURES: dict[str, type[DenseNet]] = {
    "bst": Bst,
    "dien": Dien,
    "din": Din,
    "dlrm": Dlrm,
    "dlrm-dcnv2": DlrmDcnV2,
    "multi-task-wide-and-deep": MultiTaskWideAndDeep,
    "ncf": Ncf,
    "wide-and-deep": WideAndDeep,
}
"""Architecture name to DenseNet class. Each class's module documents the towers and settings it reads."""


def build_dense_net(spec: ModelSpec, seed: int = 0) -> DenseNet:
    """The DenseNet of `spec` in evaluation mode, its weights drawn from `seed` alone.

    Raises `SpecError` for an unknown architecture and for towers, settings or features that it cannot use.
    """
    if spec.architecture == "imported":
        raise SpecError(
            f"model {spec.name}: architecture 'imported' has no class: its DenseNet is the op graph stored "
            "beside its weights; load it from its repository"
        )
    architecture = ARCHITECTURES.get(spec.architecture)
    if architecture is None:
        raise SpecError(
            f"model {spec.name}: architecture {spec.architecture!r} is unknown; "
            f"there are {', '.join(sorted(ARCHITECTURES))}"
        )
    net = architecture(spec)
    initialise(net, seed)
    return net.eval()
