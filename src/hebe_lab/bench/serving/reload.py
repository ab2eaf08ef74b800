"""Loading a version beside the one that runs: what it costs the queries of that time.

An open load of a third of what saturates the server, by turns with nothing else, with a load of the model every few
seconds, and with one load after another; the version that is there is loaded again, which takes all that a new one
does. One worker has a core of its own; loading, front end and load generator have the others. `dlrm-rmc1` has large
tables to read and check, `mt-wnd` a large DenseNet.

A load that follows another at once is a case of its own, which hardly anybody has: the memory of the version that was
replaced is then given back while the next one takes as much. The kernel of a virtual machine that tells its host what
memory is free (free page reporting) does so two seconds after it was given back, and the host takes it; who needs
memory meanwhile has to fetch it from there, and on both cores nothing makes way for 0.1 s.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import Workload
from hebe.load_generator.session import run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import available_cores, pinned
from hebe.report.figures import Figure
from hebe.workload.query_sizes import FixedSizes
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.bench.serving.closed_loop import closed_loop

DESCRIPTION = "Loading a version beside the running one: queries lost, and what their tail latency becomes."

_MODELS = {"dlrm-rmc1": 1.0, "mt-wnd": 0.1}
"""Of the catalog, small, with the scale."""
_ITEMS = 64
_SIZES = f"fixed:{_ITEMS}"
_LOAD = 1 / 3
_REST_S = 4.0
"""Between two loads: longer than the kernel waits before it gives the host what the last one has given back."""
_LOAD_TIMEOUT_S = 120.0
_MOST_WORDS = 500


@dataclass(frozen=True, slots=True)
class Loading:
    """A run with loads of the model beside it, and how long each of these took."""

    report: LoadReport
    loads_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A run with nothing else, one with loads between which there is a rest, and one with none between them."""

    quiet: LoadReport
    resting: Loading
    at_once: Loading


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `reload.*` of both models; needs two cores. Raises RuntimeError where there are fewer, and where a run or
    a load fails.
    """
    turns, turn_s = (2, 4.0) if quick else (5, 15.0)
    repositories = {name: bench_repository(name, "small", progress, scale) for name, scale in _MODELS.items()}
    cores = available_cores()
    if len(cores) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the worker, one for all else")
    figures: list[Figure] = []
    for name, repository in repositories.items():
        task = progress.add_task(f"loading {name} beside itself", total=turns + 1)
        with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
            with ServerProcess(repository, Path(directory) / "log", ["--workers", "1"]) as server:
                rate_qps = _LOAD * closed_loop(server.http_url, name, _SIZES, 4, 3.0, cores[:-1]).throughput_qps
                progress.advance(task)
                measured = []
                with pinned(cores[:-1]):
                    for number in range(turns):
                        measured.append(_turn(server, name, rate_qps, turn_s, number))
                        progress.advance(task)
        figures += figures_of(name, measured)
    return figures


def _turn(server: ServerProcess, name: str, rate_qps: float, turn_s: float, seed: int) -> Turn:
    target, workload = Target(parse_endpoint(server.http_url), name), Workload(FixedSizes(_ITEMS), seed=seed)
    quiet = run_load(target, workload, rate_qps, turn_s)
    loading = []
    for rest_s in (_REST_S, 0.0):
        with _loads(f"{server.http_url}/v2/repository/models/{name}/load", rest_s) as took_s:
            report = run_load(target, workload, rate_qps, turn_s)
        loading.append(Loading(report, tuple(took_s)))
        time.sleep(_REST_S)
    server.check()
    return Turn(quiet, *loading)


@contextmanager
def _loads(url: str, rest_s: float) -> Iterator[list[float]]:
    """Meanwhile one load after the other, with a rest between, and in the end what each has taken. Raises RuntimeError
    if one fails.
    """
    enough, took_s, faults = Event(), [], []

    def load() -> None:
        try:
            while not enough.is_set():
                started_s = time.perf_counter()
                request = urllib.request.Request(url, data=b"", method="POST")
                urllib.request.urlopen(request, timeout=_LOAD_TIMEOUT_S).close()
                took_s.append(time.perf_counter() - started_s)
                enough.wait(rest_s)
        except urllib.error.HTTPError as fault:
            with fault:
                faults.append(fault.read(_MOST_WORDS).decode(errors="replace"))
        except OSError as fault:
            faults.append(str(fault))

    thread = Thread(target=load)
    thread.start()
    try:
        yield took_s
    finally:
        enough.set()
        thread.join()
    if faults:
        raise RuntimeError(f"a version was not loaded: {faults[0]}")


def figures_of(name: str, turns: Sequence[Turn]) -> list[Figure]:
    """What the turns say of model `name`."""
    quiet = [turn.quiet for turn in turns]
    return [
        *_of_loading(name, quiet, [turn.resting for turn in turns]),
        *_of_loading(f"{name}.at_once", quiet, [turn.at_once for turn in turns]),
    ]


def _of_loading(name: str, quiet: Sequence[LoadReport], loading: Sequence[Loading]) -> Iterator[Figure]:
    loads_s = [took_s for each in loading for took_s in each.loads_s]
    lost, arrivals = _lost(each.report for each in loading)
    lost_else, arrivals_else = _lost(quiet)
    yield Figure(
        f"reload.lost_queries.{name}",
        lost,
        "queries",
        target="<= 0",
        note=f"refused or failed of {arrivals:,}, during {len(loads_s)} loads; the median one took "
        f"{statistics.median(loads_s):.2f} s; {lost_else} of {arrivals_else:,} with nothing else under way",
    )
    quiet_ms, loading_ms = (
        [report.latencies.percentile_s(99) * 1e3 for report in reports]
        for reports in (quiet, (each.report for each in loading))
    )
    ratios = [loading / quiet for quiet, loading in zip(quiet_ms, loading_ms, strict=True)]
    yield Figure(
        f"reload.p99_over_quiet.{name}",
        statistics.median(ratios),
        "ratio",
        low=min(ratios),
        high=max(ratios),
        runs=len(ratios),
        note=f"p99 {statistics.median(loading_ms):.2f} ms during loads, {statistics.median(quiet_ms):.2f} ms else, "
        f"at {quiet[0].requested_qps:,.0f} queries/s of {_ITEMS} items",
    )


def _lost(reports: Iterable[LoadReport]) -> tuple[int, int]:
    """Queries refused or failed, and all that came."""
    latencies = [report.latencies for report in reports]
    return sum(each.arrivals - each.answers for each in latencies), sum(each.arrivals for each in latencies)
