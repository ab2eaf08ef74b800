"""What this machine draws: measured where it can be read, estimated where not, and marked so.

Packages and memory by RAPL (`rapl`), GPUs by NVML (`gpu_power`); where RAPL cannot be read, what the cores are busy is
put on the line between the server type's idle and peak power. An efficiency tuple wants the peak at a load (Hercules
section IV-A), so power is sampled by a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hebe.machine.meters.gpu_power import GpuPower
from hebe.machine.meters.processor import PROC, ProcessorMeter
from hebe.machine.meters.rapl import POWERCAP, RaplCounters
from hebe.machine.this_server import this_server
from hebe.spec import ServerSpec

SAMPLE_S = 0.2
"""Between samples: some dozens of the kernel's ticks, which the estimate counts in."""

_SHORTEST_S = 0.05
"""A sample over less says nothing: RAPL is renewed each millisecond, ticks are 10 ms."""


class PowerMeterError(RuntimeError):
    """Power can be neither read nor estimated; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Mean power over some time, watts.

    `watts` is the sum of the parts that were read, or, with `estimated`, an estimate of the server without its
    accelerator and what was read of that. A part is None where it cannot be read. `source` says where `watts` is from.
    """

    watts: float
    package_watts: float | None
    dram_watts: float | None
    gpu_watts: float | None
    estimated: bool
    source: str


@dataclass(frozen=True, slots=True)
class PowerUse:
    """Power over an interval of `seconds`: its mean, and the highest of its samples."""

    mean: PowerReading
    peak: PowerReading
    seconds: float


class PowerMeter:
    """Samples power from `start` to `close`; `read` tells of the time since the last `read`. Also a context manager.

    `server` states the power to estimate from, by default what `this_server` takes it for, and `cores` are those whose
    use is put to it, by default those that the calling thread may use. `root` and `proc` are where powercap and `/proc`
    are mounted. What is read is the whole machine's, whoever uses it.
    """

    def __init__(
        self,
        root: Path = POWERCAP,
        server: ServerSpec | None = None,
        *,
        cores: Sequence[int] | None = None,
        proc: Path = PROC,
        sample_s: float = SAMPLE_S,
    ) -> None:
        if sample_s < _SHORTEST_S:
            raise ValueError(f"sample_s is {sample_s}: must be at least {_SHORTEST_S}")
        self._root, self._proc, self._server, self._cores = root, proc, server, cores
        self._sample_s = sample_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._sources: _Sources | None = None
        self._tally = _Tally()
        self._fault: Exception | None = None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What cannot be read and why, one line each; empty before `start`."""
        return () if self._sources is None else self._sources.unreadable

    def start(self) -> None:
        """Begin to sample. Raises `PowerMeterError` if power can be neither read nor estimated."""
        self.close()
        sources = _Sources(self._root, self._server, self._cores, self._proc)
        try:
            sources.check()
        except BaseException:
            sources.close()
            raise
        self._sources, self._tally, self._fault = sources, _Tally(), None
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="hebe-power-meter", daemon=True)
        self._thread.start()

    def read(self) -> PowerUse:
        """Mean and peak power since `start` or the last `read`; waits up to 0.05 s where that was just now.

        After `close`, of the time until then. Raises `PowerMeterError` if there is no such time, or power could be
        neither read nor estimated.
        """
        with self._lock:
            if self._thread is not None:
                self._take_last_sample()
            tally, self._tally = self._tally, _Tally()
            fault, self._fault = self._fault, None
        if fault is not None:
            raise PowerMeterError(f"power cannot be measured any more: {fault}") from fault
        if not tally.samples:
            raise PowerMeterError("the power meter was not started, or has been read since it was closed")
        return tally.use()

    def close(self) -> None:
        """Stop to sample, with a last sample. May be called any number of times."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        thread.join()
        with self._lock:
            self._take_last_sample()
        assert self._sources is not None
        self._sources.close()

    def __enter__(self) -> PowerMeter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._sample_s):
            with self._lock:
                # A reading just now may have taken the sample's time.
                if self._sources is not None and self._sources.seconds >= _SHORTEST_S:
                    self._sample()

    def _take_last_sample(self) -> None:
        assert self._sources is not None
        if (left_s := _SHORTEST_S - self._sources.seconds) > 0:
            time.sleep(left_s)
        self._sample()

    def _sample(self) -> None:
        assert self._sources is not None
        try:
            reading, seconds = self._sources.sample()
            self._tally.add(reading, seconds, whole=seconds >= self._sample_s / 2)
        except (OSError, PowerMeterError) as fault:
            self._fault = fault


class _Sources:
    """All that power is told by, and their last readings."""

    def __init__(self, root: Path, server: ServerSpec | None, cores: Sequence[int] | None, proc: Path) -> None:
        self._server = server or this_server(cores)
        idle_watts, peak_watts = self._server.idle_power_watts, self._server.peak_power_watts
        stated = "" if server is None else f" ({idle_watts:g} to {peak_watts:g} W)"
        self._estimated_from = f"CPU utilization and server type {self._server.name}{stated}"
        self._rapl = RaplCounters(root)
        self._gpus = GpuPower()
        self._gpu_fault = self._gpus.unreadable
        self._processors = ProcessorMeter(cores, proc)
        self._joules = self._rapl.read()
        self._at_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the last sample."""
        return time.monotonic() - self._at_s

    @property
    def unreadable(self) -> tuple[str, ...]:
        faults = {
            "packages": self._rapl.package_unreadable,
            "memory": self._rapl.dram_unreadable,
            "GPUs": self._gpu_fault,
        }
        return tuple(f"power of {part} cannot be read: {why}" for part, why in faults.items() if why)

    def check(self) -> None:
        """Raises `PowerMeterError` where there is nothing to read and nothing to estimate from."""
        if self._rapl.package_unreadable and not self._server.peak_power_watts:
            raise PowerMeterError(
                f"power of packages cannot be read: {self._rapl.package_unreadable}; and server type "
                f"{self._server.name} states no power to estimate it from: give its idle_power_watts and "
                "peak_power_watts"
            )

    def sample(self) -> tuple[PowerReading, float]:
        """Power since the last one, and the seconds since. Raises `PowerMeterError`, `ProcessorMeterError`."""
        before_joules, before_s = self._joules, self._at_s
        self._joules, self._at_s = self._rapl.read(), time.monotonic()
        seconds = self._at_s - before_s
        package, dram = (
            None if new is None or old is None else (new - old) / seconds
            for new, old in zip(self._joules, before_joules, strict=True)
        )
        if package == 0:
            # Some virtual machines have the files and nothing behind them. A processor that runs draws power.
            self._rapl.give_up_packages("RAPL's counter of packages stands still")
            self._joules = (None, self._joules[1])
            package = None
        gpu = self._gpus.read_watts()
        self._gpu_fault = self._gpus.unreadable
        busy = self._processors.read().cores
        sources = []
        if package is not None:
            watts = package + (dram or 0.0)
            sources.append("RAPL" if dram is not None else "RAPL without memory")
        else:
            self.check()
            idle_watts = self._server.idle_power_watts
            # Of the server's cores: fewer than those that may be used, where a control group bounds their time.
            share = min(1.0, busy * len(self._processors.cores) / self._server.cores)
            watts = idle_watts + (self._server.peak_power_watts - idle_watts) * share
            sources.append(self._estimated_from)
        if gpu is not None:
            watts += gpu
            sources.append("NVML")
        return PowerReading(watts, package, dram, gpu, package is None, " and ".join(sources)), seconds

    def close(self) -> None:
        """Let go of the driver's library; what could not be read stays told."""
        self._gpus.close()


class _Tally:
    """Samples of an interval, added up: it may last for days."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = 0
        self._joules: list[float | None] = [0.0, 0.0, 0.0, 0.0]
        self._sources: dict[str, None] = {}
        self._estimated = False
        self._peak: PowerReading | None = None

    def add(self, reading: PowerReading, seconds: float, *, whole: bool) -> None:
        """A sample; one that is not whole is too short to have a peak of its own."""
        parts = (reading.watts, reading.package_watts, reading.dram_watts, reading.gpu_watts)
        # A part that any sample lacks is None: of a part of the time it would not be the interval's.
        self._joules = [
            None if joules is None or watts is None else joules + watts * seconds
            for joules, watts in zip(self._joules, parts, strict=True)
        ]
        self.seconds += seconds
        self.samples += 1
        self._sources[reading.source] = None
        self._estimated = self._estimated or reading.estimated
        if whole and (self._peak is None or reading.watts > self._peak.watts):
            self._peak = reading

    def use(self) -> PowerUse:
        """Of at least one sample."""
        watts, package, dram, gpu = (None if joules is None else joules / self.seconds for joules in self._joules)
        assert watts is not None
        mean = PowerReading(watts, package, dram, gpu, self._estimated, "; then ".join(self._sources))
        peak = mean if self._peak is None or self._peak.watts < watts else self._peak
        return PowerUse(mean, peak, self.seconds)
