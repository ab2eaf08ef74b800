"""Server types of the papers and of EC2, as data sheets and papers state them; what is derived or assumed says so.

Floating-point rates: 32 FLOPs a cycle and core, that of AVX2 and of one AVX-512 unit, for the Xeons of Hercules and
Hera. Hercules' second one has two such units, but with 64 it would do more MT-WnD per watt than the first one, against
the paper (VI-B). EC2's Xeons Platinum have 64: two units.
Memory bandwidth: channels x transfer rate x 8 bytes. Idle power: `IDLE_SHARE` of the peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hebe.spec import AcceleratorSpec, ServerSpec

GB = 10**9
GIB = 2**30
MB = 10**6

IDLE_SHARE = 0.23
"""Active idle over full load: mean of four SPECpower_ssj2008 results of Skylake Xeons, 0.15 to 0.33 (2 x Gold 6140,
2 x 6136, 1 x 6238R, 2 x 6152)."""

PCIE3_X16_BYTES_PER_S = 11.7e9
"""Host to device, pinned memory, bandwidthTest on a P100: 11.69 GB/s of PCIe 3.0 x16's 15.75 (microway.com)."""

_LAUNCH_S = 5e-6
"""A kernel launch. Usual for CUDA; the framework's own op comes on top (`Calibration.op_overhead_s`)."""

P100 = AcceleratorSpec(
    "P100",
    peak_flops_per_s=10.6e12,  # NVIDIA, SXM2, boost 1,480 MHz as in Hercules Table II
    memory_bytes=16 * GB,
    memory_bandwidth_bytes_per_s=732e9,
    pcie_bandwidth_bytes_per_s=PCIE3_X16_BYTES_PER_S,
    compute_units=56,
    launch_overhead_s=_LAUNCH_S,
    idle_power_watts=45.0,  # not found; the V100's
    peak_power_watts=300.0,
)
V100 = AcceleratorSpec(
    "V100",
    peak_flops_per_s=15.7e12,  # NVIDIA, SXM2, boost 1,530 MHz as in Hercules Table II
    memory_bytes=16 * GB,
    memory_bandwidth_bytes_per_s=900e9,
    pcie_bandwidth_bytes_per_s=PCIE3_X16_BYTES_PER_S,
    compute_units=80,
    launch_overhead_s=_LAUNCH_S,
    idle_power_watts=45.0,  # measured with a context loaded (github.com/sasha0552/nvidia-pstated, issue 6)
    peak_power_watts=300.0,
)
T4 = AcceleratorSpec(
    "T4",
    peak_flops_per_s=8.1e12,
    memory_bytes=16 * GB,
    memory_bandwidth_bytes_per_s=320e9,
    pcie_bandwidth_bytes_per_s=PCIE3_X16_BYTES_PER_S,
    compute_units=40,
    launch_overhead_s=_LAUNCH_S,
    idle_power_watts=8.1,  # cloud-carbon-footprint, g4dn.xlarge
    peak_power_watts=71.3,
)


def _hercules(
    name: str,
    *,
    second: bool = True,
    memory_gb: int,
    memory_watts: float,
    ranks: int = 0,
    accelerator: AcceleratorSpec | None = None,
) -> ServerSpec:
    """A type of Hercules' Table II: its first or its second CPU, and memory of so many watts (both thermal design)."""
    cpu_watts = 125.0 if second else 86.0
    return ServerSpec(
        name,
        cores=20 if second else 18,
        memory_bytes=memory_gb * GB,
        # 4 channels each; DDR4-2666 (Xeon Gold 6138) and DDR4-2400 (Xeon D-2191: not stated, the family's usual)
        memory_bandwidth_bytes_per_s=85.3e9 if second else 76.8e9,
        idle_power_watts=IDLE_SHARE * (cpu_watts + memory_watts),
        peak_power_watts=cpu_watts + memory_watts,
        clock_hz=2.0e9 if second else 1.6e9,
        flops_per_cycle_per_core=32.0,
        llc_bytes=27_500_000 if second else 24_750_000,
        near_memory_ranks=ranks,
        memory_idle_power_watts=IDLE_SHARE * memory_watts,
        memory_peak_power_watts=memory_watts,
        accelerator=accelerator,
    )


T1 = _hercules("T1", second=False, memory_gb=64, memory_watts=28.0)
T2 = _hercules("T2", memory_gb=128, memory_watts=50.0)
T3 = _hercules("T3", memory_gb=128, memory_watts=50.0, ranks=2)
T4_NMP = _hercules("T4", memory_gb=256, memory_watts=100.0, ranks=4)
T5 = _hercules("T5", memory_gb=512, memory_watts=200.0, ranks=8)  # 200 W: 50 and 100 W continued, the table is cut

HERCULES: Mapping[str, ServerSpec] = MappingProxyType(
    {
        server.name: server
        for server in (
            T1,
            T2,
            T3,
            T4_NMP,
            T5,
            replace(T2, name="T6", accelerator=P100),
            replace(T2, name="T7", accelerator=V100),
            replace(T3, name="T8", accelerator=V100),
            replace(T4_NMP, name="T9", accelerator=V100),
            replace(T5, name="T10", accelerator=V100),
        )
    }
)
"""Hercules (Ke et al., HPCA 2022), Table II: ten types out of two CPUs, plain and near-memory DIMMs, two GPUs."""

HERCULES_AVAILABLE: Mapping[str, int] = MappingProxyType(
    {"T1": 100, "T2": 100, "T3": 15, "T4": 10, "T5": 5, "T6": 10, "T7": 5, "T8": 6, "T9": 4, "T10": 2}
)
"""How many of each there are, Table II and section VI-C."""

HERA_SOCKET = ServerSpec(
    "hera-socket",
    cores=16,
    memory_bytes=192 * GB,
    memory_bandwidth_bytes_per_s=128e9,
    idle_power_watts=IDLE_SHARE * 225.0,
    peak_power_watts=225.0,  # 150 W (Intel ARK) and six DIMMs of 12.5 W, Hercules' figure
    clock_hz=2.8e9,
    flops_per_cycle_per_core=32.0,
    llc_bytes=22 * MB,
    memory_idle_power_watts=IDLE_SHARE * 75.0,
    memory_peak_power_watts=75.0,
)
"""Hera (Choi et al.), Table II: one socket of its node of two Xeon Gold 6242; models do not span sockets."""


def _ec2(
    name: str,
    vcpus: int,
    memory_gib: int,
    socket_gb_per_s: float,
    clock_ghz: float,
    llc_mb: float,
    watts: tuple[float, float],
    price_per_hour: float,
    accelerator: AcceleratorSpec | None = None,
) -> ServerSpec:
    return ServerSpec(
        name,
        cores=vcpus // 2,  # a vCPU is a hyper-thread
        memory_bytes=memory_gib * GIB,
        memory_bandwidth_bytes_per_s=socket_gb_per_s * GB,
        idle_power_watts=watts[0],
        peak_power_watts=watts[1],
        price_per_hour=price_per_hour,
        clock_hz=clock_ghz * 1e9,
        flops_per_cycle_per_core=64.0,  # two AVX-512 units
        llc_bytes=round(llc_mb * MB),
        accelerator=accelerator,
    )


EC2: Mapping[str, ServerSpec] = MappingProxyType(
    {
        server.name: server
        for server in (
            _ec2("g4dn.xlarge", 4, 16, 140.8, 2.5, 1.5, (8.3, 32.7), 0.526, T4),
            _ec2("c5n.2xlarge", 8, 21, 128.0, 3.0, 5.5, (20.4, 76.3), 0.432),
            _ec2("r5n.large", 2, 16, 140.8, 2.5, 0.75, (5.4, 21.7), 0.149),
            _ec2("t3.xlarge", 4, 16, 128.0, 2.5, 2.75, (8.8, 39.9), 0.1664),
        )
    }
)
"""Kairos' instance types (Li et al., HPDC 2023), at the prices of its artifact.

Cores are whole ones, half as many as vCPUs: two hyper-threads share a core's units. Kairos' measurements agree with
that and with 64 FLOPs a cycle: one query takes r5n.large's only core to 133 GFLOP/s (Wide&Deep), more than 32 FLOPs a
cycle would allow at any clock it has. Memory bandwidth is the socket's, which nothing divides: r5n.large gathers rows
at 6.1 GB/s where its share by vCPUs is 5.9 at the very peak. The last-level cache is the share by vCPUs, since
neighbours fill the rest. t3.xlarge is as it bursts; all day long it has 0.4 of that. Power: cloud-carbon-footprint's
estimates.
"""
