"""The DenseNet on the host and on each accelerator of this machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hebe.machine.gpu import is_gpu
from hebe.models.architectures.build import build_dense_net
from hebe.models.catalog import entry
from hebe.models.scripted_net import example_inputs
from hebe.query import KeyCounts
from hebe.runtime.executors.batch_outcome import DenseInputs
from hebe.runtime.executors.dense_executor import (
    GpuDenseExecutor,
    HostDenseExecutor,
    SecondCpuDenseExecutor,
    new_dense_executor,
)
from hebe.runtime.executors.dense_graph import GraphMode, prepare

ONE_OF_EACH = {
    "dlrm-rmc1": 1e-4, "wnd": 1e-4, "mt-wnd": 1e-5, "ncf": 1e-3, "din": 1e-6, "dien": 1e-6, "recos-bst": 1e-4,
    "mlperf-dlrmv2": 1e-6,
}  # fmt: skip
"""A catalog model of each architecture, at a scale at which it takes a moment."""


def filled(spec, items, seed, device=None) -> DenseInputs:
    inputs = DenseInputs(spec, items + 3, pinned=is_gpu(device))
    rng = np.random.default_rng(seed)
    for tensor, example in zip(inputs.tensors, example_inputs(spec, items), strict=True):
        tensor[:items] = example
    inputs.sparse[:items] = 0.1 * rng.random((items, spec.sparse_width))
    inputs.items = items
    inputs.lookup.keys.add(KeyCounts(total=items))
    return inputs


@pytest.mark.parametrize("graph", [GraphMode.SCRIPTED, GraphMode.EAGER])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_accelerators_scores_are_the_hosts(name, graph, device):
    spec = entry(name, scale=ONE_OF_EACH[name])
    net = build_dense_net(spec, seed=1).eval()
    host = new_dense_executor(spec, prepare(net, spec, GraphMode.EAGER), 30)
    parts = [filled(spec, items, items, device) for items in (5, 1, 30)]
    expected = np.concatenate([host.run((part,)).scores for part in parts])
    there = build_dense_net(spec, seed=1)
    accelerator = new_dense_executor(spec, prepare(there, spec, graph, device=device), 64, device)
    for _ in range(3):
        fused = accelerator.run(parts)
        np.testing.assert_allclose(fused.scores, expected, atol=1e-5)
        assert fused.handed == tuple(parts)
        assert fused.loading_s > 0
        assert fused.dense_s > 0
    np.testing.assert_allclose(accelerator.run(parts[2:]).scores, expected[6:], atol=1e-5)


def test_each_device_has_its_executor(device):
    spec = entry("dlrm-rmc1", scale=1e-4)
    kind = GpuDenseExecutor if is_gpu(device) else SecondCpuDenseExecutor
    assert isinstance(new_dense_executor(spec, torch.nn.Identity(), 4, device), kind)
    assert isinstance(new_dense_executor(spec, torch.nn.Identity(), 4), HostDenseExecutor)


def test_more_items_than_there_is_room_for_are_refused(device):
    spec = entry("dlrm-rmc1", scale=1e-4)
    net = build_dense_net(spec, seed=1)
    executor = new_dense_executor(spec, prepare(net, spec, GraphMode.EAGER, device=device), 8, device)
    for parts in ([filled(spec, 9, 1, device)], [filled(spec, 5, 1, device), filled(spec, 4, 2, device)]):
        with pytest.raises(ValueError, match="batch of 9 items, but this executor holds at most 8"):
            executor.run(parts)
    assert executor.run([filled(spec, 8, 1, device)]).scores.shape == (8, spec.outputs)
