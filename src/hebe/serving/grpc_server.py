"""The Open Inference Protocol over gRPC, and `grpc.health.v1`, on the running event loop.

Each method is a conversion to and from what the HTTP front end uses too. Errors become the status codes of
`errors`; what is worth trying again carries `grpc-retry-pushback-ms`, which gRPC's own retries obey.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from hebe.serving.auth import Gate
from hebe.serving.data_plane import DataPlane
from hebe.serving.errors import (
    ErrorKind,
    InvalidInput,
    ModelNotReady,
    RequestError,
    ServeError,
    UnknownModel,
    as_request_error,
    release,
)
from hebe.serving.grpc_infer import decode_infer, encode_answer, parameters_of, split_raw_contents
from hebe.serving.listening import TlsFiles, open_port
from hebe.serving.logs import RequestLog
from hebe.serving.model_config import model_config, model_metadata, server_metadata
from hebe.serving.protocol import SERVICE, message, methods
from hebe.serving.repository_control import RepositoryControl
from hebe.serving.settings import FIXED_SETTINGS, LOG_SETTINGS, NO_SHARED_MEMORY, TRACE_SETTINGS

_HEALTH = "grpc.health.v1.Health"
_OPEN_METHODS = ("ServerLive", "ServerReady")
_POLL_S = 0.25
MAX_CALLS = 1024
"""Calls under way at once; further ones are refused with RESOURCE_EXHAUSTED before they are read."""

_STREAM_AHEAD = 64
"""Requests of one stream that may be under way at once; answers keep their order."""

Method = Callable[[Any, Any], Awaitable[Any]]


class GrpcFrontEnd:
    """Answers gRPC calls from a data plane."""

    def __init__(self, data_plane: DataPlane, gate: Gate, log: RequestLog) -> None:
        self._data_plane = data_plane
        self._host = data_plane.host
        self._repository = RepositoryControl(data_plane.host)
        self._clock = data_plane.clock
        self._gate = gate
        self._log = log

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
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, request, served.get(name) or _shared_memory(name, response))
            )
            for name, (request, response) in methods().items()
            if name not in ("ModelInfer", "ModelStreamInfer")
        }
        infer = self._unary("ModelInfer", bytes, self._model_infer)
        inference["ModelInfer"] = grpc.unary_unary_rpc_method_handler(infer)
        inference["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._model_stream_infer)
        health = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._unary("Check", health_pb2.HealthCheckRequest, self._health_check)
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(self._health_watch),
        }
        return [
            grpc.method_handlers_generic_handler(SERVICE, inference),
            grpc.method_handlers_generic_handler(_HEALTH, health),
        ]

    # -- calls

    def _unary(self, name: str, request_class: Any, act: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """`act` as gRPC calls it: admitted, parsed (unless `request_class` is bytes), errors made status codes."""
        is_open = name in _OPEN_METHODS or name == "Check"

        async def call(data: bytes, context: Any) -> bytes:
            try:
                if not is_open:
                    self._admit(context)
                answer = await act(data if request_class is bytes else _parse(request_class, data), context)
                response: bytes = answer.SerializeToString()
                return response
            except Exception as fault:
                error = as_request_error(fault)
            del data  # gRPC keeps what abort raises, and with it this frame, until the next full garbage collection
            await self._abort(context, name, error)
            raise AssertionError("abort raises")

        return call

    def _admit(self, context: Any) -> None:
        """Raise `RequestError` unless the call's metadata carries a token with requests left."""
        authorization = None
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                authorization = value if isinstance(value, str) else None
        try:
            self._gate.admit(authorization, self._clock())
        except RequestError as error:
            self._data_plane.statistics.refused[error.reason] += 1
            raise

    async def _abort(self, context: Any, name: str, error: RequestError) -> None:
        self._log.refused("grpc", name, error, context.peer())
        release(error)
        metadata: tuple[tuple[str, str], ...] = ()
        if error.retry_after_s > 0:
            wait_ms = math.ceil(min(error.retry_after_s, 3600.0) * 1e3)
            metadata = (("grpc-retry-pushback-ms", str(wait_ms)),)
        await context.abort(grpc.StatusCode[error.kind.grpc_status], error.message, metadata)

    # -- inference

    async def _infer(self, data: bytes, context: Any, arrival_s: float) -> Any:
        rest, raw_contents = split_raw_contents(data)
        request = _parse(message("ModelInferRequest"), rest)
        remaining_s = context.time_remaining()
        deadline_s = math.inf if remaining_s is None else arrival_s + remaining_s
        try:
            decoded, raw = decode_infer(request, arrival_s, deadline_s, raw_contents)
        except InvalidInput as error:
            self._data_plane.statistics.refused[error.reason] += 1
            raise
        decoded.trace_parent = next(
            (value for key, value in context.invocation_metadata() or () if key == "traceparent"), None
        )
        answer = await self._data_plane.infer(decoded)
        start_s = self._clock()
        response = encode_answer(answer, raw)
        answer.statistics.answer_encoded(self._clock() - start_s)
        return response

    async def _model_infer(self, data: bytes, context: Any) -> Any:
        return await self._infer(data, context, self._clock())

    async def _model_stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers in the order of the requests; an error is an answer and does not end the stream."""
        try:
            self._admit(context)
        except RequestError as error:
            await self._abort(context, "ModelStreamInfer", error)
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(_STREAM_AHEAD)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            first = True
            async for data in requests:
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
                yield await task
        finally:
            for left in list(tasks):
                left.cancel()

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
        try:
            if not admitted:
                self._admit(context)
            response.infer_response.id = _parse(message("ModelInferRequest"), split_raw_contents(data)[0]).id
            response.infer_response.CopyFrom(await self._infer(data, context, arrival_s))
            response.infer_response.parameters["triton_final_response"].bool_param = True
        except Exception as fault:
            error = as_request_error(fault)
            self._log.refused("grpc", "ModelStreamInfer", error, context.peer())
            response.error_message = error.message
            release(error)
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
        config = model_config(self._host.find(request.name, request.version or None))
        return ParseDict({"config": config}, message("ModelConfigResponse")(), ignore_unknown_fields=True)

    async def _model_statistics(self, request: Any, _context: Any) -> Any:
        documents = self._data_plane.statistics_documents(request.name, request.version)
        return ParseDict({"model_stats": documents}, message("ModelStatisticsResponse")())

    def _serving_status(self, service: str) -> int | None:
        """Of the whole server, of the inference service (the same), or of a model by name; None if unknown."""
        if service in ("", SERVICE, _HEALTH):
            ready = self._host.live and self._host.ready
        else:
            try:
                ready = self._host.find(service, None).ready
            except UnknownModel:
                return None
            except ModelNotReady:
                ready = False
        status = health_pb2.HealthCheckResponse
        return int(status.SERVING if ready else status.NOT_SERVING)

    async def _health_check(self, request: Any, _context: Any) -> Any:
        status = self._serving_status(request.service)
        if status is None:
            raise RequestError(ErrorKind.NOT_FOUND, f"service {request.service!r:.100} is unknown")
        return health_pb2.HealthCheckResponse(status=status)

    async def _health_watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """The status now, and every change of it, for as long as the client listens and the server lives."""
        try:
            service = _parse(health_pb2.HealthCheckRequest, data).service
        except RequestError as error:
            await self._abort(context, "Watch", error)
            return
        told = None
        while True:
            status = self._serving_status(service)
            if status is None:
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status).SerializeToString()
            if not self._host.live:
                return
            await asyncio.sleep(_POLL_S)

    # -- repository and settings

    async def _repository_index(self, request: Any, _context: Any) -> Any:
        return message("RepositoryIndexResponse")(models=self._repository.index(request.ready))

    async def _repository_load(self, request: Any, _context: Any) -> Any:
        await self._repository.load(request.model_name, parameters_of(request.parameters))
        return message("RepositoryModelLoadResponse")()

    async def _repository_unload(self, request: Any, _context: Any) -> Any:
        await self._repository.unload(request.model_name)
        return message("RepositoryModelUnloadResponse")()

    async def _trace_setting(self, request: Any, _context: Any) -> Any:
        if request.settings:
            raise RequestError(ErrorKind.UNSUPPORTED, FIXED_SETTINGS)
        response = message("TraceSettingResponse")()
        for name, value in TRACE_SETTINGS.items():
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


def _shared_memory(name: str, response_class: Any) -> Method:
    """Shared-memory methods: no regions to list or remove, and none can be registered."""

    async def act(_request: Any, _context: Any) -> Any:
        if name.endswith("Register"):
            raise RequestError(ErrorKind.UNSUPPORTED, NO_SHARED_MEMORY)
        return response_class()

    return act


def _parse(request_class: Any, data: bytes) -> Any:
    try:
        return request_class.FromString(data)
    except DecodeError as fault:
        raise InvalidInput(f"not a {request_class.DESCRIPTOR.name}: {fault}") from None


class GrpcServer:
    """A listening gRPC server; made by `start_grpc`."""

    def __init__(self, server: Any, port: int) -> None:
        self._server = server
        self.port = port
        """The port it listens on, which is the operating system's choice if 0 was asked for."""

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no further call, let calls under way finish for at most `grace_s`, cancel the rest."""
        await self._server.stop(grace_s)


async def start_grpc(
    data_plane: DataPlane,
    gate: Gate,
    log: RequestLog,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
    max_request_bytes: int = 64 * 1024 * 1024,
    max_calls: int = MAX_CALLS,
) -> GrpcServer:
    """Serve `data_plane` on `host`:`port`.

    Raises `ServeError` if the port is taken or not permitted, or the TLS files are not usable.
    """
    # gRPC says only that it failed; opening the port ourselves first says why.
    open_port("gRPC", host, port).close()
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ],
        maximum_concurrent_rpcs=max_calls,
    )
    server.add_generic_rpc_handlers(GrpcFrontEnd(data_plane, gate, log).handlers())
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is not None:
            certificate, key = tls.read()
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError as fault:
        raise ServeError(f"gRPC port {port} on {host}: {fault}") from None
    await server.start()
    return GrpcServer(server, bound)
