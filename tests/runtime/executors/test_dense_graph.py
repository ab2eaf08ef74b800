"""The DenseNet's forms; that each scores as the plain module does is test_loaded_model's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hebe.machine.process_limits import give_back_freed
from hebe.models.catalog import entry
from hebe.models.scripted_net import example_inputs, scores_of
from hebe.runtime.executors.dense_graph import GraphMode, prepare

WEIGHTS_BYTES = 16 << 20
SPEC = SimpleNamespace(dense_dim=1024, sparse_width=1, sequences=(), lookups_per_item=1, reads_keys=False)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1024, WEIGHTS_BYTES // 4096)

    def forward(self, dense, sparse, lengths):
        return self.layer(dense).sum(1, keepdim=True) + sparse + lengths.sum()


def resident_bytes() -> int:
    give_back_freed()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_scripted_densenet_goes_with_its_last_user():
    """TorchScript keeps the code of what it traced for ever; the weights must not be part of it."""

    def use() -> None:
        net = Net().requires_grad_(False)
        function, inputs = prepare(net, SPEC, GraphMode.SCRIPTED), example_inputs(SPEC, 4)
        with torch.inference_mode():
            for _ in range(3):
                scores = scores_of(function, inputs, 1)
            torch.testing.assert_close(scores, net(*inputs))

    use()
    before = resident_bytes()
    for _ in range(8):
        use()
    assert resident_bytes() - before < 3 * WEIGHTS_BYTES


@pytest.mark.parametrize("mode", [GraphMode.EAGER, GraphMode.SCRIPTED])
@pytest.mark.parametrize("reads_keys", [False, True])
def test_it_reads_the_first_rows_of_buffers_and_writes_those_of_the_scores(mode, reads_keys):
    class Weighed(torch.nn.Module):
        def forward(self, dense, sparse, lengths, *keys):
            return (dense.sum(1) + 2 * sparse.sum(1) + 3 * lengths.sum(1) + sum(each.sum(1) for each in keys))[:, None]

    spec = replace(entry("din", scale=1e-6), settings={"reads_keys": reads_keys})
    function, buffers = prepare(Weighed(), spec, mode), example_inputs(spec, 8)
    for items in (1, 5, 8):
        scores = torch.full((8, 1), -1.0)
        function(items, scores, *buffers)
        expected = Weighed()(*(buffer[:items] for buffer in buffers))
        torch.testing.assert_close(scores[:items], expected)
        assert (scores[items:] == -1).all()


@pytest.mark.parametrize("mode", [GraphMode.EAGER, GraphMode.SCRIPTED])
def test_scores_of_another_shape_are_an_error(mode):
    """One row for all items, which torch would write to each of them."""

    class Mean(torch.nn.Module):
        def forward(self, dense, sparse, lengths):
            return (dense.mean() + sparse.mean() + lengths.sum()).reshape(1, 1)

    function = prepare(Mean(), SPEC, mode)
    with pytest.raises(Exception, match=r"the DenseNet's scores have shape .*1, 1\D*, the model's .*4, 1"):
        function(4, torch.empty(8, 1), *example_inputs(SPEC, 8))


def test_a_compiled_densenet_runs_on_as_many_threads_as_any_split_of_this_server_has(monkeypatch):
    """A server that is split into more workers while it serves does not load its model again."""
    from torch._inductor.package import package  # takes seconds, which whoever collects this file need not wait

    runners = []

    def load(_path, num_runners):
        runners.append(num_runners)
        return lambda *inputs: inputs[0]

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", lambda *_, **__: "dense.pt2")
    monkeypatch.setattr(package, "load_package", load)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    net = Net().requires_grad_(False)
    for threads in (1, 50):
        prepare(net, SPEC, GraphMode.COMPILED, threads)
    assert runners == [16, 50]
