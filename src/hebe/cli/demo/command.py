"""`hebe demo`: train a small model, serve it, load it, and write a page about it."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hebe.cli.terminal.output import JsonOption, make_console, make_progress, plain, print_json, show

if TYPE_CHECKING:
    from hebe.cli.demo.result import DemoResult
    from hebe.cli.demo.scoring import ScoredRows
    from hebe.cli.terminal.server_process import ServerProcess
    from hebe.load_generator.search.qps_search import Probe
    from hebe.load_generator.search.rate_search import Crossing
    from hebe.models.training.training import TrainingReport
    from hebe.spec import ModelSpec

MODEL = "criteo-dlrm"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: rows used at most, seconds and rounds of the search, seconds of each run at a known load."""

    rows: int
    search_s: float
    probe_s: float
    rounds: int
    resolution: float
    run_s: float


FULL = Effort(rows=300_000, search_s=75.0, probe_s=3.0, rounds=4, resolution=0.04, run_s=8.0)
QUICK = Effort(rows=20_000, search_s=15.0, probe_s=1.0, rounds=2, resolution=0.1, run_s=3.0)

_MADE_UP_DATA = "made-up.tsv"
_MADE_UP_ROWS = 100_000
_ITEMS_PER_QUERY = 256
_SHARES = (0.3, 0.6, 0.9)


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", help="Criteo-format TSV or CSV to train on; made up if not given.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the model, the page and demo.json go.")] = Path("out/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: fewer rows, shorter runs.")] = False,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Pass over malformed lines of DATA and count them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a small DLRM, serve it, check its predictions over HTTP, and find out how much it can take.

    Takes under three minutes on two cores and writes OUT/index.html and OUT/demo.json.

    Example: hebe demo --data train.tsv
    """
    console = make_console(as_json)
    started_s = time.perf_counter()
    result = _run(data, out, QUICK if quick else FULL, skip_bad_lines, console)
    from hebe.cli.demo.page import document, runs_table
    from hebe.cli.terminal.host_watch import denied_words
    from hebe.report.atomic_write import write_whole
    from hebe.report.html import write_page

    result.seconds["all"] = time.perf_counter() - started_s
    next_commands = _next_commands(data, out)
    page = out / "index.html"
    shown = document(result, next_commands)
    write_page(shown, page)
    data_written = plain({**shown.data, "page": page.resolve()})
    write_whole(out / "demo.json", json.dumps(data_written, indent=1) + "\n")
    if result.runs:
        console.print()
        show(console, [runs_table(result)])
    if warning := denied_words(result.denied_share):
        console.print(f"[yellow]{warning}[/]", soft_wrap=True)
    console.print(f"\n[bold]The page:[/] {escape(str(page))}\n[bold]What to type next:[/]")
    for command in next_commands:
        console.print(f"  {escape(command)}", soft_wrap=True)
    if as_json:
        print_json(data_written)
    if result.auc_agrees is False:
        raise typer.Exit(1)


def _run(data: Path | None, out: Path, effort: Effort, skip_bad_lines: bool, console: Console) -> DemoResult:
    from hebe.cli.demo.result import DemoResult
    from hebe.cli.terminal.host_watch import HostWatch
    from hebe.cli.terminal.server_process import ServerProcess
    from hebe.machine.pinning import available_cores
    from hebe.machine.this_server import cores_allowed
    from hebe.models.architectures.build import build_dense_net
    from hebe.models.catalog import entry
    from hebe.models.repository.memory_estimate import check_memory, estimate_memory
    from hebe.models.training.training import needed_bytes

    spec = entry(MODEL)
    dense_net = build_dense_net(spec)
    served = estimate_memory(spec, dense_net, workers=cores_allowed(available_cores()))
    check_memory("the demo", needed_bytes(spec, dense_net) + served.total_bytes, "free some")
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    with _timed(seconds, "training"):
        path, training = _train(spec, data, out, skip_bad_lines, effort.rows)
    auc = "" if math.isnan(training.auc) else f", held-out AUC [bold]{training.auc:.4f}[/]"
    bad = f" ({training.bad_lines:,} malformed lines passed over)" if training.bad_lines else ""
    console.print(
        f"1  trained {MODEL} version {training.version} on {training.rows:,} rows of {escape(path.name)}{bad}{auc}",
        soft_wrap=True,
    )
    server = ServerProcess(out / "models", out / "server.log")
    try:
        with _timed(seconds, "start of the server"):
            server.start()
        console.print(
            f"2  served by `hebe serve` at {server.http_url}, ready after {seconds['start of the server']:.1f} s"
        )
        with _timed(seconds, "scoring over HTTP"):
            scored = _score(server, spec, path, skip_bad_lines, effort.rows)
        result = DemoResult(spec, path.name, data is None, training, scored, spec.sla, seconds=seconds)
        console.print(f"3  {_verdict(result)}", soft_wrap=True)
        host = HostWatch()
        with _timed(seconds, "search of the throughput"):
            _search(server, result, effort)
        console.print(f"4  {_bound(result)}", soft_wrap=True)
        for remark in (
            *(f"the load generator was itself a limit: {limit}" for limit in result.limits),
            *result.remarks,
        ):
            console.print(f"   [yellow]{escape(remark)}[/]", soft_wrap=True)
        with _timed(seconds, "runs at known loads"):
            _load(server, result, effort)
        result.denied_share = host.denied_share()
    finally:
        server.stop()
    return result


def _train(
    spec: ModelSpec, data: Path | None, out: Path, skip_bad_lines: bool, most_rows: int
) -> tuple[Path, TrainingReport]:
    from hebe.models.repository.repository import ModelRepository
    from hebe.models.training.criteo_sample import generate_criteo
    from hebe.models.training.training import train

    with make_progress() as bar:
        task = bar.add_task("making up data", total=None)
        path = data
        if path is None:
            path = out / _MADE_UP_DATA
            generate_criteo(path, min(most_rows, _MADE_UP_ROWS))

        def show(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, description=f"training {spec.name} (rows, loss {loss:.4f})")

        repository = ModelRepository(out / "models")
        return path, train(spec, path, repository, skip_bad_lines=skip_bad_lines, most_rows=most_rows, progress=show)


def _score(server: ServerProcess, spec: ModelSpec, path: Path, skip_bad_lines: bool, most_rows: int) -> ScoredRows:
    """The held-out rows with the server's scores."""
    from hebe.cli.demo.scoring import HttpScorer, score_rows
    from hebe.models.training.criteo import CriteoFile
    from hebe.models.training.criteo_features import CriteoTransform
    from hebe.models.training.training import held_out_start

    file = CriteoFile(path, skip_bad_lines=skip_bad_lines)
    total = file.count_rows(most_rows)
    with make_progress() as bar, HttpScorer(server.http_url, spec.name) as scorer:
        bar.add_task("scoring the held-out rows over HTTP", total=None)
        return score_rows(scorer, CriteoTransform.for_model(spec), file, held_out_start(total), total, _ITEMS_PER_QUERY)


def _search(server: ServerProcess, result: DemoResult, effort: Effort) -> None:
    """Find the latency-bounded throughput, within the time that the demo has for it."""
    from hebe.load_generator.search.qps_search import Workload
    from hebe.load_generator.session import find_qps
    from hebe.load_generator.target import Target, parse_endpoint

    started_s = time.perf_counter()
    with make_progress() as bar:
        task = bar.add_task("finding the latency-bounded throughput (s)", total=effort.search_s)

        def on_probe(probe: Probe, _: Crossing | None) -> None:
            result.probes.append(probe)
            held = "held" if probe.passed else "missed"
            bar.update(task, description=f"finding the throughput: {probe.rate_qps:.0f} queries/s {held} the SLA (s)")

        def on_progress(_: object) -> None:
            bar.update(task, completed=min(int(time.perf_counter() - started_s), effort.search_s))

        with _explained(server):
            found = find_qps(
                Target(parse_endpoint(server.http_url), result.spec.name),
                Workload(),
                result.sla,
                probe_s=effort.probe_s,
                warm_up_s=0.3,
                rounds=effort.rounds,
                resolution=effort.resolution,
                on_probe=on_probe,
                on_progress=on_progress,
                longest_s=effort.search_s,
            )
    if found.crossing is None:
        found, result.search_cut_short = replace(found, crossing=bracketed(found.probes)), True
    result.crossing, result.limits, result.remarks = found.crossing, found.bottlenecks, found.remarks


def bracketed(probes: Sequence[Probe]) -> Crossing | None:
    """What a search that was cut short knows: the largest rate that held, and the next that did not."""
    from hebe.load_generator.search.rate_search import Crossing

    held = max((probe.rate_qps for probe in probes if probe.passed), default=None)
    if held is None:
        return None
    missed = min((probe.rate_qps for probe in probes if not probe.passed and probe.rate_qps > held), default=held)
    return Crossing(held, held, missed)


def _load(server: ServerProcess, result: DemoResult, effort: Effort) -> None:
    """Runs at shares of the throughput found, each with the stages' times from the server's metrics."""
    from hebe.cli.demo.result import LoadedRun
    from hebe.cli.demo.scoring import read_stages
    from hebe.load_generator.search.qps_search import Workload
    from hebe.load_generator.session import run_load
    from hebe.load_generator.target import Target, parse_endpoint

    if result.crossing is None or not result.crossing.qps:
        return
    target = Target(parse_endpoint(server.http_url), result.spec.name)
    with make_progress() as bar:
        task = bar.add_task("measuring latency", total=len(_SHARES))
        for share in _SHARES:
            bar.update(task, description=f"measuring latency at {share:.0%} of it")
            before = read_stages(server.metrics_url, result.spec.name)
            with _explained(server):
                report = run_load(target, Workload(seed=1), share * result.crossing.qps, effort.run_s, 0.5, result.sla)
            stages_ms = read_stages(server.metrics_url, result.spec.name).mean_ms_since(before)
            result.runs.append(LoadedRun(share, report, stages_ms))
            bar.update(task, advance=1)


@contextmanager
def _explained(server: ServerProcess) -> Iterator[None]:
    """Where the load cannot be sent because the server has died, say that rather than what the client saw."""
    from hebe.load_generator.error import LoadError

    try:
        yield
    except LoadError:
        server.check()
        raise
    server.check()


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    started_s = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started_s


def _verdict(result: DemoResult) -> str:
    if result.auc_agrees is None:
        return "the held-out rows have labels of one kind only: there is no AUC to compare"
    offline, over_http = result.training.auc, result.http_auc
    what = f"AUC of {len(result.scored.labels):,} held-out rows over HTTP {over_http:.6f}"
    if result.auc_agrees:
        return f"{what}, [green]equal to the offline AUC[/] (difference {abs(over_http - offline):.1g})"
    return f"{what}, [bold red]but offline it is {offline:.6f}[/]: the server does not compute what was trained"


def _bound(result: DemoResult) -> str:
    sla = f"p{result.sla.percentile:g} within {result.sla.latency_ms:g} ms"
    if not any(probe.passed for probe in result.probes):
        return f"[bold red]no arrival rate that was tried kept {sla}[/]"
    if result.crossing is None or not result.crossing.qps:
        below = f"below about {result.lowest_qps:.3g} queries/s"
        return f"[bold red]latency-bounded throughput {below}[/] with {sla}: no lower arrival rate was tried"
    crossing = result.crossing
    return (
        f"latency-bounded throughput [bold]{crossing.qps:.0f} queries/s[/] "
        f"({crossing.low_qps:.0f} to {crossing.high_qps:.0f}) with {sla}"
        + (" [yellow](the search ran out of time)[/]" if result.search_cut_short else "")
    )


def _next_commands(data: Path | None, out: Path) -> list[str]:
    called = Path(sys.argv[0])
    hebe = shlex.quote(str(called)) if called.name == "hebe" and not shutil.which("hebe") else "hebe"
    models = shlex.quote(str(out / "models"))
    rows = shlex.quote(str(out / _MADE_UP_DATA if data is None else data))
    return [
        f"{hebe} serve {models}",
        f"{hebe} load http://127.0.0.1:8000 --model {MODEL} --find-qps",
        f"{hebe} model list",
        f"{hebe} model train {MODEL} --data {rows} --epochs 2 --repository {models}",
    ]
