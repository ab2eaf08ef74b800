"""Against a stand-in for NVML's library: what it returns, and how it fails."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hebe.machine.meters.gpu_power import GpuPower


class NVMLError(Exception):
    pass


class Library(SimpleNamespace):
    """NVML with GPUs that draw so many milliwatts each; an exception in place of a number is raised."""

    NVMLError = NVMLError

    def __init__(self, *milliwatts, driver=True):
        super().__init__(milliwatts=list(milliwatts), driver=driver, open=0)

    def nvmlInit(self):  # noqa: N802
        if not self.driver:
            raise NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        if self.milliwatts is None:
            raise NVMLError("Driver Not Loaded")
        return len(self.milliwatts)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        if isinstance(self.milliwatts[handle], Exception):
            raise self.milliwatts[handle]
        return self.milliwatts[handle]


@pytest.fixture
def library(monkeypatch):
    def make(*milliwatts, **keywords):
        made = Library(*milliwatts, **keywords)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return make


def test_all_gpus_are_added_up(library):
    nvml = library(61_500, 700_000)
    gpus = GpuPower()
    assert gpus.read_watts() == 761.5
    nvml.milliwatts = [100_000, 100_000]
    assert gpus.read_watts() == 200.0
    assert gpus.unreadable == ""
    gpus.close()
    gpus.close()
    assert nvml.open == 0
    assert gpus.read_watts() is None


def test_without_library_driver_or_gpu_it_says_so(library, monkeypatch):
    library(driver=False)
    assert "no NVIDIA driver: NVML Shared Library Not Found" in GpuPower().unreadable
    nvml = library()
    gpus = GpuPower()
    assert (gpus.read_watts(), gpus.unreadable) == (None, "the NVIDIA driver has no GPU")
    gpus.close()
    nvml.milliwatts = None
    assert GpuPower().unreadable == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = GpuPower()
    assert (gpus.read_watts(), "hebe-serve[gpu]" in gpus.unreadable) == (None, True)
    gpus.close()


def test_a_gpu_that_falls_off_takes_the_others_with_it(library):
    nvml = library(50_000, 60_000)
    gpus = GpuPower()
    nvml.milliwatts[1] = NVMLError("GPU is lost")
    for _ in range(2):
        assert gpus.read_watts() is None
        assert gpus.unreadable == "NVML: GPU is lost"


def test_the_real_library_has_what_is_asked_of_it():
    pynvml = pytest.importorskip("pynvml")
    asked = [name for name in dir(Library) if name.lower().startswith("nvml")]
    assert len(asked) == 6
    assert [name for name in asked if not hasattr(pynvml, name)] == []
