import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hebe.models import catalog
from hebe.models.architectures.build import build_dense_net
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.dense_ops import dense_stages

ITEMS = 4
NOT_LAUNCHED = {"aten::new_zeros", "aten::zeros", "aten::unsafe_split", "aten::_unsafe_view", "aten::detach"}


class LaunchCounter(TorchDispatchMode):
    """Counts the ops that compute or move something: no views, no allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        view = any(out.alias_info is not None and not out.alias_info.is_write for out in function._schema.returns)
        self.count += not view and function._schema.name not in NOT_LAUNCHED
        return function(*args, **(kwargs or {}))


def arguments(spec):
    lengths = torch.full((ITEMS, len(spec.sequences)), 3)
    return torch.rand(ITEMS, spec.dense_dim), torch.rand(ITEMS, spec.sparse_width), lengths


@pytest.fixture(params=catalog.names())
def spec(request):
    return catalog.entry(request.param, scale=1e-6)


def ops_of(spec):
    return [op for stage in dense_stages(spec) for chain in stage for op in chain]


def test_flops_are_those_that_torch_counts(spec):
    net = build_dense_net(spec)
    # The counter knows no FLOPs of the CPU's fused attention; written out, it is two batched products.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        net(*arguments(spec))
    assert ITEMS * sum(op.flops for op in ops_of(spec)) == counter.get_total_flops()


def test_weights_are_those_of_the_net(spec):
    net = build_dense_net(spec)
    assert sum(op.weight_bytes for op in ops_of(spec)) == sum(4 * weight.numel() for weight in net.parameters())


def test_launches_are_those_of_the_net(spec):
    net, given = build_dense_net(spec), arguments(spec)
    with torch.no_grad(), LaunchCounter() as counter:
        net(*given)
    # Masks are counted by the half dozen here and there.
    assert sum(op.kernels for op in ops_of(spec)) == pytest.approx(counter.count, rel=0.02, abs=1)


def test_a_bottom_tower_does_not_wait_for_the_sparse_net():
    first, second = dense_stages(catalog.entry("dlrm-rmc1", scale=1e-6))
    assert [op.name for chain in first for op in chain] == ["bottom.0", "bottom.1"]
    assert "interaction" in [op.name for chain in second for op in chain]


def test_halves_of_wide_and_deep_are_independent():
    stages = dense_stages(catalog.entry("wnd", scale=1e-6))
    assert [len(stage) for stage in stages] == [0, 1, 2, 1]


def test_an_architecture_without_known_ops_is_refused():
    spec = dataclasses.replace(catalog.entry("dlrm-rmc1", scale=1e-6), architecture="imported")
    with pytest.raises(PlanningError, match=r"dlrm-rmc1: architecture 'imported' cannot be estimated.*latency profile"):
        dense_stages(spec)


def test_an_attention_model_without_behaviours_is_refused():
    spec = dataclasses.replace(catalog.entry("dlrm-rmc1", scale=1e-6), architecture="din")
    with pytest.raises(PlanningError, match="no feature of pooling 'attention'"):
        dense_stages(spec)
