"""`hebe serve`: every model of a repository, over HTTP and gRPC, until told to stop.

With `--profile` each model that a profile is of is split as that says; options that say otherwise are wrong usage.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hebe.cli.terminal.options import (
    RUNNING,
    GraphOption,
    HierarchyOption,
    KernelCacheOption,
    PersistentDirOption,
    RowFormatOption,
    TableMemoryOption,
    load_options,
    naming_options,
    parse_bytes,
    use_kernel_cache,
)
from hebe.cli.terminal.output import JsonOption, drop_unwritten, make_console, print_json
from hebe.query import MOST_ITEMS

if TYPE_CHECKING:
    from hebe.runtime.loaded_model import LoadOptions
    from hebe.serving.hosting.served_configuration import ServedConfiguration

_SERVING, _ACCESS, _LOGGING = "Where", "Access and limits", "Logs and traces"
_TOKEN_VARIABLE = "HEBE_API_TOKEN"
_OPTIONS = {"max_wait_s": "--max-wait-ms", "rate_limit_per_s": "--rate-limit", "api_tokens": "--api-token"}
"""Fields of `ServerOptions` that are called otherwise."""


def serve(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The model repository.")],
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_SERVING, help="Of HTTP; 0: any free port.")
    ] = 8000,
    grpc_port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_SERVING, help="Of gRPC; 0: any free port.")
    ] = 8001,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_SERVING, help="Of the metrics; 0: any free port.")
    ] = 8002,
    host: Annotated[
        str, typer.Option(rich_help_panel=_SERVING, help="Address to listen on; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            rich_help_panel=RUNNING,
            metavar="FILE",
            help="Start in the configuration that hebe profile found best, with its SLA; once for each model.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, rich_help_panel=RUNNING, help="Workers per model (default: as many as the cores make)."
        ),
    ] = None,
    worker_cores: Annotated[int, typer.Option(min=1, rich_help_panel=RUNNING, help="Cores of each worker.")] = 1,
    worker_threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=2, rich_help_panel=RUNNING, help="Threads of each (default: 2 if each has a core of its own)."
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=RUNNING, help="Most items in a batch: larger queries are split, smaller fused."
        ),
    ] = 256,
    fuse: Annotated[bool, typer.Option(rich_help_panel=RUNNING, help="Let several queries share a batch.")] = True,
    spread: Annotated[
        bool, typer.Option(rich_help_panel=RUNNING, help="Split a query over idle workers if that answers it sooner.")
    ] = True,
    max_wait_ms: Annotated[
        float,
        typer.Option(min=0, rich_help_panel=RUNNING, help="How long a batch that is not full may wait for others."),
    ] = 0.0,
    graph: GraphOption = "scripted",
    table_memory: TableMemoryOption = None,
    persistent_dir: PersistentDirOption = None,
    hierarchy: HierarchyOption = None,
    row_format: RowFormatOption = "fp32",
    kernel_cache: KernelCacheOption = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            rich_help_panel=RUNNING,
            help="Check every byte of a version before it is loaded, or rows of tables not at all. By default they are "
            "checked as they are copied, which doubles the time of a load from disk; where the system has the files in "
            "memory, it takes four times as long and more.",
            show_default=False,
        ),
    ] = None,
    sla_ms: Annotated[
        float | None,
        typer.Option(rich_help_panel=RUNNING, help="Latency bound in milliseconds (default: each model's own)."),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(rich_help_panel=RUNNING, help="Percentile at which it must hold (default: each model's)."),
    ] = None,
    admission: Annotated[bool, typer.Option(rich_help_panel=RUNNING, help="Refuse at once what would be late.")] = True,
    max_queue: Annotated[
        int, typer.Option(min=1, rich_help_panel=_ACCESS, help="Most queries waiting, per model.")
    ] = 1024,
    max_items: Annotated[
        int, typer.Option(min=1, rich_help_panel=_ACCESS, help="Largest query size taken.")
    ] = MOST_ITEMS,
    max_request_bytes: Annotated[
        str, typer.Option(rich_help_panel=_ACCESS, metavar="BYTES", help="Largest request taken, unpacked.")
    ] = "64M",
    max_json_bytes: Annotated[
        str,
        typer.Option(
            rich_help_panel=_ACCESS, metavar="BYTES", help="Most JSON in a request; reading it holds all others up."
        ),
    ] = "8M",
    max_bytes_in_flight: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_ACCESS,
            metavar="BYTES",
            help="Most bytes of all requests under way, and so how many gRPC messages are received at once "
            "(default: 16 of the largest).",
        ),
    ] = None,
    api_token: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_ACCESS,
            # Read below: as an `envvar` of a list, each word of it would be a token.
            help=f"Token that requests must carry; once for each (env var: {_TOKEN_VARIABLE}, where neither this nor "
            "--api-token-file is given; default: none needed).",
        ),
    ] = None,
    api_token_file: Annotated[
        Path | None, typer.Option(rich_help_panel=_ACCESS, help="File with such tokens, one a line.")
    ] = None,
    rate_limit: Annotated[
        float, typer.Option(min=0, rich_help_panel=_ACCESS, help="Requests a second per token; 0: no limit.")
    ] = 0.0,
    tls_certificate: Annotated[
        Path | None, typer.Option(rich_help_panel=_ACCESS, help="PEM certificate for HTTPS and secure gRPC.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(rich_help_panel=_ACCESS, help="PEM key of the certificate.")] = None,
    log_format: Annotated[str, typer.Option(rich_help_panel=_LOGGING, help="console or json.")] = "console",
    log_level: Annotated[str, typer.Option(rich_help_panel=_LOGGING, help="debug, info, warning, error.")] = "info",
    otel: Annotated[
        bool, typer.Option("--otel", rich_help_panel=_LOGGING, help="Send OpenTelemetry traces (extra 'otel').")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve every model of a repository over the Open Inference Protocol until Ctrl-C or SIGTERM.

    HTTP and gRPC answer inference, metrics are Prometheus text at /metrics. GET /v2/health/ready answers 200 once
    every model has its workers up, its tables loaded and a warm-up query answered.

    Exit codes: 0 it was stopped, and has answered what was admitted; 1 it cannot serve: no model can be loaded, a port
    is taken, a file that was named cannot be used; 2 wrong usage; 130, 143, 129 ended by Ctrl-C, SIGTERM or SIGHUP
    before it listened, or by a second one.

    Example: hebe serve models --workers 2 --batch-size 128 --sla-ms 20

    Example: hebe serve models --profile profiles/dlrm-rmc1.json
    """
    use_kernel_cache(kernel_cache)
    # Read as gRPC is imported: its core writes to stderr by itself, in a form of its own, as often as clients make it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with _interrupt_ends_at_once(), _imported_for_good():
        from hebe.serving.access.auth import checked_tokens, read_tokens
        from hebe.serving.hosting.model_host import HostOptions
        from hebe.serving.monitoring.logs import configure_logging
        from hebe.serving.requests.errors import ServeError
        from hebe.serving.server import Server, ServerOptions

    if log_format not in ("console", "json"):
        raise typer.BadParameter(f"{log_format!r}: choose console or json", param_hint="--log-format")
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(f"{log_level!r}: choose debug, info, warning or error", param_hint="--log-level")
    if profile:
        check_profile_decides(context)
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key belong together", param_hint="--tls-certificate")
    if not api_token and api_token_file is None and (token := os.environ.get(_TOKEN_VARIABLE)) is not None:
        if not token.strip():
            # Set, but to nothing: whoever did that did not mean to let everybody in.
            raise typer.BadParameter("is set but empty: give a token, or unset it", param_hint=_TOKEN_VARIABLE)
        api_token = [token]
    load = load_options(graph, table_memory, persistent_dir, hierarchy, row_format, verify=bool(verify))
    load = replace(load, check_rows=verify is not False)
    configurations = profiled_configurations(directory, profile or [], load)
    file_tokens = checked_tokens(read_tokens(api_token_file)) if api_token_file else ()
    try:
        options = ServerOptions(
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            models=HostOptions(
                workers=workers,
                worker_cores=worker_cores,
                worker_threads=worker_threads,
                batch_size=batch_size,
                fuse=fuse,
                spread=spread,
                max_wait_s=max_wait_ms / 1e3,
                max_queue=max_queue,
                max_items=max_items,
                admission=admission,
                sla_ms=sla_ms,
                percentile=percentile,
                load=load,
                configurations=configurations,
            ),
            max_request_bytes=parse_bytes(max_request_bytes, "--max-request-bytes"),
            max_json_bytes=parse_bytes(max_json_bytes, "--max-json-bytes"),
            max_bytes_in_flight=(
                None if max_bytes_in_flight is None else parse_bytes(max_bytes_in_flight, "--max-bytes-in-flight")
            ),
            api_tokens=tuple(api_token or ()) + file_tokens,
            rate_limit_per_s=rate_limit,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            otel=otel,
        )
    except ServeError as fault:  # of files, what is wrong has been told: these are options
        raise typer.BadParameter(naming_options(str(fault), context, _OPTIONS)) from None
    configure_logging("json" if log_format == "json" else "console", log_level)
    console = make_console(as_json)
    shortage = options.shortage_of_cores()

    def announce(server: Server) -> None:
        scheme = "https" if tls_certificate else "http"
        name = f"[{options.host}]" if ":" in options.host else options.host
        address = {
            "http": f"{scheme}://{name}:{server.http_port}",
            "grpc": f"{name}:{server.grpc_port}",
            "metrics": f"{scheme}://{name}:{server.metrics_port}/metrics",
        }
        secured = " (TLS)" if tls_certificate else ""  # a gRPC address has no scheme that would tell
        words = io.StringIO()  # rich itself would end the process where nobody reads
        Console(file=words, force_terminal=console.is_terminal, highlight=False, emoji=False).print(
            f"[bold]Hebe[/] serves [bold]{escape(str(directory))}[/]  "
            + escape(f"HTTP {address['http']}  gRPC {address['grpc']}{secured}  metrics {address['metrics']}\n")
            + (escape(f"Note: {shortage}.\n") if shortage else "")
            + escape(f"Ready: GET {address['http']}/v2/health/ready.  Ctrl-C stops."),
            soft_wrap=True,
        )
        with _served_all_the_same():
            console.file.write(words.getvalue())
            console.file.flush()
        if as_json:
            with _served_all_the_same():
                print_json({"listening": address})

    server = Server(directory, options)
    server.run(announce)
    drop_unwritten()
    if server.left_at_work:
        atexit._run_exitfuncs()  # the log is written
        os._exit(0)


@contextlib.contextmanager
def _served_all_the_same() -> Iterator[None]:
    """Around what tells where the server listens: a full disk, or a reader who has gone, does not keep it from serving,
    as it does not later on. The log says so, if that is still read.
    """
    try:
        yield
    except OSError as fault:
        import structlog

        structlog.get_logger("hebe.server").warning(
            "where this server listens could not be told", reason=fault.strerror
        )


@contextlib.contextmanager
def _interrupt_ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process while nothing runs yet: raised amid an import, it may come out as a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _imported_for_good() -> Iterator[None]:
    """What imports make stays. The garbage collector would look through it again and again while it grows, for a fifth
    of the time that they take.
    """
    if "torch" in sys.modules:  # another's process, whose garbage is none of ours
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_SPLIT = ("workers", "worker_cores", "worker_threads", "batch_size")
"""Options that a profile decides itself."""


def check_profile_decides(context: typer.Context) -> None:
    """Wrong usage if an option says otherwise what a profile says."""
    for name in _SPLIT:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"a profile says how its model is split, and so does {option}: leave one of them out",
                param_hint="--profile",
            )


def profiled_configurations(
    directory: Path, paths: Sequence[Path], load: LoadOptions
) -> dict[str, ServedConfiguration]:
    """How to run the models that these profiles are of, loaded as `load` says. To be called before any thread is
    pinned: the server is known by the cores that may be used.

    Raises as `profile_to_serve.configurations_to_serve`.
    """
    if not paths:
        return {}
    from hebe.machine.this_server import core_layout, this_server
    from hebe.profiling.files.profile_to_serve import configurations_to_serve

    return configurations_to_serve(directory, paths, load.words(), this_server().name, core_layout())
