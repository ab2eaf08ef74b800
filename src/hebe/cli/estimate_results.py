"""What `hebe estimate` shows: each pair's throughput, power and configuration; the built-in server types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hebe.capacity.server_estimates import EstimateMade
from hebe.report.configuration_words import configuration_words
from hebe.report.fitting_table import Column, FittingTable
from hebe.report.tables import format_number
from hebe.spec import ServerSpec

NOTE = (
    "Estimated from data sheets, not measured: service times were off by a factor of 1.6 typically, and of up to 3.3, "
    "where they could be compared (hebe study analytic-error)."
)
_MANY_CORES = 32
_ALIKE = 0.99


def estimate_tables(made: Sequence[EstimateMade]) -> Iterator[RenderableType]:
    """The pairs; then how far off such figures are."""
    table = FittingTable(
        "model",
        "server",
        Column("queries/s", right=True),
        Column("W", right=True, spare=1),
        Column("queries/s per W", right=True, spare=2),
        Column("best configuration", folds=True),
    )
    for one in made:
        told = one.efficiency
        words = configuration_words(one.estimate.lanes) if told.qps > 0 else f"cannot serve it: {one.estimate.reason}"
        served = told.qps > 0
        table.add_row(
            one.case.model.name,
            one.case.server.name,
            format_number(told.qps),
            format_number(told.power_watts) if served else "",
            format_number(told.qps / told.power_watts) if served else "",
            words if served else Text(words, style="yellow"),
        )
    yield table
    yield Text()
    for note in _notes(made):
        yield Text(note, style="dim")


def _notes(made: Sequence[EstimateMade]) -> Iterator[str]:
    yield NOTE
    for one in made:
        told, times = one.efficiency, one.estimate.times
        pair = f"{one.case.model.name} on {one.case.server.name}"
        if told.qps > 0 and times is None:
            yield f"{pair}: no service times: where a query's time is one number by its size, it keeps no SLA target."
        elif times is not None and times.qps < _ALIKE * told.qps:
            yield (
                f"{pair}: service times are those of {configuration_words([times.lane])}: "
                f"{format_number(times.qps)} queries/s. In the best configuration a query's time is not one number by "
                "its size. To plan and simulate alike: --strategy one-stage."
            )
    for server in {one.case.server.name: one.case.server for one in made}.values():
        if server.cores > _MANY_CORES:
            yield (
                f"{server.name}: each worker is taken to slow the others by 5%, as measured and published for 2 to 8 "
                f"of them: with {server.cores} cores that is likely too much."
            )
    unshared = {one.case.server.name: one.estimate.not_shared for one in made if not one.estimate.reason}
    for name, why in unshared.items():
        if why:
            yield f"{name}: no scalability: {why}."


def summary(made: Sequence[EstimateMade]) -> dict[str, Any]:
    """Everything, for `--json`."""
    return {
        "estimates": [
            {
                **one.efficiency.to_dict(),
                "sla_ms": one.case.sla.latency_ms,
                "percentile": one.case.sla.percentile,
                "reason": one.estimate.reason,
                "service_times": None
                if one.estimate.times is None
                else {
                    "configuration": asdict(one.estimate.times.lane),
                    "qps": one.estimate.times.qps,
                    "workers": one.estimate.times.workers,
                    **one.estimate.times.service.to_dict(),
                },
                "scalability": None if one.estimate.shared is None else one.estimate.shared.scalability.to_dict(),
                "no_scalability": one.estimate.not_shared,
            }
            for one in made
        ],
        "note": NOTE,
    }


def server_types_table(servers: Iterable[ServerSpec]) -> FittingTable:
    """What the types state."""
    table = FittingTable(
        "type",
        Column("cores", right=True),
        Column("GHz", right=True, spare=3),
        Column("FLOPs/cycle", right=True, spare=5),
        Column("memory (GB)", right=True),
        Column("GB/s", right=True),
        Column("LLC (MB)", right=True, spare=4),
        Column("near-memory ranks", right=True, spare=2),
        "accelerator",
        Column("idle W", right=True, spare=6),
        Column("peak W", right=True),
        Column("per hour", right=True, spare=1),
    )
    for server in servers:
        gpu = server.accelerator
        idle, peak = server.idle_power_watts, server.peak_power_watts
        if gpu is not None:
            idle, peak = idle + gpu.idle_power_watts, peak + gpu.peak_power_watts
        table.add_row(
            server.name,
            str(server.cores),
            f"{server.clock_hz / 1e9:g}",
            f"{server.flops_per_cycle_per_core:g}",
            f"{server.memory_bytes / 1e9:.0f}",
            f"{server.memory_bandwidth_bytes_per_s / 1e9:.3g}",
            f"{server.llc_bytes / 1e6:.3g}",
            str(server.near_memory_ranks or ""),
            gpu.name if gpu is not None else "",
            format_number(idle),
            format_number(peak),
            f"{server.price_per_hour:g}" if server.price_per_hour else "",
        )
    return table
