"""The whole server: model host, data plane, front ends, from start to clean stop.

hebe.Server("models").start()      in the background of this process, ready when `start` returns
hebe.Server("models").run()        in the foreground until SIGINT or SIGTERM, as `hebe serve` does
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import structlog
import torch
import uvloop

from hebe.machine.meters.power import PowerMeter
from hebe.machine.pinning import available_cores, pin_thread
from hebe.machine.process_limits import allow_many_connections, hand_over_soon, keep_large_allocations
from hebe.machine.this_server import cores_allowed, this_server, with_power
from hebe.serving.access.auth import Gate, checked_tokens
from hebe.serving.access.byte_budget import REQUESTS_IN_BUDGET, ByteBudget
from hebe.serving.access.listening import ConnectionRoom, ServerTls, TlsFiles, bare_host, open_files
from hebe.serving.data_plane import DataPlane
from hebe.serving.engine.driver import clock
from hebe.serving.grpc.call_limits import GrpcLimits
from hebe.serving.grpc.service import start_grpc
from hebe.serving.hosting.dedicated_thread import at_work
from hebe.serving.hosting.hosted_model import HostedModel
from hebe.serving.hosting.model_host import HostOptions, ModelHost
from hebe.serving.hosting.profile_correction import ProfileCorrection
from hebe.serving.hosting.served_configuration import ServedConfiguration
from hebe.serving.http.routes import HttpFrontEnd
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.http1.server import start_http
from hebe.serving.monitoring.logs import RequestLog, configure_logging
from hebe.serving.monitoring.prometheus import MetricsPage
from hebe.serving.monitoring.tracing import start_tracing
from hebe.serving.requests.errors import LoadFailed, ServeError
from hebe.serving.statistics import Statistics

log = structlog.get_logger("hebe.server")

_MOST_REQUEST_BYTES = 2**31 - 1
"""What gRPC can be told; no message of protobuf's is larger either."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen, how models run, who may ask for what. Port 0 is any free port.

    `max_bytes_in_flight` bounds the bodies of all requests under way together (None: 16 of the largest). Raises
    `ServeError` naming the field that is out of range.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    models: HostOptions = field(default_factory=HostOptions)
    max_request_bytes: int = 64 << 20
    max_json_bytes: int = 8 << 20
    max_bytes_in_flight: int | None = None
    api_tokens: tuple[str, ...] = ()
    rate_limit_per_s: float = 0.0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    otel: bool = False
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", bare_host(self.host))
        if not self.host.strip():
            raise ServeError(
                "host is empty: must be an address or a name of this machine, such as 127.0.0.1, or 0.0.0.0 for every "
                "interface"
            )
        for name in ("max_request_bytes", "max_json_bytes"):
            if getattr(self, name) < 1:
                raise ServeError(f"{name} is {getattr(self, name)}: must be at least 1")
        if self.max_request_bytes > _MOST_REQUEST_BYTES:
            raise ServeError(
                f"max_request_bytes is {self.max_request_bytes}: must be at most {_MOST_REQUEST_BYTES}, the largest "
                "message of gRPC"
            )
        if self.bytes_in_flight < self.max_request_bytes:
            raise ServeError(
                f"max_bytes_in_flight is {self.max_bytes_in_flight}: must be at least max_request_bytes, "
                f"{self.max_request_bytes}"
            )
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        for (name, port), (other, taken) in itertools.combinations(ports.items(), 2):
            if port and port == taken:
                raise ServeError(f"{other} is {taken}, as {name} is: must be another, or 0 for any free one")
        if not 0 <= self.rate_limit_per_s < math.inf:
            raise ServeError(f"rate_limit_per_s is {self.rate_limit_per_s}: must be 0 (no limit) or more")
        checked_tokens(self.api_tokens)
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, absent = ("tls_certificate", "tls_key") if self.tls_key is None else ("tls_key", "tls_certificate")
            raise ServeError(f"{given} is given without {absent}: must be both, or neither to serve in clear text")

    @property
    def bytes_in_flight(self) -> int:
        """Most bytes of all requests under way together."""
        if self.max_bytes_in_flight is None:
            return REQUESTS_IN_BUDGET * self.max_request_bytes
        return self.max_bytes_in_flight

    def shortage_of_cores(self) -> str | None:
        """In words, where the workers that were asked for cannot have cores of their own among those of this thread."""
        workers, each, cores = self.models.workers or 1, self.models.worker_cores, cores_allowed(available_cores())
        if workers * each <= cores:
            return None
        return (
            f"{workers} worker(s) of {each} core(s) take {workers * each} cores, but {cores} may be used here: they "
            f"share these and take turns; {cores // each} such worker(s) would have cores of their own"
        )


class Server:
    """Serves every model of the repository at `directory`."""

    def __init__(self, directory: str | os.PathLike[str], options: ServerOptions | None = None) -> None:
        self.directory = Path(directory)
        self.options = options or ServerOptions()
        self.http_port = self.options.http_port
        self.grpc_port = self.options.grpc_port
        self.metrics_port = self.options.metrics_port
        self._host: ModelHost | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def hosted(self) -> tuple[HostedModel, ...]:
        """The models in memory that take queries."""
        return () if self._host is None else self._host.hosted

    @property
    def left_at_work(self) -> bool:
        """Whether a load or a read of the repository goes on though the server has stopped: it hangs, or could not be
        broken off. Python's end aborts the process where such a thread is in torch.
        """
        return at_work()

    @property
    def ready(self) -> bool:
        """Whether every model can answer."""
        return self._host is not None and self._host.ready

    def start(self) -> Server:
        """Serve from a thread of this process; returns when all models are loaded.

        Raises what prevents it: `ServeError` (port, TLS, it runs already), `LoadFailed` (no model can be loaded).
        """
        if self._thread is not None and self._thread.is_alive():
            raise ServeError("the server runs already; stop it first")
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(started,), name="hebe-server", daemon=True)
        self._thread.start()
        started.result()
        return self

    def stop(self) -> None:
        """Answer what was admitted, then stop and free everything. Does nothing if it does not run."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, announce: Callable[[Server], None] | None = None) -> None:
        """Serve until SIGINT, SIGTERM or, unless it is ignored (`nohup`), SIGHUP, a second of which ends the process at
        once; `announce` is called once the ports are open. What these signals did before, they do again afterwards.
        """
        ending = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            ending.append(signal.SIGHUP)

        async def main() -> None:
            stop = asyncio.Event()

            def end(number: int) -> None:
                if stop.is_set():
                    os._exit(128 + number)
                stop.set()

            loop = asyncio.get_running_loop()
            for number in ending:
                loop.add_signal_handler(number, end, number)
            await self._serve(stop, lambda: announce(self) if announce is not None else None, _settle_down)

        before = {number: signal.getsignal(number) for number in ending}
        allow_many_connections()
        try:
            uvloop.run(main())
        finally:
            for number, handler in before.items():  # uvloop leaves its own, which do nothing once its loop is closed
                if handler is not None:  # one that Python did not install cannot be had back
                    signal.signal(number, handler)

    def _run_thread(self, started: Future[None]) -> None:
        async def main() -> None:
            await self._serve(asyncio.Event(), lambda: None, lambda: started.set_result(None))

        try:
            uvloop.run(main())
        except BaseException as fault:
            if not started.done():
                started.set_exception(fault)
            else:
                log.exception("server failed")
        if not started.done():
            started.set_exception(LoadFailed("the server was stopped before its models were loaded"))

    async def _serve(
        self, stop: asyncio.Event, on_listening: Callable[[], None], on_loaded: Callable[[], None]
    ) -> None:
        options = self.options
        self._loop, self._stop = asyncio.get_running_loop(), stop
        hand_over_soon()
        keep_large_allocations()
        if not structlog.is_configured():  # its own default is stdout, which is the program's
            configure_logging()
        host = self._host = ModelHost(self.directory, options.models)
        if shortage := options.shortage_of_cores():
            log.warning(shortage, remedy="fewer --workers, or fewer --worker-cores")
        host.stored.check()
        pin_thread(host.front_end)
        torch.set_num_threads(1)
        statistics = Statistics()
        tracer = start_tracing() if options.otel else None
        plane = DataPlane(host, statistics, tracer)
        host.on_loaded, host.on_unloaded = plane.model_loaded, plane.model_unloaded
        gate = Gate(options.api_tokens, options.rate_limit_per_s)
        request_log = RequestLog(clock)
        room = _room_for_connections()
        limits = HttpLimits(options.max_request_bytes, options.max_json_bytes, max_connections=room.http)
        budget = ByteBudget(options.bytes_in_flight)
        tls = None
        if options.tls_certificate is not None and options.tls_key is not None:
            tls = ServerTls(TlsFiles(options.tls_certificate, options.tls_key))
        async with contextlib.AsyncExitStack() as running:
            if tracer is not None:
                running.push_async_callback(asyncio.to_thread, tracer.close)  # a collector may not answer
            if tls is not None:
                running.callback(asyncio.ensure_future(tls.watch()).cancel)
            running.push_async_callback(host.close)
            running.callback(asyncio.ensure_future(host.try_failing()).cancel)
            if options.models.configurations:
                correction = ProfileCorrection(
                    host, statistics, _power_meter(host.cores, options.models.configurations.values())
                )
                running.push_async_callback(correction.close)
                correction.start()
            front_end = HttpFrontEnd(plane, gate, request_log, limits, budget, options.host)
            http = await start_http(
                front_end, options.host, options.http_port, clock=clock, tls=tls, limits=limits, budget=budget
            )
            running.push_async_callback(http.stop, options.grace_s)
            calls = GrpcLimits(options.max_request_bytes, options.max_json_bytes, max_connections=room.grpc)
            grpc = await start_grpc(plane, gate, request_log, options.host, options.grpc_port, tls, calls, budget)
            running.push_async_callback(grpc.stop, options.grace_s)
            page = MetricsPage(host, statistics, gate)
            scrapes = HttpLimits(max_connections=room.metrics)
            metrics = await start_http(
                page, options.host, options.metrics_port, clock=clock, tls=tls, limits=scrapes, what="metrics"
            )
            running.push_async_callback(metrics.stop, 0.0)
            self.http_port, self.grpc_port, self.metrics_port = http.port, grpc.port, metrics.port
            on_listening()
            loading = asyncio.ensure_future(host.load_all())
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                log.info("all models loaded" if host.ready else "not every model is loaded", ready=host.ready)
                on_loaded()
            await stopping
            log.info("stopping: answering what was admitted")
            host.begin_shutdown()
            # Not cancelled at once: its thread would go on, and what that brings would be nobody's to free.
            load_ends = asyncio.wait({loading}, timeout=options.grace_s)
            await asyncio.gather(load_ends, http.stop(options.grace_s), grpc.stop(options.grace_s))
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, LoadFailed):
                await loading
        log.info("stopped")


def _room_for_connections() -> ConnectionRoom:
    """The connections for which the limit of open files leaves room; fewer than usual are told in the log.

    Without files, connections are closed where nobody sees it, and none of those that wait gives up its place.
    """
    soft, hard = math.inf, math.inf
    if sys.platform != "win32":
        import resource

        soft, hard = (
            math.inf if limit == resource.RLIM_INFINITY else limit
            for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
        )
    room = ConnectionRoom.within(soft, open_files())
    if soft < room.needed:
        # A program's own soft limit is for the program to raise, and may be meant.
        tell, limit = (log.warning, "hard") if hard < room.needed else (log.info, "soft")
        tell(
            f"the {limit} limit of open files is low: there is room for fewer connections",
            open_files=soft,
            needed=room.needed,
            http_connections=room.http,
            metrics_connections=room.metrics,
            grpc_connections=room.grpc,
            remedy=f"raise it to {room.needed} or more: LimitNOFILE= in systemd, --ulimit nofile= for containers, "
            "ulimit -n in a shell",
        )
    return room


def _power_meter(cores: Sequence[int], served: Iterable[ServedConfiguration]) -> PowerMeter:
    """Of this server, which estimates as the profiles did that models run by: their power may have been stated."""
    server = this_server(cores)
    stated = [watts for watts in (each.power_watts for each in served) if watts is not None]
    estimated = server.idle_power_watts, server.peak_power_watts
    watts = next((each for each in stated if each != estimated), None)
    return PowerMeter(server=None if watts is None else with_power(server, *watts), cores=cores)


def _settle_down() -> None:
    """Take what start-up made out of the garbage collector's sight: else each full collection, over all that importing
    torch leaves behind, holds every thread for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
