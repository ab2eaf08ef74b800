"""What serving costs on top of the model: throughput at saturation, added latency, memory of a second worker.

The model is `dlrm-rmc1`, small. One worker has a core of its own; the front end and the client share the others, where
the client, which stands for another machine, waits until the server is done (`pinning.interrupt_nobody`). "In process"
is the same executor called in a loop on the worker's core, with no server in between. Servers and the loop in process
take turns, round by round, and figures are ratios of medians over the rounds. Over gRPC, a worker with one thread takes
its turn as well.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.machine.pinning import available_cores
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult, closed_loop
from hebe_lab.bench.serving.in_process import InProcessResult, in_process

DESCRIPTION = "Serving against the same worker in process: throughput at saturation, added latency, memory."

_MODEL, _SIZE = "dlrm-rmc1", "small"
_SATURATING_ITEMS = 256
_SMALL_QUERY_BYTES = 64 * 1024
_CONCURRENCY = 8
_ONE_THREAD = "one_thread"


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure all of it; needs two cores. Raises RuntimeError where there are fewer, and where queries fail."""
    rounds, seconds = (3, 2.0) if quick else (5, 3.0)
    repository = bench_repository(_MODEL, _SIZE, progress)
    if len(available_cores()) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the worker, one for front end and client")
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
        options = ["--workers", "1", "--no-admission", "--batch-size", str(_SATURATING_ITEMS)]
        with ServerProcess(repository, Path(directory) / "server.log", options) as server:
            urls = {"http": server.http_url, "grpc": f"grpc://{server.grpc_address}"}
            options += ["--worker-threads", "1"]
            with ServerProcess(repository, Path(directory) / "one_thread.log", options) as one_thread:
                also = {f"grpc.{_ONE_THREAD}": f"grpc://{one_thread.grpc_address}"}
                figures = _over_inprocess(urls | also, repository, rounds, seconds, progress)
            figures += _overhead(urls, repository, rounds, seconds, progress)
        figures.append(_rss(repository, Path(directory), progress))
    return figures


def _in_turns(
    urls: dict[str, str],
    repository: Path,
    items: int,
    concurrency: int,
    rounds: int,
    seconds: float,
    what: str,
    progress: Progress,
) -> tuple[list[InProcessResult], dict[str, list[ClosedLoopResult]]]:
    """The executor alone and the server over each protocol, one after the other, `rounds` times."""
    cores = available_cores()
    task = progress.add_task(what, total=rounds * (1 + len(urls)))
    alone: list[InProcessResult] = []
    served: dict[str, list[ClosedLoopResult]] = {protocol: [] for protocol in urls}
    for _ in range(rounds):
        alone.append(in_process(repository, _MODEL, items, seconds, cores[-1]))
        progress.advance(task)
        for protocol, url in urls.items():
            served[protocol].append(
                _checked(closed_loop(url, _MODEL, f"fixed:{items}", concurrency, seconds, cores[:-1]))
            )
            progress.advance(task)
    return alone, served


def _over_inprocess(
    urls: dict[str, str], repository: Path, rounds: int, seconds: float, progress: Progress
) -> list[Figure]:
    alone, served = _in_turns(
        urls, repository, _SATURATING_ITEMS, _CONCURRENCY, rounds, seconds, "throughput at saturation", progress
    )
    alone_qps = [result.throughput_qps for result in alone]
    value, low, high = median_and_spread(alone_qps)
    figures = [Figure("serve.inprocess_qps", value, "queries/s", low, high, rounds)]
    for protocol, results in served.items():
        throughputs = [result.throughput_qps for result in results]
        value, low, high = ratio_of_medians(throughputs, alone_qps)
        note = f"{np.median(throughputs):.1f} queries/s of {_SATURATING_ITEMS} items, concurrency {_CONCURRENCY}"
        name = f"serve.over_inprocess.{protocol}"
        target = None if protocol.endswith(_ONE_THREAD) else ">= 0.90"
        figures.append(Figure(name, value, "ratio", low, high, rounds, target=target, note=note))
    return figures


def _overhead(urls: dict[str, str], repository: Path, rounds: int, seconds: float, progress: Progress) -> list[Figure]:
    items = _items_of(repository, _SMALL_QUERY_BYTES)
    alone, served = _in_turns(urls, repository, items, 1, rounds, seconds / 2, "added latency", progress)
    alone_ms = np.array([result.p50_ms for result in alone])
    figures = []
    for protocol, results in served.items():
        served_ms = np.array([result.p50_ms for result in results])
        value, low, high = median_and_spread(served_ms - alone_ms)
        note = f"p50 {np.median(served_ms):.3f} ms served, {np.median(alone_ms):.3f} ms in process; {items} items"
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
    from hebe.models.repository.repository import ModelRepository

    spec = ModelRepository(repository).open(_MODEL).spec
    return max(round(size_bytes / (8 * spec.lookups_per_item + 4 * spec.dense_dim)), 1)
