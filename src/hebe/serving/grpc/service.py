"""The Open Inference Protocol over gRPC, and `grpc.health.v1`, on the running event loop.

Each method is a conversion to and from what the HTTP front end uses too. Errors become the status codes of
`errors`; what is worth trying again carries `grpc-retry-pushback-ms`, which gRPC's own retries obey.

To gRPC all methods are such that take a stream: it calls those as soon as a call has begun, so that whoever has no
token, and calls beyond their number, are refused before the message is received, and a message that does not come has
an end (`call_limits`). What gRPC's core refuses by itself is not told to anybody: broken frames, failed handshakes.

gRPC's core keeps messages that it receives where nobody can count them: `_WINDOW_BYTES` of each call that is not read,
and all that has come of one that is. So as many calls are read at once as there could be of the largest in the budget
for requests under way, four times as many streams (one is read all its life), and half as many health checks. It keeps
answers, too, until their client has read them, and the Python around them: so connections are bounded, and of each the
calls that have not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from hebe.serving.access.auth import Gate
from hebe.serving.access.byte_budget import REQUESTS_IN_BUDGET, ByteBudget
from hebe.serving.access.listening import ServerTls, open_port
from hebe.serving.data_plane import DataPlane
from hebe.serving.grpc.call_limits import CallPlaces, GrpcLimits, end_late_calls
from hebe.serving.grpc.infer_codec import decode_infer, encode_answer, metadata_value, parameters_of, split_raw_contents
from hebe.serving.grpc.protocol import SERVICE, message, methods
from hebe.serving.hosting.model_metadata import model_config, model_metadata, server_metadata
from hebe.serving.hosting.repository_control import RepositoryControl
from hebe.serving.monitoring.logs import RequestLog
from hebe.serving.requests.errors import (
    ErrorKind,
    InvalidInput,
    ModelNotReady,
    RequestError,
    ServeError,
    UnknownModel,
    as_request_error,
    release,
)
from hebe.serving.requests.infer_request import InferRequest
from hebe.serving.requests.memo import KnownHeaders
from hebe.serving.requests.settings import FIXED_SETTINGS, LOG_SETTINGS, NO_SHARED_MEMORY, trace_settings

_HEALTH = "grpc.health.v1.Health"
_OPEN_METHODS = ("ServerLive", "ServerReady", "Check")
_POLL_S = 0.25
_PING_EVERY_MS, _PING_TIMEOUT_MS = 60_000, 20_000
_WINDOW_BYTES = 256 * 1024
"""How much of a call's message may come before it is read. By itself gRPC raises this to tens of megabytes."""
_STREAMS = 4
"""Streams for each call that is read at once: all of them are, but most of them wait for their client."""
_MOST_OPEN_BYTES = 4096
"""Of a message to a method that needs no token: they hold a name at most."""
_STREAM_AHEAD = 64
"""Requests of one stream that may be under way at once; answers keep their order."""

Method = Callable[[Any, Any], Awaitable[Any]]


class GrpcFrontEnd:
    """Answers gRPC calls from a data plane."""

    def __init__(
        self,
        data_plane: DataPlane,
        gate: Gate,
        log: RequestLog,
        limits: GrpcLimits | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        self._limits = limits = limits or GrpcLimits()
        self._budget = budget or ByteBudget(REQUESTS_IN_BUDGET * limits.max_request_bytes)
        self._data_plane = data_plane
        self._host = data_plane.host
        self._repository = RepositoryControl(data_plane.host)
        self._clock = data_plane.clock
        self._gate = gate
        self._log = log
        self._known = KnownHeaders()

        def places(what: str, most: int, patience_s: float, most_receiving: int | None = None) -> CallPlaces:
            most_bytes = limits.max_request_bytes
            return CallPlaces(
                what, most, patience_s, self._clock, self._end_late, most_receiving, most_bytes=most_bytes
            )

        at_once = max(self._budget.most_bytes // limits.max_request_bytes, 1)
        self._calls = places("calls", limits.max_calls, limits.message_timeout_s, at_once)
        most_streams = min(limits.max_streams, _STREAMS * at_once)
        self._streams = places("streams", most_streams, limits.stream_idle_s)
        health_s = limits.health_timeout_s
        self._health_calls = places("health checks", limits.max_health_calls, health_s, max(at_once // 2, 1))
        self._watches = {
            True: places("watches", limits.max_watches, health_s),
            False: places("watches without a token", limits.max_watches, health_s),
        }
        self.places = [self._calls, self._streams, self._health_calls, *self._watches.values()]

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What to add to a `grpc.aio` server. Messages arrive as bytes, so that a malformed one is our error."""
        served: dict[str, Method] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._repository_load,
            "RepositoryModelUnload": self._repository_unload,
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
        }
        inference = {
            name: grpc.stream_unary_rpc_method_handler(
                _unless_gone(self._unary(name, request, served.get(name) or _shared_memory(name, response)))
            )
            for name, (request, response) in methods().items()
            if name not in ("ModelInfer", "ModelStreamInfer")
        }
        infer = self._unary("ModelInfer", bytes, self._model_infer)
        inference["ModelInfer"] = grpc.stream_unary_rpc_method_handler(_unless_gone(infer))
        stream = _unless_gone(self._model_stream_infer)
        inference["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stream)
        health = {
            "Check": grpc.stream_unary_rpc_method_handler(
                _unless_gone(self._unary("Check", health_pb2.HealthCheckRequest, self._health_check))
            ),
            "Watch": grpc.stream_stream_rpc_method_handler(_unless_gone(self._health_watch)),
        }
        return [
            grpc.method_handlers_generic_handler(SERVICE, inference),
            grpc.method_handlers_generic_handler(_HEALTH, health),
            _EverythingElse(_unless_gone(self._unknown)),
        ]

    # -- calls

    def _unary(self, name: str, request_class: Any, act: Method) -> Callable[[Any, Any], Awaitable[bytes]]:
        """`act` as gRPC calls it: admitted, parsed (unless `request_class` is bytes), errors made status codes."""
        is_open = name in _OPEN_METHODS
        places = self._health_calls if is_open else self._calls
        most_bytes = _MOST_OPEN_BYTES if is_open else self._limits.max_json_bytes
        budget = self._budget

        async def call(_requests: Any, context: Any) -> bytes:
            begun_s = self._clock()
            try:
                if not is_open:
                    self._admit(context)
                places.take()
                held_bytes = 0
                try:
                    data = await places.message(context)
                    budget.take(len(data))
                    held_bytes = len(data)
                    answer = await act(
                        data if request_class is bytes else _parse(request_class, data, most_bytes), context
                    )
                    response: bytes = answer.SerializeToString()
                    return response
                finally:
                    places.give()
                    budget.give(held_bytes)
            except grpc.aio.BaseError:  # the call has been ended meanwhile
                raise
            except Exception as fault:
                error = as_request_error(fault)
            data = b""  # gRPC keeps what abort raises, and with it this frame, until the next full garbage collection
            await self._abort(context, name, error, self._asked(context, begun_s) if name == "ModelInfer" else None)
            raise AssertionError("abort raises")

        return call

    async def _unknown(self, _requests: Any, context: Any) -> None:
        """A method that there is not."""
        await self._abort(context, "", RequestError(ErrorKind.UNSUPPORTED, "there is no such method"))

    def _admit(self, context: Any) -> None:
        """Raise `RequestError` unless the call's metadata carries a token with requests left."""
        self._gate.admit(metadata_value(context, "authorization") if self._gate.asks else None, self._clock())

    async def _abort(self, context: Any, name: str, error: RequestError, asked: InferRequest | None = None) -> None:
        self._data_plane.count_refused(error, asked)
        self._log.refused("grpc", name, error, context.peer())
        release(error)
        if error.rest_s > 0:
            await asyncio.sleep(error.rest_s)
        metadata: tuple[tuple[str, str], ...] = ()
        if error.retry_after_s > 0:
            wait_ms = math.ceil(min(error.retry_after_s, 3600.0) * 1e3)
            metadata = (("grpc-retry-pushback-ms", str(wait_ms)),)
        await context.abort(grpc.StatusCode[error.kind.grpc_status], error.message, metadata)

    async def _end_late(self, context: Any, error: RequestError) -> None:
        await self._abort(context, "", error)

    # -- inference

    def _asked(self, context: Any, arrival_s: float, request: Any = None) -> InferRequest | None:
        """What is known of a request for scores, `request` once it is parsed; None of who has no token."""
        if not self._gate.knows(metadata_value(context, "authorization")):
            return None
        parent = metadata_value(context, "traceparent")
        if request is None:
            return InferRequest("", "", "", (), arrival_s, trace_parent=parent)
        return InferRequest(request.model_name, request.model_version, request.id, (), arrival_s, trace_parent=parent)

    async def _infer(self, data: bytes, context: Any, arrival_s: float) -> Any:
        rest, raw_contents = split_raw_contents(data, self._data_plane.most_fields)
        remaining_s = context.time_remaining()
        deadline_s = math.inf if remaining_s is None else arrival_s + remaining_s
        decoded, raw = self._known_infer(rest, data, raw_contents, arrival_s, deadline_s), True
        if decoded is None:
            request = _parse(message("ModelInferRequest"), rest, self._limits.max_json_bytes)
            try:
                decoder = self._data_plane.decoder(request.model_name, request.model_version)
                view = memoryview(data)
                views = [view[lies] for lies in raw_contents]
                decoded, raw = decode_infer(request, arrival_s, deadline_s, views, decoder.most_values)
            except Exception as fault:
                error = as_request_error(fault)
                self._data_plane.count_refused(error, self._asked(context, arrival_s, request))
                if error is fault:
                    raise
                raise error from fault
            if raw and self._known.comes_again(rest, decoder):
                starts = [lies.start for lies in raw_contents]
                self._known.keep(rest, decoded, starts, raw_contents, decoder, binary=True)
        if self._data_plane.traces:
            decoded.trace_parent = metadata_value(context, "traceparent")
        answer = await self._data_plane.infer(decoded)
        start_s = self._clock()
        response = encode_answer(answer, raw)
        answer.statistics.answer_encoded(self._clock() - start_s)
        return response

    def _known_infer(
        self, rest: bytes, data: bytes, raw_contents: list[slice], arrival_s: float, deadline_s: float
    ) -> InferRequest | None:
        """A request that says what one before said."""
        known = self._known.find(rest)
        with contextlib.suppress(UnknownModel, ModelNotReady):  # which is told of the request once it is read
            if known and known.is_of(self._data_plane.decoder(known.request.model, known.request.version)):
                return known.read(memoryview(data), raw_contents, arrival_s, deadline_s)
        return None

    async def _model_infer(self, data: bytes, context: Any) -> Any:
        return await self._infer(data, context, self._clock())

    async def _model_stream_infer(self, _requests: Any, context: Any) -> None:
        """Answers in the order of the requests; an error is an answer and does not end the stream."""
        try:
            self._admit(context)
            self._streams.take()
            try:
                await self._answer_stream(context)
            finally:
                self._streams.give()
        except RequestError as error:
            await self._abort(context, "ModelStreamInfer", error)

    async def _answer_stream(self, context: Any) -> None:
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(_STREAM_AHEAD)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            first = True
            with contextlib.suppress(grpc.aio.BaseError, RequestError):  # ended meanwhile, or without a turn
                while (data := await self._streams.next_message(context)) is not None:
                    task = asyncio.ensure_future(self._stream_answer(data, context, admitted=first))
                    first = False
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    await under_way.put(task)
            await under_way.put(None)

        reader = asyncio.ensure_future(read())
        tasks.add(reader)
        try:
            while (task := await self._next_answer(under_way)) is not None:
                await self._write(context, await task)
        finally:
            for left in list(tasks):
                left.cancel()

    async def _write(self, context: Any, answer: bytes) -> None:
        """Write one answer of several. Raises `RequestError` if the client does not read: else it had its place for
        good, since a stream that does not go on to read waits for no message either.
        """
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await context.write(answer)
        except TimeoutError:
            raise RequestError(
                ErrorKind.TIMED_OUT, f"an answer was not read within {self._limits.write_timeout_s:g} s"
            ) from None

    async def _next_answer(self, under_way: asyncio.Queue[asyncio.Task[bytes] | None]) -> asyncio.Task[bytes] | None:
        """None at the stream's end, and when the server stops while the client asks nothing."""
        while True:
            try:
                async with asyncio.timeout(_POLL_S):
                    return await under_way.get()
            except TimeoutError:
                if not self._host.live:
                    return None

    async def _stream_answer(self, data: bytes, context: Any, *, admitted: bool) -> bytes:
        response = message("ModelStreamInferResponse")()
        arrival_s = self._clock()
        held_bytes, rest_s = 0, 0.0
        try:
            if not admitted:
                self._admit(context)
            self._budget.take(len(data))
            held_bytes = len(data)
            rest, _ = split_raw_contents(data, self._data_plane.most_fields)
            response.infer_response.id = _parse(message("ModelInferRequest"), rest, self._limits.max_json_bytes).id
            response.infer_response.CopyFrom(await self._infer(data, context, arrival_s))
            response.infer_response.parameters["triton_final_response"].bool_param = True
        except Exception as fault:
            error = as_request_error(fault)
            self._data_plane.count_refused(error, self._asked(context, arrival_s))
            self._log.refused("grpc", "ModelStreamInfer", error, context.peer())
            response.error_message = error.message
            release(error)
            rest_s = error.rest_s
        finally:
            self._budget.give(held_bytes)
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        serialized: bytes = response.SerializeToString()
        return serialized

    # -- health and metadata

    async def _server_live(self, _request: Any, _context: Any) -> Any:
        return message("ServerLiveResponse")(live=self._host.live)

    async def _server_ready(self, _request: Any, _context: Any) -> Any:
        return message("ServerReadyResponse")(ready=self._host.ready)

    async def _model_ready(self, request: Any, _context: Any) -> Any:
        """False also where there is no such model, as Triton answers."""
        try:
            ready = self._host.find(request.name, request.version or None).ready
        except (UnknownModel, ModelNotReady):
            ready = False
        return message("ModelReadyResponse")(ready=ready)

    async def _server_metadata(self, _request: Any, _context: Any) -> Any:
        return message("ServerMetadataResponse")(**server_metadata())

    async def _model_metadata(self, request: Any, _context: Any) -> Any:
        model = self._host.find(request.name, request.version or None)
        versions = self._repository.ready_versions(request.name)
        return ParseDict(model_metadata(model, versions), message("ModelMetadataResponse")())

    async def _model_config(self, request: Any, _context: Any) -> Any:
        model = self._host.find(request.name, request.version or None)
        config = model_config(model, self._limits.max_request_bytes)
        return ParseDict({"config": config}, message("ModelConfigResponse")(), ignore_unknown_fields=True)

    async def _model_statistics(self, request: Any, _context: Any) -> Any:
        documents = self._data_plane.statistics_documents(request.name, request.version)
        return ParseDict({"model_stats": documents}, message("ModelStatisticsResponse")())

    def _serving_status(self, service: str, context: Any) -> int | None:
        """Of the whole server, of the inference service (the same), or of a model by name; None if unknown.

        Raises `RequestError` where who has no token asks for a model: what is served is not for all to know.
        """
        if service in ("", SERVICE, _HEALTH):
            ready = self._host.live and self._host.ready
        else:
            self._gate.check(metadata_value(context, "authorization"))
            try:
                ready = self._host.find(service, None).ready
            except UnknownModel:
                return None
            except ModelNotReady:
                ready = False
        status = health_pb2.HealthCheckResponse
        return int(status.SERVING if ready else status.NOT_SERVING)

    async def _health_check(self, request: Any, context: Any) -> Any:
        status = self._serving_status(request.service, context)
        if status is None:
            raise RequestError(ErrorKind.NOT_FOUND, f"service {request.service!r:.100} is unknown")
        return health_pb2.HealthCheckResponse(status=status)

    async def _health_watch(self, _requests: Any, context: Any) -> None:
        """The status now, and every change of it, while the client listens and the server lives, for a time."""
        places = self._watches[self._gate.knows(metadata_value(context, "authorization"))]
        try:
            places.take()
            try:
                await self._tell_health(context)
            finally:
                places.give()
        except RequestError as error:
            await self._abort(context, "Watch", error)

    async def _tell_health(self, context: Any) -> None:
        data = await self._health_calls.message(context)
        service = _parse(health_pb2.HealthCheckRequest, data, _MOST_OPEN_BYTES).service
        told = None
        until_s = self._clock() + self._limits.watch_age_s
        while True:
            status = self._serving_status(service, context)
            if status is None:
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                told = status
                await self._write(context, health_pb2.HealthCheckResponse(status=status).SerializeToString())
            if not self._host.live or self._clock() >= until_s:
                return
            await asyncio.sleep(_POLL_S)

    # -- repository and settings

    async def _repository_index(self, request: Any, _context: Any) -> Any:
        models = await self._repository.index(request.ready, request.repository_name)
        return message("RepositoryIndexResponse")(models=models)

    async def _repository_load(self, request: Any, _context: Any) -> Any:
        parameters = parameters_of(request.parameters)
        await self._repository.load(request.model_name, parameters, request.repository_name)
        return message("RepositoryModelLoadResponse")()

    async def _repository_unload(self, request: Any, _context: Any) -> Any:
        await self._repository.unload(request.model_name, request.repository_name)
        return message("RepositoryModelUnloadResponse")()

    async def _trace_setting(self, request: Any, _context: Any) -> Any:
        if request.settings:
            raise RequestError(ErrorKind.UNSUPPORTED, FIXED_SETTINGS)
        if request.model_name:
            self._host.find(request.model_name, None)
        response = message("TraceSettingResponse")()
        for name, value in trace_settings(on=self._data_plane.traces).items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def _log_settings(self, request: Any, _context: Any) -> Any:
        if request.settings:
            raise RequestError(ErrorKind.UNSUPPORTED, FIXED_SETTINGS)
        response = message("LogSettingsResponse")()
        for name, value in LOG_SETTINGS.items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[name], kind, value)
        return response


def _unless_gone(act: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """`act`, which is given up where its client has gone.

    gRPC may notice that in the midst of what it is told, and would log it as an error of ours, with a stack trace.
    """

    async def call(requests: Any, context: Any) -> Any:
        try:
            return await act(requests, context)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None

    return call


def _shared_memory(name: str, response_class: Any) -> Method:
    """Shared-memory methods: no regions to list or remove, and none can be registered."""

    async def act(_request: Any, _context: Any) -> Any:
        if name.endswith("Register"):
            raise RequestError(ErrorKind.UNSUPPORTED, NO_SHARED_MEMORY)
        return response_class()

    return act


class _EverythingElse:
    """A `grpc.GenericRpcHandler` for methods that no other has, by `act`: gRPC's own answer would not be counted."""

    def __init__(self, act: Callable[[Any, Any], Awaitable[None]]) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(act)

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        """Called by gRPC for a method that the handlers before this one do not know."""
        return self._handler


def _parse(request_class: Any, data: bytes, most_bytes: int) -> Any:
    if len(data) > most_bytes:
        raise RequestError(
            ErrorKind.TOO_LARGE,
            f"{len(data)} bytes of a {request_class.DESCRIPTOR.name} without raw tensors exceed the maximum of "
            f"{most_bytes}",
        )
    try:
        return request_class.FromString(data)
    except DecodeError as fault:
        raise InvalidInput(f"not a {request_class.DESCRIPTOR.name}: {fault}") from None


def _credentials(tls: ServerTls) -> Any:
    """The credentials of a server whose certificate may be renewed: gRPC asks for it at each handshake."""
    shown = tls.pem

    def configuration(pem: tuple[bytes, bytes]) -> Any:
        certificate, key = pem
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    def renewed() -> Any:
        nonlocal shown
        if tls.pem is shown:
            return None
        shown = tls.pem
        return configuration(shown)

    return grpc.dynamic_ssl_server_credentials(configuration(shown), renewed)


class GrpcServer:
    """A listening gRPC server; made by `start_grpc`."""

    def __init__(self, server: Any, port: int, sweeper: asyncio.Task[None]) -> None:
        self._server = server
        self._sweeper = sweeper
        self.port = port
        """The port it listens on, which is the operating system's choice if 0 was asked for."""

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no further call, let calls under way finish for at most `grace_s`, cancel the rest."""
        await self._server.stop(grace_s)
        self._sweeper.cancel()


async def start_grpc(
    data_plane: DataPlane,
    gate: Gate,
    log: RequestLog,
    host: str,
    port: int,
    tls: ServerTls | None = None,
    limits: GrpcLimits | None = None,
    budget: ByteBudget | None = None,
) -> GrpcServer:
    """Serve `data_plane` on `host`:`port`; `budget` is what all servers share.

    Raises `ServeError` if the port is taken or not permitted.
    """
    # gRPC says only that it failed; opening the port ourselves first says why.
    open_port("gRPC", host, port).close()
    limits = limits or GrpcLimits()
    front_end = GrpcFrontEnd(data_plane, gate, log, limits, budget)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),  # which would raise the windows of all calls that are not read
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
            ("grpc.max_allowed_incoming_connections", limits.max_connections),
            # gRPC keeps answers that a client does not read, after their calls have given back their places.
            ("grpc.max_concurrent_streams", sum(kind.most for kind in front_end.places)),
            ("grpc.server_handshake_timeout_ms", math.ceil(limits.handshake_timeout_s * 1e3)),
            ("grpc.so_reuseport", 0),
            # Who has gone without a word is noticed, also where no call is under way; who is there answers by itself.
            ("grpc.keepalive_time_ms", _PING_EVERY_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ],
    )
    server.add_generic_rpc_handlers(front_end.handlers())
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is not None:
            bound = server.add_secure_port(address, _credentials(tls))
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError as fault:
        raise ServeError(f"gRPC port {port} on {host}: {fault}") from None
    await server.start()
    sweeper = asyncio.get_running_loop().create_task(end_late_calls(front_end.places))
    return GrpcServer(server, bound, sweeper)
