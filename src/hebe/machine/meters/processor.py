"""How busy this machine's cores are, who keeps them so, how much of it is this process, and how fast the cores are now.

`ProcessorMeter` counts in the kernel's ticks (`/proc`), usually of 10 ms: an interval should last some tenths of a
second. In a virtual machine what the host gave to others while a core here had work is "steal": neither busy nor free.

`MachineSpeed` does the same work again and again. A virtual machine whose host lets others use its memory bus or the
other half of its cores gets slower without a sign: no core is denied to it, nothing of its own runs. Measurements hours
apart, or minutes, then differ by factors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hebe.machine.pinning import available_cores, pin_thread

PROC = Path("/proc")


class ProcessorMeterError(OSError):
    """`/proc` does not tell what it should; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Shares, 0 to 1, of the cores' time in an interval.

    `machine` is what all cores of the machine were busy, `cores` what the chosen ones were, `process` what this
    process took, of the chosen cores' time, `steal` what the chosen cores were denied by their host. `ticks` is the
    chosen cores' time that this was counted in; with 0, all shares are 0.
    """

    machine: float
    cores: float
    process: float
    steal: float
    ticks: int


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """A process that takes `share` of the cores' time."""

    name: str
    pid: int
    share: float


@dataclass(frozen=True, slots=True)
class BusyMachine:
    """What others take of the cores: `share`, 0 to 1, `steal` of it for other virtual machines.

    `processes` are the busiest ones of others that can be seen from here, the busiest first.
    """

    share: float
    steal: float
    processes: tuple[BusyProcess, ...]

    def __str__(self) -> str:
        """``37% of its cores are taken, most by python (pid 123)``."""
        said = f"{self.share:.0%} of its cores are taken"
        busiest = self.processes[0] if self.processes else None
        if self.steal > 0 and (busiest is None or self.steal >= busiest.share):
            return f"{said}, most by other machines on the same host"
        if busiest is not None:
            return f"{said}, most by {busiest.name} (pid {busiest.pid})"
        return f"{said}, by processes that cannot be seen from here" if self.share >= 0.01 else said


@dataclass(frozen=True, slots=True)
class _CoreTicks:
    busy: int
    steal: int
    idle: int

    @property
    def total(self) -> int:
        return self.busy + self.steal + self.idle


class ProcessorMeter:
    """Shares of the time between two readings: each `read` counts from the one before, the first from its making.

    `cores` are the chosen ones, by default those that the calling thread may use. Raises `ProcessorMeterError` where
    `/proc` lacks them.
    """

    def __init__(self, cores: Iterable[int] | None = None, proc: Path = PROC) -> None:
        self._proc = proc
        self.cores = available_cores() if cores is None else tuple(cores)
        self._last = self._snapshot()

    def read(self) -> ProcessorUse:
        """Shares since the last reading. Raises `ProcessorMeterError`."""
        before, self._last = self._last, self._snapshot()
        everywhere, own_before = _since(before[0], self._last[0], self._last[0]), before[1]
        chosen = _since(before[0], self._last[0], self.cores)
        return ProcessorUse(
            _share(everywhere.busy, everywhere.total),
            _share(chosen.busy, chosen.total),
            _share(self._last[1] - own_before, chosen.total),
            _share(chosen.steal, chosen.total),
            chosen.total,
        )

    def _snapshot(self) -> tuple[dict[int, _CoreTicks], int]:
        ticks = _core_ticks(self._proc)
        if not ticks.keys() & set(self.cores):
            raise ProcessorMeterError(f"{self._proc / 'stat'} knows none of the cores {list(self.cores)}")
        own = _process_ticks(self._proc / "self")
        return ticks, 0 if own is None else own[2]


def busy_machine(
    seconds: float = 1.0,
    *,
    cores: Iterable[int] | None = None,
    proc: Path = PROC,
    most: int = 5,
    wait: Callable[[float], None] = time.sleep,
) -> BusyMachine:
    """Look for so many seconds what others take of `cores` (by default those that the calling thread may use).

    Others are all but this process and those that it started, and theirs. At most `most` of them are named.
    Raises `ProcessorMeterError`.
    """
    chosen = available_cores() if cores is None else tuple(cores)
    cores_before, processes_before = _core_ticks(proc), _all_processes(proc)
    if not cores_before.keys() & set(chosen):
        raise ProcessorMeterError(f"{proc / 'stat'} knows none of the cores {list(chosen)}")
    wait(seconds)
    cores_after, processes_after = _core_ticks(proc), _all_processes(proc)
    used = _since(cores_before, cores_after, chosen)
    own = _family(_own_pid(proc), processes_after)
    own_ticks, others = 0, []
    for pid, (name, _, ticks) in processes_after.items():
        before = processes_before.get(pid)
        spent = ticks - before[2] if before is not None and before[2] <= ticks else ticks
        if pid in own:
            own_ticks += spent
        elif spent > 0:
            others.append(BusyProcess(name, pid, _share(spent, used.total)))
    others.sort(key=lambda process: (-process.share, process.pid))
    return BusyMachine(
        _share(max(used.busy - own_ticks, 0) + used.steal, used.total),
        _share(used.steal, used.total),
        tuple(others[:most]),
    )


def _share(part: int, whole: int) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _since(before: Mapping[int, _CoreTicks], after: Mapping[int, _CoreTicks], cores: Iterable[int]) -> _CoreTicks:
    """What the cores that are there at both times have done between."""
    both = [(before[core], after[core]) for core in cores if core in before and core in after]
    # Not below 0: idle time is told by another clock than busy time, and steps back now and then.
    return _CoreTicks(
        sum(max(new.busy - old.busy, 0) for old, new in both),
        sum(max(new.steal - old.steal, 0) for old, new in both),
        sum(max(new.idle - old.idle, 0) for old, new in both),
    )


def _core_ticks(proc: Path) -> dict[int, _CoreTicks]:
    """Ticks of each core since the machine started: proc_stat(5)."""
    found = {}
    try:
        for line in (proc / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                user, nice, system, idle, io_wait, interrupt, soft, steal = (*map(int, fields), 0, 0, 0, 0)[:8]
                found[int(name[3:])] = _CoreTicks(user + nice + system + interrupt + soft, steal, idle + io_wait)
    except OSError as fault:
        raise ProcessorMeterError(f"{proc / 'stat'} cannot be read: {fault.strerror}") from None
    except ValueError:
        raise ProcessorMeterError(f"{proc / 'stat'} is not of the form that Linux gives it") from None
    return found


_Process = tuple[str, int, int]
"""Name, parent, ticks of all its threads."""


def _process_ticks(place: Path) -> _Process | None:
    """A process, None if it is gone: proc_pid_stat(5)."""
    try:
        text = (place / "stat").read_text(errors="replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return name, int(fields[1]), int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


def _all_processes(proc: Path) -> dict[int, _Process]:
    found = {}
    for place in proc.iterdir():
        if place.name.isdecimal() and (process := _process_ticks(place)) is not None:
            found[int(place.name)] = process
    return found


def _own_pid(proc: Path) -> int:
    """Of this process as `/proc` numbers it, which may be mounted from another namespace."""
    try:
        return int((proc / "self" / "stat").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return os.getpid()


def _family(pid: int, processes: Mapping[int, _Process]) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for child, (_, parent, _) in processes.items():
        children.setdefault(parent, []).append(child)
    family, waiting = set(), [pid]
    while waiting:
        one = waiting.pop()
        if one not in family:
            family.add(one)
            waiting += children.get(one, [])
    return family


_NUMBERS = 1 << 22
"""Float64 that are summed, 32 MiB: more than second-level caches hold, so that memory takes part."""
_COMPUTED = 1 << 14
"""Of which the exponential is taken, which caches hold."""
_RUNS, _PAUSE_S = 6, 0.05
"""Of which the fastest counts, so that what interrupts one of them does not: steal tells of that."""

Work = Callable[[], float]
"""Does the work once; returns the seconds that it took."""


class MachineSpeed:
    """`sample` does the work on each of `cores`, at the same time: a third of a second.

    It takes 32 MiB while this object lives. `work` is done in its place.
    """

    def __init__(self, cores: Sequence[int], work: Work | None = None) -> None:
        self._cores = tuple(cores)
        self._numbers = np.ones(_NUMBERS if work is None else 0)
        self._work = work or self._sum_and_compute

    def sample(self) -> float:
        """Seconds that the work takes now: on the core where it takes longest, the fastest of some runs."""

        def run(core: int) -> float:
            pin_thread((core,))
            return min(self._paused_work() for _ in range(_RUNS))

        with ThreadPoolExecutor(len(self._cores)) as threads:
            return max(threads.map(run, self._cores))

    def _paused_work(self) -> float:
        time.sleep(_PAUSE_S)
        return self._work()

    def _sum_and_compute(self) -> float:
        began_s = time.perf_counter()
        self._numbers.sum()
        for _ in range(8):
            np.exp(self._numbers[:_COMPUTED])
        return time.perf_counter() - began_s
