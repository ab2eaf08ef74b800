"""What `hebe estimate` shows: each pair's throughput, power and configuration; the built-in server types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hebe.capacity.server_estimates import EstimateMade
from hebe.report.configuration_words import configuration_words
from hebe.report.document import Cell, Document, Table, Text, Tone
from hebe.report.tables import Column, format_number
from hebe.spec import ServerSpec

NOTE = (
    "Estimated from data sheets, not measured: service times were off by a factor of 1.6 typically, and of up to 3.3, "
    "where they could be compared (hebe study analytic-error)."
)
_MANY_CORES = 32
_ALIKE = 0.99


def document(made: Sequence[EstimateMade]) -> Document:
    """The pairs; then how far off such figures are."""
    rows: list[list[Cell]] = []
    for one in made:
        told = one.efficiency
        pair = one.case.model.name, one.case.server.name
        if told.qps > 0:
            best = configuration_words(one.estimate.lanes)
            rows.append([*pair, told.qps, told.power_watts, told.qps / told.power_watts, best])
        else:
            rows.append([*pair, told.qps, None, None, Text(f"cannot serve it: {one.estimate.reason}", Tone.WARNING)])
    columns: list[Column | str] = [
        "model", "server", "queries/s", Column("W", right=True, spare=1),
        Column("queries/s per W", right=True, spare=2), "best configuration",
    ]  # fmt: skip
    texts = [Text(note, Tone.QUIET) for note in _notes(made)]
    return Document("Estimates", [Table("", columns, rows), *texts], data=_data(made))


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


def _data(made: Sequence[EstimateMade]) -> dict[str, Any]:
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


def server_types(servers: Iterable[ServerSpec]) -> Document:
    """What the types state."""
    known = list(servers)
    rows: list[list[Cell]] = []
    for server in known:
        gpu = server.accelerator
        idle, peak = server.idle_power_watts, server.peak_power_watts
        if gpu is not None:
            idle, peak = idle + gpu.idle_power_watts, peak + gpu.peak_power_watts
        rows.append(
            [
                server.name,
                str(server.cores),
                f"{server.clock_hz / 1e9:g}",
                f"{server.flops_per_cycle_per_core:g}",
                f"{server.memory_bytes / 1e9:.0f}",
                f"{server.memory_bandwidth_bytes_per_s / 1e9:.3g}",
                f"{server.llc_bytes / 1e6:.3g}",
                str(server.near_memory_ranks or ""),
                gpu.name if gpu is not None else "",
                idle,
                peak,
                f"{server.price_per_hour:g}" if server.price_per_hour else "",
            ]
        )
    columns: list[Column | str] = [
        "type", "cores", Column("GHz", right=True, spare=3), Column("FLOPs/cycle", right=True, spare=5), "memory (GB)",
        "GB/s", Column("LLC (MB)", right=True, spare=4), Column("near-memory ranks", right=True, spare=2),
        "accelerator", Column("idle W", right=True, spare=6), "peak W", Column("per hour", right=True, spare=1),
    ]  # fmt: skip
    return Document("Server types", [Table("", columns, rows)], data={"server_types": known})
