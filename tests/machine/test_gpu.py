"""Which device an accelerator is."""

from __future__ import annotations

import pytest
import torch

from hebe.machine.gpu import CPU, GpuMissing, device_name, find_accelerator, is_gpu
from hebe.server_configuration import AcceleratorChoice


def test_with_no_gpu_a_second_cpu_device_stands_for_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_accelerator() == find_accelerator(AcceleratorChoice.CPU) == CPU
    assert device_name(CPU) == device_name(find_accelerator()) == ""
    assert not is_gpu(CPU)
    assert not is_gpu(None)


@pytest.mark.parametrize(
    ("cuda", "said"), [(None, "is a build for CPUs alone"), ("13.0", "finds no GPU: is the driver")]
)
def test_a_gpu_that_is_not_there_is_told(monkeypatch, cuda, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(GpuMissing, match=said):
        find_accelerator(AcceleratorChoice.CUDA)


def test_a_gpu_is_taken_if_there_is_one_unless_the_cpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_accelerator() == find_accelerator(AcceleratorChoice.CUDA) == torch.device("cuda", 0)
    assert is_gpu(find_accelerator())
    assert find_accelerator(AcceleratorChoice.CPU) == CPU
