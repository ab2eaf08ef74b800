"""Whether the load generator is faster than what it measures.

The generator runs on one core against an echo server on another. Its rate is the highest that it sustains: every
query answered, throughput within 3% of the arrivals, and no complaint of its own about lag or CPU. The rate of the
server is that of one worker at saturation, with the same queries: `dlrm-rmc1`, small, production query sizes. Over gRPC
a query is cut into a hundred frames of 16 KiB, which is what most servers take.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.load_generator.search.qps_search import Workload
from hebe.load_generator.session import run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import available_cores, pinned
from hebe.machine.process_limits import keep_large_allocations
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.workload.query_sizes import FixedSizes, ProductionSizes, QuerySizes
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.bench.serving.closed_loop import closed_loop

DESCRIPTION = "The load generator against an echo: how many times the server's rate it sustains."

_MODEL, _SIZE = "dlrm-rmc1", "small"
_FEATURES, _LOOKUPS, _DENSE = 10, 80, 128
_SMALL_QUERY_ITEMS = 9
"""64 KiB of these inputs."""

_WANTED = 5
_TRIES = 2
_SUSTAINED_SHARE = 0.97
_ANSWER_TIMEOUT_S = 3.0


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure over HTTP and gRPC; needs two cores. Raises RuntimeError where there are fewer, and where a run fails."""
    rounds, seconds, step = (1, 1.0, 1.5) if quick else (3, 3.0, 1.25)
    cores = available_cores()
    if len(cores) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the generator, one for the echo server")
    keep_large_allocations()
    served = _served_qps(bench_repository(_MODEL, _SIZE, progress), cores, rounds, seconds, progress)
    needed_qps = _WANTED * median_and_spread(served)[0]
    task = progress.add_task("sending to an echo", total=3 * rounds)
    rates: dict[str, list[float]] = {"http": [], "grpc": [], "64kib": []}
    with _echo(cores[-1]) as urls, pinned(cores[:1]):
        for _ in range(rounds):
            rates["http"].append(_sustained_qps(urls["http"], ProductionSizes(), needed_qps, seconds, step))
            progress.advance(task)
            rates["grpc"].append(_sustained_qps(urls["grpc"], ProductionSizes(), needed_qps, seconds, step))
            progress.advance(task)
            rates["64kib"].append(
                _sustained_qps(urls["http"], FixedSizes(_SMALL_QUERY_ITEMS), 10 * needed_qps, seconds, step)
            )
            progress.advance(task)
    figures = []
    value, low, high = median_and_spread(served)
    figures.append(Figure("load.server_qps", value, "queries/s", low, high, rounds, note="one worker at saturation"))
    for protocol, name in (("http", "load.generator_headroom"), ("grpc", "load.generator_headroom.grpc")):
        value, low, high = ratio_of_medians(rates[protocol], served)
        sustained = median_and_spread(rates[protocol])[0]
        note = f"{sustained:.0f} queries/s of production sizes (1.6 MB on average) from one core"
        figures.append(Figure(name, value, "ratio", low, high, rounds, target=f">= {_WANTED}", note=note))
    value, low, high = median_and_spread(rates["64kib"])
    figures.append(Figure("load.generator_qps.64kib", value, "queries/s", low, high, rounds, note="one core, HTTP"))
    return figures


def _served_qps(
    repository: Path, cores: tuple[int, ...], rounds: int, seconds: float, progress: Progress
) -> list[float]:
    """What one worker on the last core answers, client and front end on the others."""
    task = progress.add_task("one worker at saturation", total=rounds)
    rates = []
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
        with ServerProcess(repository, Path(directory) / "server.log", ["--workers", "1", "--no-admission"]) as server:
            for _ in range(rounds):
                rates.append(closed_loop(server.http_url, _MODEL, "production", 4, seconds, cores[:-1]).throughput_qps)
                server.check()
                progress.advance(task)
    return rates


def _sustained_qps(url: str, sizes: QuerySizes, first_qps: float, seconds: float, step: float) -> float:
    """The highest rate that the generator sustains, going up from `first_qps`, or down if that is too much."""
    rate = first_qps
    best = _throughput_if_sustained(url, sizes, rate, seconds)
    if best is not None:
        while (throughput := _throughput_if_sustained(url, sizes, rate * step, seconds)) is not None:
            rate, best = rate * step, throughput
        return best
    while rate > first_qps / 100:
        rate /= step
        if (throughput := _throughput_if_sustained(url, sizes, rate, seconds)) is not None:
            return throughput
    raise RuntimeError(f"the generator does not even sustain {rate:.0f} queries/s: is the machine idle?")


def _throughput_if_sustained(url: str, sizes: QuerySizes, rate: float, seconds: float) -> float | None:
    target = Target(parse_endpoint(url), "echo", connections=64, answer_timeout_s=_ANSWER_TIMEOUT_S)
    for attempt in range(_TRIES):
        report = run_load(target, Workload(sizes=sizes, seed=attempt), rate, seconds, warm_up_s=0.5)
        within = report.throughput_qps >= _SUSTAINED_SHARE * report.achieved_qps
        if within and not report.bottlenecks and report.latencies.answers == report.latencies.arrivals:
            return report.throughput_qps
    return None


@contextmanager
def _echo(core: int) -> Iterator[dict[str, str]]:
    """An echo server on `core`: its URLs. Raises RuntimeError if it does not come up."""
    command = [sys.executable, "-m", "hebe_lab.bench.echo.echo_server", "--core", str(core)]
    command += ["--inputs", f"{_FEATURES}x{_LOOKUPS}", "--dense", str(_DENSE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the echo server has ended before it listened: see above why")
            ports = json.loads(line)
            yield {name: f"{name}://127.0.0.1:{ports[f'{name}_port']}" for name in ("http", "grpc")}
        finally:
            process.stdin.close()
