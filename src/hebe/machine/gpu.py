"""The GPU of this machine that is an accelerator, as PyTorch has it: the first that the process may use
(CUDA_VISIBLE_DEVICES says which these are), or none, and then a second CPU device stands for it.
"""

from __future__ import annotations

import functools
import warnings

import torch

from hebe.server_configuration import AcceleratorChoice

CPU = torch.device("cpu")

FOR_HOT_ROWS = 0.8
"""Of a GPU's memory; the rest is for DenseNets, their batches, and what CUDA takes itself."""


class GpuMissing(Exception):
    """A GPU that was asked for is not to be had; the message says why."""


def is_gpu(device: torch.device | None) -> bool:
    """Whether it is one; None is the host."""
    return device is not None and device.type != "cpu"


def find_accelerator(asked: AcceleratorChoice = AcceleratorChoice.AUTO) -> torch.device:
    """The device that is `asked` for. Raises `GpuMissing`, which says why, for a GPU that is not there."""
    if asked is AcceleratorChoice.CPU:
        return CPU
    if torch.cuda.is_available():
        _prepare()
        return torch.device("cuda", 0)
    if asked is AcceleratorChoice.AUTO:
        return CPU
    if torch.version.cuda is None:
        raise GpuMissing(f"PyTorch {torch.__version__} is a build for CPUs alone: install one for CUDA")
    raise GpuMissing(
        f"PyTorch {torch.__version__} finds no GPU: is the driver there (nvidia-smi), and does CUDA_VISIBLE_DEVICES "
        "leave one?"
    )


@functools.cache
def _prepare() -> None:
    """Settings of this process, for scores that are those of the host and ready at once."""
    torch.backends.cudnn.allow_tf32 = False  # of float32 products it keeps 10 bits
    # TorchScript would compile kernels for the first batch sizes that it meets, while queries wait.
    torch._C._jit_set_texpr_fuser_enabled(False)
    # Of some kilobytes of DIEN's weights, which cuDNN copies for each batch.
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")


def device_name(device: torch.device) -> str:
    """The GPU's, in the driver's words, or empty for a second CPU device."""
    return torch.cuda.get_device_name(device) if is_gpu(device) else ""


def device_memory_bytes(device: torch.device) -> int:
    """All memory of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)
