from __future__ import annotations

import pytest

from hebe.machine.pinning import available_cores
from hebe.machine.this_server import CORE_WATTS, IDLE_SHARE, MEMORY_WATTS_PER_GB, core_layout, this_server, with_power
from hebe.spec import ServerSpec, SpecError

GIB = 1 << 30
XEON = {
    "processor": "0",
    "vendor_id": "GenuineIntel",
    "cpu family": "6",
    "model": "85",
    "model name": "Intel(R) Xeon(R) Gold 6138 CPU @ 2.00GHz",
    "cpu MHz": "2899.123",
    "flags": "fpu sse sse2 avx fma avx2 avx512f",
}


class Machine:
    """`/proc` and `/sys` of a machine of eight hardware threads, two a core, and two last-level caches."""

    def __init__(self, root):
        self.root, self.proc, self.sys = root, root / "proc", root / "sys"
        self.cpuinfo(XEON)
        self.write("proc/meminfo", f"MemFree: 5 kB\nMemTotal:       {(64 * GIB - 12345678) // 1024} kB\n")
        for core in range(8):
            pair, half = core // 2 * 2, "0-3" if core < 4 else "4-7"
            self.core(core, "topology/thread_siblings_list", f"{pair}-{pair + 1}")
            self.core(core, "topology/physical_package_id", "0")
            for index, (level, size, shared) in enumerate(
                [(1, "32K", f"{pair}-{pair + 1}"), (2, "1024K", f"{pair}-{pair + 1}"), (3, "16M", half)]
            ):
                for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                    self.core(core, f"cache/index{index}/{name}", value)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def core(self, core, path, value):
        self.write(f"sys/devices/system/cpu/cpu{core}/{path}", f"{value}\n")

    def cpuinfo(self, fields):
        one = "".join(f"{name}\t: {value}\n" for name, value in fields.items())
        self.write("proc/cpuinfo", f"{one}\nprocessor : 1\nmodel name : Another\n")

    def spec(self, cores=range(8)):
        return this_server(tuple(cores), proc=self.proc, sys=self.sys)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_what_the_system_tells(machine):
    spec = machine.spec()
    assert spec.name == "Intel-Xeon-Gold-6138-6-85-8-cores-64-GiB"
    assert (spec.cores, spec.clock_hz, spec.llc_bytes) == (8, 2.0e9, 32 << 20)
    assert 63 * GIB < spec.memory_bytes < 64 * GIB
    assert (spec.accelerator, spec.memory_bandwidth_bytes_per_s, spec.price_per_hour) == (None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("cores", "told"),
    [
        (range(8), "cores 4x2, sockets 1x8, last-level caches 2x4"),
        ((0, 1), "cores 1x2, sockets 1x2, last-level caches 1x2"),
        ((0, 2), "cores 2x1, sockets 1x2, last-level caches 1x2"),
        ((1, 3), "cores 2x1, sockets 1x2, last-level caches 1x2"),
        ((0, 4), "cores 2x1, sockets 1x2, last-level caches 2x1"),
        ((0, 1, 2), "cores 1x2 1x1, sockets 1x3, last-level caches 1x3"),
        ((0, 9), ""),
        ((), ""),
    ],
)
def test_how_cores_lie_to_each_other(machine, cores, told):
    assert core_layout(tuple(cores), sys=machine.sys) == told


def test_two_sockets_are_not_one(machine):
    for core in range(4, 8):
        machine.core(core, "topology/physical_package_id", "1")
    assert core_layout((0, 2), sys=machine.sys) == "cores 2x1, sockets 1x2, last-level caches 1x2"
    assert core_layout((0, 4), sys=machine.sys) == "cores 2x1, sockets 2x1, last-level caches 2x1"


def test_where_the_system_does_not_tell_it_nothing_is_said_of_the_cores(machine):
    (machine.sys / "devices/system/cpu/cpu2/topology/physical_package_id").unlink()
    assert core_layout((0, 2), sys=machine.sys) == ""
    assert core_layout(sys=machine.sys / "none") == ""


def test_what_is_estimated(machine):
    spec = machine.spec()
    assert spec.flops_per_cycle_per_core == 32.0, "64 a core, which two threads share"
    memory_watts = spec.memory_bytes / 1e9 * MEMORY_WATTS_PER_GB
    assert spec.peak_power_watts == pytest.approx(4 * CORE_WATTS + memory_watts)
    assert spec.idle_power_watts == pytest.approx(IDLE_SHARE * spec.peak_power_watts)
    assert spec.memory_peak_power_watts == pytest.approx(memory_watts)
    assert spec.memory_idle_power_watts == pytest.approx(IDLE_SHARE * memory_watts)


def test_cores_that_may_not_be_used_do_not_count(machine):
    spec = machine.spec(range(4, 6))
    assert (spec.cores, spec.llc_bytes) == (2, 16 << 20)
    assert spec.name.endswith("-2-cores-64-GiB")


def test_control_groups_are_respected(machine):
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", "350000 100000\n")
    machine.write("sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    spec = machine.spec()
    assert (spec.cores, spec.memory_bytes) == (3, 2 * GIB)
    assert spec.name.endswith("-3-cores-2-GiB")
    machine.write("sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert machine.spec().cores == 1


def test_the_name_is_the_same_though_the_kernel_keeps_more_memory(machine):
    name = machine.spec().name
    machine.write("proc/meminfo", f"MemTotal: {(64 * GIB - 700_000_000) // 1024} kB\n")
    machine.cpuinfo(XEON | {"cpu MHz": "1200.000"})
    assert machine.spec().name == name


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model name": "AMD EPYC 7763 64-Core Processor", "cpu family": "25", "model": "1"},
         "AMD-EPYC-7763-64-Core-Processor-25-1"),
        ({"model name": "Intel(R) Xeon(R) Processor", "cpu family": "6", "model": "143"}, "Intel-Xeon-Processor-6-143"),
        ({"model name": "()@ ~é"}, "processor"),
        ({"model name": "x" * 300}, "x" * 90),
    ],
)  # fmt: skip
def test_any_name_becomes_one_that_a_server_type_may_have(machine, fields, name):
    machine.cpuinfo(fields)
    assert machine.spec().name == f"{name}-8-cores-64-GiB"


def test_a_processor_without_a_name(machine, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    machine.cpuinfo({"CPU implementer": "0x41", "CPU part": "0xd0c", "Features": "fp asimd evtstrm"})
    spec = machine.spec()
    assert spec.name == "aarch64-0x41-0xd0c-8-cores-64-GiB"
    assert spec.flops_per_cycle_per_core == 8.0
    assert spec.clock_hz == 0.0


def test_the_base_clock_where_it_is_told(machine):
    machine.core(2, "cpufreq/base_frequency", 2_700_000)
    assert machine.spec().clock_hz == 2.0e9, "as the first core's name has it"
    assert machine.spec(range(2, 4)).clock_hz == 2.7e9
    machine.cpuinfo(XEON | {"model name": "Virtual"})
    assert machine.spec().clock_hz == 2899.123e6
    machine.cpuinfo(XEON | {"model name": "Virtual", "cpu MHz": "?"})
    assert machine.spec().clock_hz == 0.0


@pytest.mark.parametrize(
    ("flags", "flops"), [("sse2 avx fma avx512f", 64), ("sse2 avx fma", 32), ("sse2 avx", 16), ("sse2", 8), ("", 0)]
)
def test_floating_point_operations_by_instruction_set(machine, flags, flops):
    machine.cpuinfo(XEON | {"flags": flags})
    for core in range(8):
        machine.core(core, "topology/thread_siblings_list", core)
    assert machine.spec().flops_per_cycle_per_core == flops


@pytest.mark.parametrize(("listed", "threads"), [("0,4", 2), ("0-3", 4), ("0-1,8-9", 4), ("junk", 1), ("", 1)])
def test_threads_of_a_core(machine, listed, threads):
    machine.core(0, "topology/thread_siblings_list", listed)
    assert machine.spec().flops_per_cycle_per_core == 64 / threads


def test_memory_must_be_told(machine):
    machine.write("proc/meminfo", "MemFree: 1 kB\n")
    with pytest.raises(SpecError, match="meminfo does not tell how much memory"):
        machine.spec()


def test_this_machine():
    spec = this_server()
    assert 1 <= spec.cores <= len(available_cores())
    assert spec.memory_bytes > GIB // 4
    assert 0 < spec.idle_power_watts < spec.peak_power_watts
    assert this_server() == spec


@pytest.mark.parametrize(("idle_watts", "peak_watts"), [(40.0, 120.0), (0.0, 5.0), (60.0, 60.0)])
def test_stated_power_takes_the_place_of_the_estimate(idle_watts, peak_watts):
    estimated = ServerSpec(
        "t", 4, 1 << 30, idle_power_watts=20.0, peak_power_watts=100.0,
        memory_idle_power_watts=10.0, memory_peak_power_watts=50.0,
    )  # fmt: skip
    spec = with_power(estimated, idle_watts, peak_watts)
    assert (spec.idle_power_watts, spec.peak_power_watts) == (idle_watts, peak_watts)
    assert spec.memory_idle_power_watts == min(10.0, idle_watts)
    assert spec.memory_peak_power_watts - spec.memory_idle_power_watts == min(40.0, peak_watts - idle_watts)
    with pytest.raises(SpecError):
        with_power(estimated, 50.0, 40.0)
