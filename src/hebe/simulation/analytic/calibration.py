"""The constants of the analytic servers, each with where it comes from; docs/analytic-servers.md tells what they miss.

Set once, from this project's own measurements, from data sheets, and from single ratios that Hercules states for one
server; never from what a cluster saves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """What hardware and framework reach, as shares of what a `ServerSpec` states, and what each step costs."""

    core_gather_bytes_per_s: float = 5.2e9
    """One core gathering random rows. docs/figures/sparse.json: sparse.gather_bandwidth.pooled80, and the plain C++
    loop beside it: it is what a core's outstanding misses over the memory's latency allow."""

    core_cache_bytes_per_s: float = 3.0e10
    """One core moving what lies in its caches. Measured: torch.relu over 1M to 4M floats, 28 GB/s."""

    random_access_share: float = 0.7
    """Share of the memory's peak bandwidth that random rows of two and more cache lines reach. Assumed."""

    matrix_peak_share: float = 0.7
    matrix_half_rows: float = 20.0
    """A core's matrix products reach `matrix_peak_share` of its peak, half of that at `matrix_half_rows` rows.
    Measured: torch linear layers of 64 to 1024 columns on one core, half of the plateau at 16 to 24 rows; the plateau
    is 0.7 to 1.0 of the base clock's peak."""

    op_overhead_s: float = 5e-6
    """One op on a host, however small its batch. Measured: torch linear 64 x 64 of one row, 4 to 5 us."""

    co_residence: float = 0.05
    """Each further worker on a host slows all of them by this share. Measured: two scripted threads at 0.93 of twice
    one thread, two compiled ones at 0.97 (docs/figures/execution.json), so 0.03 to 0.08. Published: eight co-located
    copies of three DLRMs slow down 1.3 to 2.6 times (Gupta et al., HPCA 2020), so 0.04 to 0.2."""

    table_per_op: bool = True
    """Whether every table is an op of its own (Caffe2), or all are looked up in one op (Hebe)."""

    weights_per_worker: bool = True
    """Whether every worker has weights of its own in the cache (Caffe2's workspaces), or all share them (Hebe)."""

    accelerator_matrix_share: float = 0.6
    accelerator_outputs_per_unit: float = 2048.0
    """Matrix products reach `accelerator_matrix_share` of the accelerator's peak, half of that when each compute unit
    (SM) has `accelerator_outputs_per_unit` outputs to compute: one for each thread that it can hold."""

    accelerator_access_share: float = 0.7
    """Share of an accelerator's memory bandwidth that gathered rows and element-wise steps reach. Assumed."""

    copy_overhead_s: float = 5e-5
    """One copy of a tensor to an accelerator, however small. Fitted to Hercules' Figure 6: what co-location and fusion
    gain for three models on a V100."""


CAFFE2 = Calibration()
"""The framework in which the papers measured: an op for each table, weights for each worker."""

HEBE = Calibration(table_per_op=False, weights_per_worker=False)
"""This server."""
