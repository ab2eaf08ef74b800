"""This machine as a `ServerSpec`: what a profile is of, and what its power is estimated from."""

from __future__ import annotations

import contextlib
import math
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hebe.machine.cgroups import control_group_limits
from hebe.machine.kernel_files import listed_ranges
from hebe.machine.pinning import available_cores
from hebe.spec import ServerSpec, SpecError

GIB = 1 << 30

CORE_WATTS = 6.25
"""At full load. A Xeon Gold 6138 is designed for 125 W and has 20 cores (Hercules Table II, CPU-T2)."""

MEMORY_WATTS_PER_GB = 50 / 128
"""At full load. 128 GB of DDR4 in four DIMMs are designed for 50 W (Hercules Table II)."""

IDLE_SHARE = 0.23
"""Of the power at full load: mean of four SPECpower_ssj2008 results of Skylake Xeons, 0.15 to 0.33, by which the
simulated server types are idle as well."""

_FLOPS_PER_CYCLE = (("avx512f", 64.0), ("fma", 32.0), ("avx", 16.0), ("sse2", 8.0), ("asimd", 16.0))
"""By instruction set, the widest first: float32, two units side by side, a multiply-add as two where there is one."""


def this_server(
    cores: Sequence[int] | None = None, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> ServerSpec:
    """What this process may use of this machine; `cores` by default all that the calling thread may run on, which are
    fewer once it has been pinned.

    Told by the system: `cores` and `memory_bytes`, both at most what the control groups allow, `llc_bytes` (whole last
    level caches, even where others share them), `clock_hz` (the base clock where it is told, else the present one).
    `name` is made of the CPU's model, cores and memory, the same at every start, so that a profile tells by it whether
    it is of another machine.

    Estimated: `flops_per_cycle_per_core` by instruction set, as if each core had two vector units (some Xeons have
    one of 512 bits: half); threads of one core share it. `idle_power_watts`, `peak_power_watts` and memory's part of
    them: `CORE_WATTS` a core, shared by its threads, `MEMORY_WATTS_PER_GB`, and `IDLE_SHARE` of both when idle. The
    true ones may be half or twice of that: state them where they matter.

    Not stated: memory bandwidth, price, accelerator. Raises `SpecError` where the system tells no memory size.
    """
    usable = tuple(cores) if cores is not None else available_cores()
    count = cores_allowed(usable, proc=proc, sys=sys)
    memory_bytes = int(min(_memory_bytes(proc), control_group_limits(proc, sys / "fs" / "cgroup").memory_bytes))
    described = _processor(proc)
    threads = _threads_per_core(sys, usable)
    memory_watts = MEMORY_WATTS_PER_GB * memory_bytes / 1e9
    watts = CORE_WATTS * count / threads + memory_watts
    flags = set((described.get("flags") or described.get("Features") or "").split())
    flops_per_cycle = next((flops for flag, flops in _FLOPS_PER_CYCLE if flag in flags), 0.0)
    return ServerSpec(
        name=f"{_processor_name(described)}-{count}-cores-{math.ceil(memory_bytes / GIB)}-GiB",
        cores=count,
        memory_bytes=memory_bytes,
        idle_power_watts=IDLE_SHARE * watts,
        peak_power_watts=watts,
        memory_idle_power_watts=IDLE_SHARE * memory_watts,
        memory_peak_power_watts=memory_watts,
        clock_hz=_clock_hz(sys, described, usable),
        flops_per_cycle_per_core=flops_per_cycle / threads,
        llc_bytes=_last_level_cache_bytes(sys, usable),
    )


def cores_allowed(cores: Sequence[int], *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """The whole cores' time that the control groups allow this process, of `cores`; at least one. A container that was
    given two cores' time (docker --cpus=2) may run on all of the machine's, and waits for most of each period there."""
    return max(1, math.floor(min(len(cores), control_group_limits(proc, sys / "fs" / "cgroup").cores)))


def with_power(server: ServerSpec, idle_watts: float, peak_watts: float) -> ServerSpec:
    """`server` with power that was stated instead of estimated; memory's part of it stays, as far as it fits.

    Raises `SpecError` where it is not power.
    """
    memory_idle_watts = min(server.memory_idle_power_watts, idle_watts)
    rise_watts = min(server.memory_peak_power_watts - server.memory_idle_power_watts, peak_watts - idle_watts)
    return replace(
        server,
        idle_power_watts=idle_watts,
        peak_power_watts=peak_watts,
        memory_idle_power_watts=memory_idle_watts,
        memory_peak_power_watts=memory_idle_watts + max(rise_watts, 0.0),
    )


def core_layout(cores: Sequence[int] | None = None, *, sys: Path = Path("/sys")) -> str:
    """How `cores`, by default those that the calling thread may run on, lie to each other: ``cores 2x2, sockets 1x4,
    last-level caches 2x2`` are two cores of two of their threads each, one socket with four, two caches with two each.

    The same on sets of cores that should be as fast; empty where the system does not tell all of it.
    """
    usable = tuple(cores) if cores is not None else available_cores()
    places = [(_siblings(sys, core), _socket(sys, core), _last_level_cache(sys, core)) for core in usable]
    if not places or not all(all(place) for place in places):
        return ""
    told = zip(("cores", "sockets", "last-level caches"), zip(*places, strict=True), strict=True)
    return ", ".join(f"{name} {_shares(of_cores)}" for name, of_cores in told)


def _shares(places: Sequence[str]) -> str:
    """How many places have how many of the cores: ``1x4 2x1``, those with most first."""
    by_size = Counter(Counter(places).values())
    return " ".join(f"{count}x{size}" for size, count in sorted(by_size.items(), reverse=True))


def _siblings(sys: Path, core: int) -> str:
    return _text(sys / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list").strip()


def _socket(sys: Path, core: int) -> str:
    return _text(sys / f"devices/system/cpu/cpu{core}/topology/physical_package_id").strip()


def _last_level_cache(sys: Path, core: int) -> str:
    """Whose it is."""
    found = []
    for place in (sys / f"devices/system/cpu/cpu{core}/cache").glob("index*"):
        level, shared = _text(place / "level").strip(), _text(place / "shared_cpu_list").strip()
        if level.isdecimal():
            found.append((int(level), shared))
    return max(found, default=(0, ""))[1]


def _processor(proc: Path) -> dict[str, str]:
    """The first core's lines of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").splitlines():
        if not line.strip() and fields:
            break
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _processor_name(described: Mapping[str, str]) -> str:
    """A name of characters that a server type's name may have, which tells models of one marketing name apart."""
    parts = [described.get("model name", "").partition("@")[0] or platform.machine() or "processor"]
    parts += [
        described[field] for field in ("cpu family", "model", "CPU implementer", "CPU part") if field in described
    ]
    plain = re.sub(r"\((R|TM)\)|\bCPU\b", " ", " ".join(parts), flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9.]+", "-", plain).strip("-.")[:90] or "processor"


def _memory_bytes(proc: Path) -> int:
    """What the kernel manages. Raises `SpecError`."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    if found is None:
        raise SpecError(f"{proc / 'meminfo'} does not tell how much memory this machine has")
    return 1024 * int(found[1])


def _clock_hz(sys: Path, described: Mapping[str, str], cores: Sequence[int]) -> float:
    for core in cores[:1]:
        told_khz = _text(sys / f"devices/system/cpu/cpu{core}/cpufreq/base_frequency").strip()
        if told_khz.isdecimal():
            return 1e3 * int(told_khz)
    if named := re.search(r"@\s*([\d.]+)\s*GHz", described.get("model name", "")):
        return 1e9 * float(named[1])
    try:
        return 1e6 * float(described.get("cpu MHz", "0"))
    except ValueError:
        return 0.0


def _threads_per_core(sys: Path, cores: Sequence[int]) -> int:
    """Hardware threads of the first core."""
    for core in cores[:1]:
        with contextlib.suppress(ValueError):  # it is not told
            siblings = listed_ranges(_siblings(sys, core))
            return max(1, sum(last - first + 1 for first, last in siblings))
    return 1


def _last_level_cache_bytes(sys: Path, cores: Sequence[int]) -> int:
    """Of all caches of the highest level that the cores have; 0 where it is not told."""
    sizes: dict[tuple[int, str], int] = {}
    for core in cores:
        for place in (sys / f"devices/system/cpu/cpu{core}/cache").glob("index*"):
            level, size = _text(place / "level").strip(), _text(place / "size").strip()
            if level.isdecimal() and (found := re.fullmatch(r"(\d+)([KMG]?)", size)):
                shared = _text(place / "shared_cpu_list").strip() or str(core)
                sizes[int(level), shared] = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
