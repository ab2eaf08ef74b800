"""The DenseNet in the form in which workers call it.

`eager` runs the module as it is: slow to dispatch, and the interpreter lock keeps workers from running side by
side. `scripted` traces and freezes it: weights are constants, no interpreter. `compiled` builds a shared library
with AOTInductor: needs a C++ compiler and half a minute. docs/serving.md has the measured table that made
`scripted` the default (`hebe bench execution`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import torch

from hebe.machine.gpu import CPU
from hebe.machine.pinning import MOST_THREADS_PER_WORKER
from hebe.models.scripted_net import DenseFunction, example_inputs, served, write_scores
from hebe.spec import ModelSpec


class GraphMode(StrEnum):
    """How the DenseNet is run."""

    EAGER = "eager"
    SCRIPTED = "scripted"
    COMPILED = "compiled"


def prepare(
    module: torch.nn.Module,
    spec: ModelSpec,
    mode: GraphMode,
    compile_threads: int = 1,
    device: torch.device = CPU,
) -> DenseFunction:
    """The DenseNet on `device`, ready to be called by several threads at once; compiled, by at least `compile_threads`
    of them.
    """
    module = module.eval().to(device)
    if mode is GraphMode.EAGER:
        return on_buffers(module)
    if mode is GraphMode.SCRIPTED:
        return served(module, spec, device)
    return on_buffers(_compile(module, spec, compile_threads, device))


def on_buffers(function: Callable[..., torch.Tensor]) -> DenseFunction:
    """A DenseNet that is called with rows of its inputs, and returns their scores."""

    def run(items: int, scores: torch.Tensor, *buffers: torch.Tensor) -> None:
        write_scores(function(*(buffer[:items] for buffer in buffers)), scores[:items])

    return run


def _compile(
    module: torch.nn.Module, spec: ModelSpec, threads: int, device: torch.device
) -> Callable[..., torch.Tensor]:
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.package.package import load_package

    inputs = example_inputs(spec, 16, device)
    items = torch.export.Dim("items", min=2, max=1 << 20)
    with torch.no_grad():
        program = torch.export.export(module, inputs, dynamic_shapes=({0: items},) * len(inputs))
        with tempfile.TemporaryDirectory(prefix="hebe-compiled-") as directory:
            path = aoti_compile_and_package(program, package_path=str(Path(directory) / "dense.pt2"))
            # As many as any way to split this server has threads: further ones would wait for each other. They share
            # their weights.
            runner = load_package(path, num_runners=max(threads, MOST_THREADS_PER_WORKER * (os.cpu_count() or 1)))

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        items = inputs[0].shape[0]
        if items == 1:  # exported for two items or more: torch.export specialises on one
            inputs = tuple(torch.cat([tensor, tensor]) for tensor in inputs)
        scores: torch.Tensor = runner(*inputs)
        return scores[:items]

    return run
