"""`hebe load`: send queries to a server in an open loop, and tell what it can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hebe.cli.terminal.api_token import token_to_send
from hebe.cli.terminal.options import (
    MEASURE,
    QUERIES,
    SIZE_FORMS,
    ArrivalsOption,
    QuerySeedOption,
    RateOption,
    check_at_least,
    check_percentile,
    check_rate_or_search,
    naming_options,
    parse_bytes,
    parse_form,
)
from hebe.cli.terminal.output import (
    INTERRUPTED,
    JsonOption,
    check_result_file,
    draw_result,
    make_console,
    make_progress,
    print_error,
    print_json,
    show,
)

if TYPE_CHECKING:
    from hebe.load_generator.load_report import LoadReport
    from hebe.load_generator.open_loop.interruptible import OnInterrupt
    from hebe.load_generator.open_loop.open_loop import Progress
    from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe, Workload
    from hebe.load_generator.search.rate_search import Crossing
    from hebe.load_generator.target import Target
    from hebe.report.document import Document
    from hebe.spec import SlaTarget

_CONNECTION = "Server and connection"
_OPTIONS = {"answer_timeout_s": "--answer-timeout"}
"""Fields of a `Target` that are called otherwise."""
_ROUNDS = 5
_FEWEST_ROUNDS = 3
"""With fewer, an interval hangs on the verdicts of a dozen probes."""


def load(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="http(s)://HOST:PORT, grpc(s)://HOST:PORT, or HOST:PORT (port 8001 means gRPC)."
        ),
    ],
    model: Annotated[str, typer.Option(help="The model to query.")],
    rate: RateOption = None,
    find_qps: Annotated[
        bool,
        typer.Option(
            "--find-qps", rich_help_panel=MEASURE, help="Search the largest rate at which the SLA holds (the default)."
        ),
    ] = False,
    sla_ms: Annotated[
        float | None, typer.Option(rich_help_panel=MEASURE, help="Latency bound (default: what the server tells).")
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(rich_help_panel=MEASURE, help="Percentile at which it must hold (default: the server's, or 95)."),
    ] = None,
    duration: Annotated[
        float, typer.Option(rich_help_panel=MEASURE, help="Seconds of a run, or of each probe of a search.")
    ] = 10.0,
    warm_up: Annotated[float, typer.Option(rich_help_panel=MEASURE, help="Seconds before each, not counted.")] = 1.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=MEASURE,
            help="How often a search finds the rate anew, for its interval (default: 5; at least 2).",
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(rich_help_panel=QUERIES, help=SIZE_FORMS)] = "production",
    arrivals: ArrivalsOption = "poisson",
    keys: Annotated[
        str, typer.Option(rich_help_panel=QUERIES, help="Which rows: uniform, zipf:ALPHA, or reuse[:FILE[:NAME]].")
    ] = "uniform",
    seed: QuerySeedOption = 0,
    max_key: Annotated[
        int | None,
        typer.Option(rich_help_panel=QUERIES, help="Largest key to send (default: what the server's tables have)."),
    ] = None,
    pool_memory: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=QUERIES,
            metavar="BYTES",
            help="Memory for queries, which are drawn before the run: bounds how many different keys they have"
            " (default: 256M, or 8M as JSON text).",
        ),
    ] = None,
    timeout_ms: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Milliseconds that each request gives the server, which refuses what cannot be in time (default: the"
            " server decides).",
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            rich_help_panel=QUERIES,
            help="Priority of each request: the larger, the less urgent; 0 sends none, which Hebe takes for 100.",
        ),
    ] = 0,
    version: Annotated[str, typer.Option(rich_help_panel=_CONNECTION, help="Model version (default: any).")] = "",
    protocol: Annotated[
        str | None, typer.Option(rich_help_panel=_CONNECTION, help="http or grpc, whatever URL looks like.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(rich_help_panel=_CONNECTION, help="Tensors over HTTP: binary or json.")
    ] = "binary",
    connections: Annotated[
        int, typer.Option(rich_help_panel=_CONNECTION, help="Most HTTP connections, or gRPC calls, at once.")
    ] = 256,
    api_token: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CONNECTION,
            envvar="HEBE_API_TOKEN",
            help="Token to send. Everybody on this machine can see an option in the list of processes (ps), but not the"
            " variable, nor what is in --api-token-file.",
        ),
    ] = None,
    api_token_file: Annotated[
        Path | None, typer.Option(rich_help_panel=_CONNECTION, help="File whose first token is sent.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_CONNECTION, help="PEM certificates to trust instead of the system's."),
    ] = None,
    answer_timeout: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_CONNECTION,
            help="Seconds after which a query is given up, no fewer than the latency bound (default: 30, or that).",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write plots to FILE: .html (a page) or .svg (one plot).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send queries to any Open Inference Protocol server, and measure what it can take.

    Open loop: a query is sent when it is due, whatever became of those before it, and its latency counts from when
    it was due. Refused and failed queries count as outside the SLA. Ctrl-C or SIGTERM ends a run early and prints what
    was measured; what has no answer by then counts as failed, if it was due longer ago than the SLA allows.

    Exit code: 0 it was measured, whatever was refused or failed; 1 it cannot be, or at the end the server answers no
    more, not even one query alone, or plots could not be written; 2 wrong usage; 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.

    Example: hebe load http://127.0.0.1:8000 --model dlrm-rmc1 --rate 100 --duration 30

    Example: hebe load grpc://127.0.0.1:8001 --model dlrm-rmc1 --find-qps --sla-ms 20 --plot load.html
    """
    from hebe.cli.terminal.host_watch import HostWatch, denied_words
    from hebe.load_generator.search.qps_search import Workload
    from hebe.load_generator.target import Target, parse_endpoint
    from hebe.machine.process_limits import allow_many_connections, keep_large_allocations
    from hebe.workload import forms

    keep_large_allocations()
    allow_many_connections()

    find_qps = find_qps or rate is None
    check_rate_or_search(rate, find_qps)
    for hint, value in (("--rate", rate), ("--duration", duration)):
        if value is not None and not 0 < value < float("inf"):
            raise typer.BadParameter(f"{value}: must be a positive number", param_hint=hint)
    if not 0 <= warm_up < float("inf"):
        raise typer.BadParameter(f"{warm_up}: must be at least 0", param_hint="--warm-up")
    if rounds is not None and not find_qps:
        raise typer.BadParameter("is for a search, without --rate", param_hint="--rounds")
    rounds = _ROUNDS if rounds is None else rounds
    if rounds < 2:
        raise typer.BadParameter(f"{rounds}: a confidence interval needs at least 2", param_hint="--rounds")
    check_at_least("--seed", seed, least=0)
    if sla_ms is not None:
        check_at_least("--sla-ms", sla_ms, more_than=0)
    if percentile is not None:
        check_percentile(percentile)
    pool_bytes = None if pool_memory is None else parse_bytes(pool_memory, "--pool-memory")
    if plot is not None:
        _check_plot(plot)
    with _wrong_usage(context):
        target = Target(
            parse_endpoint(url, protocol),
            model,
            version=version,
            encoding=encoding,
            api_token=token_to_send(context, api_token, api_token_file),
            ca_file=ca_file,
            timeout_ms=timeout_ms,
            priority=priority,
            connections=connections,
            max_key=max_key,
            answer_timeout_s=answer_timeout,
        )
    workload = Workload(
        parse_form("--sizes", forms.query_sizes, sizes),
        parse_form("--arrivals", forms.arrivals, arrivals),
        parse_form("--keys", forms.key_skew, keys),
        seed,
    )
    sla = _sla(target, sla_ms, percentile)
    console = make_console(as_json)
    host = HostWatch()
    endings: list[BaseException] = []
    # Plots draw with matplotlib, tables with rich: not before the run, which wants the machine for itself.
    if rate is not None:
        with _wrong_usage(context):
            report = _run(target, workload, rate, duration, warm_up, sla, pool_bytes, endings.append)
        denied_share = host.denied_share()
        from hebe.cli.load.results import run_document

        document, gone = run_document(report, model), report.server_gone
        show(console, document.blocks)
    else:
        with _wrong_usage(context):
            found = _search(target, workload, duration, warm_up, rounds, sla, pool_bytes, endings.append)
        denied_share = host.denied_share()
        from hebe.cli.load.results import search_document

        document, gone = search_document(found, model), ""  # or there would be no result
        show(console, document.blocks)
        if rounds < _FEWEST_ROUNDS:
            console.print(
                f"With --rounds {rounds} the interval is a rough one: {_FEWEST_ROUNDS} or more tell more.",
                style="yellow", soft_wrap=True,
            )  # fmt: skip
    plot_error = draw_result(plot, partial(_write_plot, document))
    if warning := denied_words(denied_share):
        console.print(warning, style="yellow", soft_wrap=True)
    if plot is not None and not plot_error:
        console.print(f"Plots: {plot}", soft_wrap=True, markup=False)
    if as_json:
        asked = {"url": target.endpoint.url, "model": model, "sizes": sizes, "arrivals": arrivals, "keys": keys}
        failed = {"plot_error": plot_error} if plot_error else {}
        print_json({**asked, "seed": seed, "plot": plot, "denied_share": denied_share, **document.data, **failed})
    if plot_error:
        print_error(f"the plots are not written: {plot_error}")
    if endings:
        raise typer.Exit(INTERRUPTED) if isinstance(endings[0], KeyboardInterrupt) else endings[0]
    if plot_error or gone:
        raise typer.Exit(1)


@contextmanager
def _wrong_usage(context: typer.Context) -> Iterator[None]:
    """Tells what is asked for and is no load from what the server cannot do."""
    from hebe.load_generator.error import LoadUsageError

    try:
        yield
    except LoadUsageError as fault:
        raise typer.BadParameter(naming_options(str(fault), context, _OPTIONS)) from None


def _check_plot(plot: Path) -> None:
    if plot.suffix not in (".html", ".svg"):
        raise typer.BadParameter(f"{plot}: must end in .html or .svg", param_hint="--plot")
    check_result_file("--plot", plot)


def _write_plot(document: Document, plot: Path) -> None:
    from hebe.report.html import write_page, write_picture

    (write_picture if plot.suffix == ".svg" else write_page)(document, plot)


def _sla(target: Target, sla_ms: float | None, percentile: float | None) -> SlaTarget | None:
    """What the options say, completed by what the server says."""
    from hebe.load_generator.discovery import discover
    from hebe.spec import SlaTarget

    told = discover(target).sla
    if sla_ms is None and told is None:
        if percentile is not None:
            raise typer.BadParameter("the server tells no latency bound: give --sla-ms too", param_hint="--percentile")
        return None
    bound_ms = sla_ms if sla_ms is not None else told.latency_ms  # type: ignore[union-attr]
    at = percentile if percentile is not None else told.percentile if told is not None else 95.0
    return SlaTarget(bound_ms, at)


def _run(
    target: Target,
    workload: Workload,
    rate: float,
    duration_s: float,
    warm_up_s: float,
    sla: SlaTarget | None,
    pool_bytes: int | None,
    on_interrupt: OnInterrupt,
) -> LoadReport:
    from hebe.load_generator.session import run_load

    with make_progress() as bar:
        task = bar.add_task("drawing queries", total=int(warm_up_s + duration_s))

        def show(progress: Progress) -> None:
            doing = "warming up" if progress.elapsed_s < warm_up_s else f"{progress.answers} answers"
            bar.update(task, description=f"{doing} (s)", completed=int(progress.elapsed_s))

        return run_load(
            target,
            workload,
            rate,
            duration_s,
            warm_up_s,
            sla,
            on_progress=show,
            catch_interrupt=True,
            pool_bytes=pool_bytes,
            on_interrupt=on_interrupt,
        )


def _search(
    target: Target,
    workload: Workload,
    probe_s: float,
    warm_up_s: float,
    rounds: int,
    sla: SlaTarget | None,
    pool_bytes: int | None,
    on_interrupt: OnInterrupt,
) -> LatencyBoundedThroughput:
    from hebe.load_generator.session import find_qps

    with make_progress() as bar:
        task = bar.add_task("looking for the first rate", total=None)

        def show(probe: Probe, crossing: Crossing | None) -> None:
            so_far = f", so far {crossing.qps:.4g}" if crossing is not None else ""
            verdict = "holds" if probe.passed else "does not hold"
            bar.update(task, description=f"{verdict} at {probe.rate_qps:.4g} queries/s{so_far} (probes)", advance=1)

        return find_qps(
            target,
            workload,
            sla,
            probe_s=probe_s,
            warm_up_s=warm_up_s,
            rounds=rounds,
            on_probe=show,
            catch_interrupt=True,
            pool_bytes=pool_bytes,
            on_interrupt=on_interrupt,
        )
