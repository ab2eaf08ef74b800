"""What serving costs on top of the model: throughput at saturation, added latency, memory of a second worker.

The model is `dlrm-rmc1`, small. One worker has a core of its own; the front end and the client share the others. "In
process" is the same executor called in a loop on the worker's core, with no server in between. Servers and the loop
in process take turns, round by round, and figures are ratios of medians over the rounds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from rich.progress import Progress

from hebe.bench.bench_model import bench_repository
from hebe.bench.closed_loop import ClosedLoopResult, closed_loop
from hebe.bench.in_process import in_process
from hebe.bench.server_process import ServerProcess
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.runtime.pinning import available_cores

DESCRIPTION = "Serving against the same worker in process: throughput at saturation, added latency, memory."

_MODEL, _SIZE = "dlrm-rmc1", "small"
_SATURATING_ITEMS = 256
_SMALL_QUERY_BYTES = 64 * 1024
_CONCURRENCY = 8


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure all of it; needs two cores."""
    rounds, seconds = (3, 2.0) if quick else (5, 3.0)
    repository = bench_repository(_MODEL, _SIZE, progress)
    cores = available_cores()
    if len(cores) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the worker, one for front end and client")
    worker_core, other_cores = cores[-1], cores[:-1]
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
        options = ["--workers", "1", "--no-admission", "--batch-size", str(_SATURATING_ITEMS)]
        with ServerProcess(repository, Path(directory) / "server.log", options) as server:
            urls = {"http": server.http_url, "grpc": f"grpc://{server.grpc_address}"}
            figures = _over_inprocess(urls, repository, worker_core, other_cores, rounds, seconds, progress)
            figures += _overhead(urls, repository, worker_core, other_cores, rounds, seconds, progress)
        figures.append(_rss(repository, Path(directory), progress))
    return figures


def _over_inprocess(
    urls: dict[str, str],
    repository: Path,
    worker_core: int,
    other_cores: tuple[int, ...],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[Figure]:
    alone, served = [], {protocol: [] for protocol in urls}  # type: ignore[var-annotated]
    task = progress.add_task("throughput at saturation", total=rounds * 3)
    for _ in range(rounds):
        alone.append(in_process(repository, _MODEL, _SATURATING_ITEMS, seconds, worker_core).throughput_qps)
        progress.advance(task)
        for protocol, url in urls.items():
            result = _checked(
                closed_loop(url, _MODEL, f"fixed:{_SATURATING_ITEMS}", _CONCURRENCY, seconds, other_cores)
            )
            served[protocol].append(result.throughput_qps)
            progress.advance(task)
    figures = []
    value, low, high = median_and_spread(alone)
    figures.append(Figure("serve.inprocess_qps", value, "queries/s", low, high, rounds))
    for protocol, throughputs in served.items():
        value, low, high = ratio_of_medians(throughputs, alone)
        note = f"{np.median(throughputs):.1f} queries/s of {_SATURATING_ITEMS} items, concurrency {_CONCURRENCY}"
        name = f"serve.over_inprocess.{protocol}"
        figures.append(Figure(name, value, "ratio", low, high, rounds, target=">= 0.90", note=note))
    return figures


def _overhead(
    urls: dict[str, str],
    repository: Path,
    worker_core: int,
    other_cores: tuple[int, ...],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[Figure]:
    items = _items_of(repository, _SMALL_QUERY_BYTES)
    seconds = seconds / 2
    alone, served = [], {protocol: [] for protocol in urls}  # type: ignore[var-annotated]
    task = progress.add_task("added latency", total=rounds * 3)
    for _ in range(rounds):
        alone.append(in_process(repository, _MODEL, items, seconds, worker_core).p50_ms)
        progress.advance(task)
        for protocol, url in urls.items():
            served[protocol].append(
                _checked(closed_loop(url, _MODEL, f"fixed:{items}", 1, seconds, other_cores)).p50_ms
            )
            progress.advance(task)
    figures = []
    for protocol, latencies in served.items():
        value, low, high = median_and_spread(np.asarray(latencies) - np.asarray(alone))
        note = f"p50 {np.median(latencies):.3f} ms served, {np.median(alone):.3f} ms in process; {items} items"
        name = f"serve.overhead_p50_ms.{protocol}"
        figures.append(Figure(name, value, "ms", low, high, rounds, target="< 1", note=note))
    return figures


def _rss(repository: Path, directory: Path, progress: Progress) -> Figure:
    task = progress.add_task("memory of two workers", total=2)
    resident = []
    for workers in (1, 2):
        options = ["--workers", str(workers)]
        with ServerProcess(repository, directory / f"rss{workers}.log", options) as server:
            closed_loop(server.http_url, _MODEL, f"fixed:{_SATURATING_ITEMS}", 4, 1.0)
            resident.append(server.resident_bytes)
        progress.advance(task)
    note = f"{resident[1] / 2**20:.0f} MiB with two workers, {resident[0] / 2**20:.0f} MiB with one"
    return Figure("serve.rss_two_workers", resident[1] / resident[0], "ratio", target="<= 1.1", note=note)


def _checked(result: ClosedLoopResult) -> ClosedLoopResult:
    if result.refused or result.failed:
        raise RuntimeError(f"{result.refused} queries were refused and {result.failed} failed: no figure from that")
    return result


def _items_of(repository: Path, size_bytes: int) -> int:
    from hebe.models.repository import ModelRepository

    spec = ModelRepository(repository).open(_MODEL).spec
    return max(round(size_bytes / (8 * spec.lookups_per_item + 4 * spec.dense_dim)), 1)
