"""What the NVIDIA GPUs of this machine draw, through NVML, as nvidia-smi and Hercules (section V) read it."""

from __future__ import annotations

from typing import Any


class GpuPower:
    """Watts of all GPUs that the driver tells of. One thread at a time; `close` lets go of the driver's library.

    `unreadable` says why there is no figure, empty where there is: neither library nor driver has to be there. A GPU
    that cannot be read any more takes the others with it: their sum would not be the machine's.
    """

    def __init__(self) -> None:
        self.unreadable = ""
        self._nvml: Any = None
        self._gpus: list[Any] = []
        try:
            import pynvml
        except ImportError:
            self.unreadable = "NVML's Python library is not installed: pip install 'hebe-serve[gpu]'"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as fault:
            self.unreadable = f"there is no NVIDIA driver: {fault}"
            return
        self._nvml = pynvml
        try:
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as fault:
            self.unreadable = f"NVML: {fault}"
        if not self._gpus and not self.unreadable:
            self.unreadable = "the NVIDIA driver has no GPU"
        self.read_watts()

    def read_watts(self) -> float | None:
        """Watts at this moment, as the driver averages them (up to a second); None where they cannot be read."""
        if not self._gpus:
            return None
        try:
            return sum(float(self._nvml.nvmlDeviceGetPowerUsage(gpu)) for gpu in self._gpus) / 1e3
        except self._nvml.NVMLError as fault:
            self._gpus.clear()
            self.unreadable = f"NVML: {fault}"
            return None

    def close(self) -> None:
        """There is nothing to read afterwards."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
            self._gpus.clear()
            self.unreadable = "closed"
