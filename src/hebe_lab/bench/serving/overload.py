"""What is left of a server's useful work when twice as much is asked of it as it can do.

Production query sizes, Poisson arrivals; one worker on a core of its own, the front end and the load generator on the
others. Saturation is the closed-loop throughput without admission. Goodput is answers within the SLA target per
second; its peak is taken over a ladder of rates that goes as far as twice saturation too, where small queries are let
in that large ones are not, so that there may be more answers than there are at saturation. Then the rate stays there
for long. Beside answers, items are counted, of which such a server has fewer.

Beside that, callers who ask again at once when they are refused, of a server whose workers have every core, as by
default: receiving and refusing is done on the workers' cores then.

Two models: `mt-wnd`, whose queries are 50 KB and whose work is computing, shows the scheduler; `dlrm-rmc1`, whose
queries are 1.7 MB with 20 ms to answer them, shows in addition what receiving costs that is then refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.open_loop.open_loop import OUT_OF_TIME
from hebe.load_generator.search.qps_search import Workload
from hebe.load_generator.session import run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import available_cores, pinned
from hebe.machine.process_limits import keep_large_allocations
from hebe.report.figures import Figure
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult, closed_loop

DESCRIPTION = "Goodput, refusals and memory at twice the load that saturates the server."

_MODELS = {"": ("mt-wnd", 0.1), ".dlrm-rmc1": ("dlrm-rmc1", 1.0)}
"""By the suffix of the figures' names: model (of the catalog, small) and scale."""
_LADDER = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
_OVERLOAD = 2.0
_CALLERS = 4
"""As many as saturate the server."""
_RETRYING_CALLERS = 24
_SIZES_ALIKE = "lognormal"
"""Of sizes unlike each other small ones are let in that large ones are not, and answers do not compare."""


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure all of it; needs two cores. Raises RuntimeError where there are fewer, and where a run fails."""
    probe_s, overload_s = (3.0, 8.0) if quick else (12.0, 60.0)
    repositories = {
        suffix: bench_repository(name, "small", progress, scale) for suffix, (name, scale) in _MODELS.items()
    }
    cores = available_cores()
    if len(cores) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the worker, one for front end and load generator")
    keep_large_allocations()
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
        return [
            figure
            for suffix, repository in repositories.items()
            for figure in (
                *_measure(suffix, repository, Path(directory), cores[:-1], probe_s, overload_s, progress),
                _measure_retrying(suffix, repository, Path(directory), cores, probe_s, progress),
            )
        ]


def _measure(
    suffix: str,
    repository: Path,
    directory: Path,
    client_cores: tuple[int, ...],
    probe_s: float,
    overload_s: float,
    progress: Progress,
) -> list[Figure]:
    model = _MODELS[suffix][0]
    task = progress.add_task(f"overload of {model}", total=len(_LADDER) + 2)
    with ServerProcess(repository, directory / "saturation.log", ["--workers", "1", "--no-admission"]) as server:
        closed = closed_loop(server.http_url, model, "production", _CALLERS, probe_s, client_cores)
        saturation_qps = closed.throughput_qps
        server.check()
    progress.advance(task)
    reports: dict[float, LoadReport] = {}
    # Only once the server runs: it would inherit the cores, and its worker share them with the generator.
    with ServerProcess(repository, directory / "overload.log", ["--workers", "1"]) as server, pinned(client_cores):
        target = Target(parse_endpoint(server.http_url), model)
        for share in _LADDER:
            reports[share] = run_load(target, Workload(seed=1), share * saturation_qps, probe_s)
            server.check()
            progress.advance(task)
        resident_before = server.resident_bytes
        beyond = run_load(target, Workload(seed=2), _OVERLOAD * saturation_qps, overload_s)
        resident_after = server.resident_bytes
        progress.advance(task)
    return figures_of(suffix, saturation_qps, reports, beyond, resident_before, resident_after)


def _measure_retrying(
    suffix: str, repository: Path, directory: Path, cores: tuple[int, ...], probe_s: float, progress: Progress
) -> Figure:
    model = _MODELS[suffix][0]
    task = progress.add_task(f"callers of {model} who ask again at once", total=2)
    runs: list[ClosedLoopResult] = []
    for callers, options in ((_CALLERS, ["--no-admission"]), (_RETRYING_CALLERS, [])):
        with ServerProcess(repository, directory / "retrying.log", options) as server:
            runs.append(closed_loop(server.http_url, model, _SIZES_ALIKE, callers, probe_s, cores))
            server.check()
        progress.advance(task)
    saturated, retrying = runs
    return retrying_figure(suffix, saturated, retrying, probe_s)


def retrying_figure(suffix: str, saturated: ClosedLoopResult, retrying: ClosedLoopResult, probe_s: float) -> Figure:
    """From a closed loop that nobody is refused in, and one of so many callers that most are, each of `probe_s`."""
    return Figure(
        f"overload.retrying{suffix}",
        retrying.throughput_qps / saturated.throughput_qps,
        "ratio",
        target=">= 0.8",
        note=f"answers of {_RETRYING_CALLERS} callers, {retrying.throughput_qps:.1f} a second beside "
        f"{retrying.refused / probe_s:.0f} refusals, over those of {_CALLERS} without admission, "
        f"{saturated.throughput_qps:.1f}",
    )


def figures_of(
    suffix: str,
    saturation_qps: float,
    reports: Mapping[float, LoadReport],
    beyond: LoadReport,
    resident_before: int,
    resident_after: int,
) -> list[Figure]:
    """From the runs of the ladder, by their share of saturation, and the long one beyond it; resident sizes in bytes.

    All runs have been held to an SLA. Raises RuntimeError if no run of the ladder had an answer within it.
    """
    peak_share = max(reports, key=lambda share: _goodput_qps(reports[share]))
    items_share = max(reports, key=lambda share: reports[share].goodput_items)
    peak_qps, goodput_qps = _goodput_qps(reports[peak_share]), _goodput_qps(beyond)
    peak_items, goodput_items = reports[items_share].goodput_items, beyond.goodput_items
    sla = beyond.sla
    assert sla is not None
    if not peak_qps:
        raise RuntimeError(f"no query was answered within {sla.latency_ms:g} ms at any rate: is the machine idle?")
    refused = sum(count for kind, count in beyond.latencies.refused.items() if kind not in OUT_OF_TIME)
    admitted = beyond.latencies.arrivals - refused
    share_refused = f"{refused} of {beyond.latencies.arrivals} refused in {beyond.duration_s:g} s"
    bottleneck = f"; the generator was a bottleneck: {'; '.join(beyond.bottlenecks)}" if beyond.bottlenecks else ""
    return [
        Figure(f"overload.saturation_qps{suffix}", saturation_qps, "queries/s", note="closed loop, no admission"),
        Figure(
            f"overload.goodput{suffix}",
            goodput_qps / peak_qps,
            "ratio",
            target=">= 0.9",
            note=f"{goodput_qps:.1f} of {peak_qps:.1f} answers/s within {sla.latency_ms:g} ms (peak at "
            f"{peak_share:g} x saturation); {share_refused}{bottleneck}",
        ),
        Figure(
            f"overload.goodput_items{suffix}",
            goodput_items / peak_items,
            "ratio",
            note=f"{goodput_items:,.0f} of {peak_items:,.0f} items/s within {sla.latency_ms:g} ms (peak at "
            f"{items_share:g} x saturation)",
        ),
        Figure(
            f"overload.attainment_of_admitted{suffix}",
            goodput_qps * beyond.duration_s / max(admitted, 1),
            "ratio",
            target=f">= {sla.percentile / 100:g}",
            note=f"share of the {admitted} queries not refused that were answered within the SLA target",
        ),
        Figure(
            f"overload.refusal_p99_ms{suffix}",
            beyond.refusals.percentile_s(99) * 1e3,
            "ms",
            target="< 5",
            note=f"p50 {beyond.refusals.percentile_s(50) * 1e3:.2f} ms, from the scheduled send of the whole query",
        ),
        Figure(
            f"overload.memory_growth{suffix}",
            resident_after / resident_before,
            "ratio",
            target="<= 1.05",
            note=f"{resident_before / 2**20:.0f} MiB before, {resident_after / 2**20:.0f} MiB after",
        ),
    ]


def _goodput_qps(report: LoadReport) -> float:
    """Answers within the SLA target per second of the measured window."""
    return report.latencies.sla_attainment * report.latencies.arrivals / report.duration_s
