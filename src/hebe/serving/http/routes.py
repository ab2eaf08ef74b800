"""The Open Inference Protocol over HTTP: paths to answers.

Served: health, server and model metadata, Triton's model configuration, inference (`infer_codec`), statistics, the
model repository, and the settings and shared-memory status that Triton's clients ask for; beside the protocol, the
server's status and prefetching. Everything but the server's health needs a token where tokens are set.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

from hebe.serving.access.auth import Gate
from hebe.serving.access.byte_budget import REQUESTS_IN_BUDGET, ByteBudget
from hebe.serving.data_plane import DataPlane
from hebe.serving.hosting.model_metadata import model_config, model_metadata, server_metadata
from hebe.serving.hosting.repository_control import RepositoryControl, check_fields
from hebe.serving.http.content_coding import MIN_COMPRESS_BYTES, accepted_coding, compress, decompress
from hebe.serving.http.infer_codec import (
    AS_BINARY,
    HttpInfer,
    announce_infer,
    decode_infer,
    decode_raw_infer,
    encode_answer,
    parse_header_length,
    parse_infer_document,
    parse_json_object,
)
from hebe.serving.http.same_origin import OwnSite
from hebe.serving.http1.messages import JSON_LENGTH_HEADER, HttpLimits, HttpRequest, HttpResponse, refusal_headers
from hebe.serving.monitoring.logs import RequestLog
from hebe.serving.monitoring.status import ServerStatus
from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError, as_request_error, quoted, release
from hebe.serving.requests.infer_request import InferRequest
from hebe.serving.requests.memo import MOST_HEADER_BYTES, KnownHeaders
from hebe.serving.requests.settings import FIXED_SETTINGS, LOG_SETTINGS, NO_SHARED_MEMORY, trace_settings

_SHARED_MEMORY = ("systemsharedmemory", "cudasharedmemory")

_Action = Callable[[HttpRequest, "_Route"], Awaitable[HttpResponse]]


@dataclass(slots=True)
class _Route:
    """What a path and method ask for; `open` needs no token and takes no body, `poll` is asked again and again,
    `tensors` needs a body of them, `infer` is admitted as a query besides.

    `document` is the JSON header of an inference request, once `preview` has read it.
    """

    act: _Action
    model: str = ""
    version: str = ""
    open: bool = False
    tensors: bool = False
    infer: bool = False
    poll: bool = False
    document: dict[str, Any] | None = None


class HttpFrontEnd:
    """Answers HTTP requests from a data plane, on the address or name `listens_on`; a `http1.messages.Handler`."""

    def __init__(
        self,
        data_plane: DataPlane,
        gate: Gate,
        log: RequestLog,
        limits: HttpLimits | None = None,
        budget: ByteBudget | None = None,
        listens_on: str = "",
    ) -> None:
        self._data_plane = data_plane
        self._host = data_plane.host
        self._repository = RepositoryControl(data_plane.host)
        self._status = ServerStatus(data_plane.host, data_plane.statistics)
        self._clock = data_plane.clock
        self._gate = gate
        self._site = OwnSite(listens_on)
        self._log = log
        limits = limits or HttpLimits()
        self._max_bytes, self._max_json_bytes = limits.max_request_bytes, limits.max_json_bytes
        self._budget = budget or ByteBudget(REQUESTS_IN_BUDGET * limits.max_request_bytes)
        self._known = KnownHeaders()
        self._fixed = self._routes()
        self._by_model = self._model_routes()

    # -- the connection's side

    def screen(self, head: HttpRequest) -> HttpResponse | None:
        """Answer what need not be read: unknown paths, missing tokens, exceeded rates, pages of other sites, inference
        without a body, health with one.
        """
        try:
            route = head.route = self._route(head.method, head.path)
            headers = head.headers
            if not self._gate.asks:
                self._site.check(head)
            if not route.open:
                self._gate.admit(head.header(b"authorization"), head.arrival_s)
            elif headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
                raise InvalidInput(f"path {head.path!r:.200} takes no body")
            if route.tensors and b"content-length" not in headers and b"transfer-encoding" not in headers:
                raise RequestError(
                    ErrorKind.NO_LENGTH, "inference needs a body with header Content-Length, or a chunked one"
                )
            if not (route.tensors and JSON_LENGTH_HEADER in headers):
                self._check_json_size(int(headers.get(b"content-length", b"0")))
        except Exception as fault:
            return self.refuse(as_request_error(fault), head)
        if not route.tensors:
            head.most_bytes = self._max_json_bytes
        return None

    def _check_json_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_json_bytes:
            raise RequestError(
                ErrorKind.TOO_LARGE,
                f"{size_bytes} bytes of JSON exceed the maximum of {self._max_json_bytes}; {AS_BINARY}",
            )

    def preview(self, request: HttpRequest, start: memoryview) -> HttpResponse | None:
        """Refuse an inference request by its JSON header what admission would refuse once the tensors were read, while
        it refuses anything: of a query that will be taken, asking would be in vain.
        """
        route: _Route = request.route
        if not route.infer or request.header(b"content-encoding") is not None or len(start) > self._max_json_bytes:
            return None
        try:
            if not self._data_plane.refuses_of_late(route.model, route.version):
                return None
            known = self._known.find(_header_of(route, start))
            if known is not None and known.is_of(self._data_plane.decoder(route.model, route.version)):
                announced, items = replace(known.request, arrival_s=request.arrival_s), known.items
            else:
                route.document = parse_infer_document(start, len(start))
                announced, items = announce_infer(route.model, route.version, route.document, request.arrival_s)
            announced.trace_parent = request.header(b"traceparent")
            error = self._data_plane.refusal(announced, items)
        except Exception:  # whatever is wrong with it is told once it has been read
            return None
        return None if error is None else self.refuse(error, request)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The answer to a whole request."""
        route: _Route = request.route
        held_bytes = 0
        try:
            if (coding := request.header(b"content-encoding")) is not None and len(request.body):
                if route.tensors and JSON_LENGTH_HEADER in request.headers:
                    request.body = await decompress(request.body, coding, self._max_bytes)
                else:
                    advice = f"; {AS_BINARY}" if route.tensors else ""
                    most = min(self._max_bytes, self._max_json_bytes)
                    request.body = await decompress(request.body, coding, most, advice)
                self._budget.take(len(request.body))
                held_bytes = len(request.body)
            response = await route.act(request, route)
        except Exception as fault:
            error = as_request_error(fault)
            # That a server is not ready yet is the answer to such a question, not an event.
            response = _refusal(error) if route.poll else self.refuse(error, request)
            release(error)
            return response
        finally:
            if held_bytes:
                self._budget.give(held_bytes)
        # Only scores: tritonclient.http.aio accepts gzip for everything, and unpacks these alone.
        if route.infer and len(response.body) >= MIN_COMPRESS_BYTES:
            return _compressed(request, response)
        return response

    def refuse(self, error: RequestError, head: HttpRequest | None) -> HttpResponse:
        """The answer to what is refused or failed, counted, on its model if it asks one for scores, and logged."""
        if not error.counted:
            self._data_plane.count_refused(error, None if head is None else self._asked(head))
        what, peer = (f"{head.method} {head.path}", head.peer) if head is not None else ("", "")
        self._log.refused("http", what, error, peer)
        return _refusal(error)

    def _asked(self, head: HttpRequest) -> InferRequest | None:
        """What the head tells of a request for scores; None of all else, and of who has no token to speak for
        clients.
        """
        route: _Route | None = head.route
        if route is None:  # refused before it was screened
            with contextlib.suppress(RequestError):
                route = self._route(head.method, head.path)
        if route is None or not route.infer or not self._gate.knows(head.header(b"authorization")):
            return None
        trace_parent = head.header(b"traceparent")
        return InferRequest(route.model, route.version, "", (), head.arrival_s, trace_parent=trace_parent)

    # -- paths

    def _routes(self) -> dict[str, dict[str, _Route]]:
        """Fixed paths below `/v2`, then what each method does there."""
        shared_memory = {}
        for kind in _SHARED_MEMORY:
            shared_memory[f"{kind}/status"] = {"GET": _Route(self._no_regions)}
            shared_memory[f"{kind}/unregister"] = {"POST": _Route(self._nothing)}
        return {
            "": {"GET": _Route(self._server_metadata)},
            "health/live": {"GET": _Route(self._live, open=True, poll=True)},
            "health/ready": {"GET": _Route(self._ready, open=True, poll=True)},
            "models/stats": {"GET": _Route(self._statistics)},
            "repository/index": {"POST": _Route(self._index)},
            "status": {"GET": _Route(self._server_status)},
            "trace/setting": {"GET": _Route(self._trace_settings), "POST": _Route(self._fixed_settings)},
            "logging": {"GET": _Route(self._log_settings), "POST": _Route(self._fixed_settings)},
            **shared_memory,
        }

    def _model_routes(self) -> dict[str, dict[str, _Action]]:
        """What can follow `/v2/models/NAME[/versions/VERSION]`."""
        return {
            "": {"GET": self._model_metadata},
            "infer": {"POST": self._infer},
            "prefetch": {"POST": self._prefetch},
            "ready": {"GET": self._model_ready},
            "config": {"GET": self._model_config},
            "stats": {"GET": self._statistics},
            "trace/setting": {"GET": self._trace_settings, "POST": self._fixed_settings},
        }

    def _route(self, method: str, path: str) -> _Route:
        """What `method` and `path` ask for. Raises `RequestError` NOT_FOUND or WRONG_METHOD."""
        parts = path.split("/")[1:]
        if "%" in path:
            parts = [unquote(part) for part in parts]
        if parts[-1:] == [""]:
            parts.pop()
        if parts[:1] != ["v2"]:
            raise _no_such_path(path)
        fixed = self._fixed.get("/".join(parts[1:]))
        if fixed is not None:
            return fixed[_method(method, fixed)]
        if parts[1:2] == ["models"] and len(parts) > 2:
            model, version, rest = parts[2], "", parts[3:]
            if rest[:1] == ["versions"] and len(rest) > 1:
                version, rest = rest[1], rest[2:]
            acts = self._by_model.get("/".join(rest))
            if acts is not None:
                act = acts[_method(method, acts)]
                infer = rest == ["infer"]
                tensors = infer or rest == ["prefetch"]
                return _Route(act, model, version, tensors=tensors, infer=infer, poll=rest == ["ready"])
        if parts[1:3] == ["repository", "models"] and len(parts) == 5 and parts[4] in ("load", "unload"):
            _method(method, {"POST": None})
            return _Route(self._load if parts[4] == "load" else self._unload, parts[3])
        if len(parts) == 5 and parts[1] in _SHARED_MEMORY and parts[2] == "region":
            shared = {"status": self._no_regions, "unregister": self._nothing, "register": self._no_shared_memory}
            if parts[4] in shared:
                _method(method, {"GET" if parts[4] == "status" else "POST": None})
                return _Route(shared[parts[4]])
        raise _no_such_path(path)

    # -- answers

    async def _infer(self, request: HttpRequest, route: _Route) -> HttpResponse:
        infer = self._decoded(request, route)
        infer.request.trace_parent = request.header(b"traceparent")
        answer = await self._data_plane.infer(infer.request)
        start_s = self._clock()
        content, content_type, header_length = encode_answer(answer, infer.binary)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if header_length is not None:
            headers = ((JSON_LENGTH_HEADER, str(header_length).encode()),)
        answer.statistics.answer_encoded(self._clock() - start_s)
        return HttpResponse(200, content, content_type, headers)

    async def _prefetch(self, request: HttpRequest, route: _Route) -> HttpResponse:
        return _json({"accepted": await self._data_plane.prefetch(self._decoded(request, route).request)})

    def _decoded(self, request: HttpRequest, route: _Route) -> HttpInfer:
        """What a body with tensors asks."""
        body = request.body
        length = parse_header_length(request.header(JSON_LENGTH_HEADER), len(body))
        self._check_json_size(len(body) if length is None else length)
        if length == 0:
            spec = self._host.find(route.model, route.version or None).spec
            return decode_raw_infer(route.model, route.version, body, spec, request.arrival_s)
        decoder = self._data_plane.decoder(route.model, route.version)
        most = decoder.most_values, decoder.most_inputs
        model, version, arrival_s = route.model, route.version, request.arrival_s
        if length is None:
            return decode_infer(model, version, parse_infer_document(body, None), None, arrival_s, *most)
        header, tensors = _header_of(route, body[:length]), body[length:]
        known = self._known.find(header)
        if known is not None and known.is_of(decoder):
            asked = known.read(tensors, len(tensors), arrival_s)
            if asked is not None:
                return HttpInfer(asked, known.binary)
        document = route.document or parse_infer_document(body, length)
        infer = decode_infer(model, version, document, tensors, arrival_s, *most)
        if self._known.comes_again(header, decoder):
            ends = list(accumulate(tensor.values.nbytes for tensor in infer.request.tensors))
            if ends[-1] == len(tensors):  # none is in the JSON
                self._known.keep(header, infer.request, [0, *ends[:-1]], len(tensors), decoder, binary=infer.binary)
        return infer

    async def _live(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        if not self._host.live:
            raise RequestError(ErrorKind.UNAVAILABLE, "the server is not live")
        return _json({"live": True})

    async def _ready(self, request: HttpRequest, _route: _Route) -> HttpResponse:
        if not self._host.ready:
            raise RequestError(ErrorKind.UNAVAILABLE, "the server is not ready", reason="not_ready")
        answer: dict[str, Any] = {"ready": True}
        degraded = {
            model.spec.name: {"degraded": list(model.degraded)} for model in self._host.hosted if model.degraded
        }
        # Anybody may ask whether the server is ready, but what it serves is told only to who has a token.
        if degraded and self._gate.knows(request.header(b"authorization")):
            answer["models"] = degraded
        return _json(answer)

    async def _server_status(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        return _json(self._status.document())

    async def _server_metadata(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        return _json(server_metadata())

    async def _model_metadata(self, _request: HttpRequest, route: _Route) -> HttpResponse:
        model = self._host.find(route.model, route.version or None)
        return _json(model_metadata(model, self._repository.ready_versions(route.model)))

    async def _model_ready(self, _request: HttpRequest, route: _Route) -> HttpResponse:
        model = self._host.find(route.model, route.version or None)
        if not model.ready:
            message = f"model {route.model} is not ready: {model.trouble}"
            raise RequestError(ErrorKind.UNAVAILABLE, message, reason="not_ready")
        answer: dict[str, Any] = {"name": route.model, "ready": True}
        if model.degraded:
            answer["degraded"] = list(model.degraded)
        return _json(answer)

    async def _model_config(self, _request: HttpRequest, route: _Route) -> HttpResponse:
        return _json(model_config(self._host.find(route.model, route.version or None), self._max_bytes))

    async def _statistics(self, _request: HttpRequest, route: _Route) -> HttpResponse:
        return _json({"model_stats": self._data_plane.statistics_documents(route.model, route.version)})

    async def _index(self, request: HttpRequest, _route: _Route) -> HttpResponse:
        wanted = parse_json_object(request.body, "the request's body")
        check_fields(wanted, "ready", "an index request")
        ready = wanted.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidInput(f"field 'ready' is {quoted(ready)}; it must be true or false")
        return _json(await self._repository.index(ready))

    async def _load(self, request: HttpRequest, route: _Route) -> HttpResponse:
        await self._repository.load(route.model, _parameters(request, "a load request"))
        return _json({})

    async def _unload(self, request: HttpRequest, route: _Route) -> HttpResponse:
        _parameters(request, "an unload request")  # such as Triton's `unload_dependents`: there are none here
        await self._repository.unload(route.model)
        return _json({})

    async def _trace_settings(self, _request: HttpRequest, route: _Route) -> HttpResponse:
        if route.model:
            self._host.find(route.model, route.version or None)
        return _json(trace_settings(on=self._data_plane.traces))

    async def _log_settings(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        return _json(LOG_SETTINGS)

    async def _fixed_settings(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        raise RequestError(ErrorKind.UNSUPPORTED, FIXED_SETTINGS)

    async def _no_regions(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        return _json([])

    async def _nothing(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        return _json({})

    async def _no_shared_memory(self, _request: HttpRequest, _route: _Route) -> HttpResponse:
        raise RequestError(ErrorKind.UNSUPPORTED, NO_SHARED_MEMORY)


def _parameters(request: HttpRequest, what: str) -> dict[str, Any]:
    """Field `parameters` of a request, `what`, whose body has no other and may be empty. Raises `InvalidInput`."""
    document = parse_json_object(request.body, "the request's body")
    check_fields(document, "parameters", what)
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput(f"field 'parameters' is {quoted(parameters)}; it must be an object")
    return parameters


def _header_of(route: _Route, json_header: memoryview) -> bytes:
    """What a request says but for its tensors; nothing if it says much."""
    if len(json_header) > MOST_HEADER_BYTES:
        return b""
    return b"%s/%s:%s" % (route.model.encode(), route.version.encode(), json_header)


def _method(method: str, allowed: Mapping[str, object]) -> str:
    """`method` as one of `allowed` (HEAD as GET). Raises `RequestError` WRONG_METHOD."""
    if method == "HEAD":
        method = "GET"
    if method not in allowed:
        raise RequestError(ErrorKind.WRONG_METHOD, f"method {method} is not for this path; use {', '.join(allowed)}")
    return method


def _no_such_path(path: str) -> RequestError:
    return RequestError(ErrorKind.NOT_FOUND, f"path {path!r:.200} is not part of the protocol as served here")


def _json(document: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> HttpResponse:
    return HttpResponse(status, json.dumps(document, separators=(",", ":")).encode(), headers=headers)


def _refusal(error: RequestError) -> HttpResponse:
    response = _json({"error": error.message}, error.kind.http_status, refusal_headers(error))
    response.rest_s = error.rest_s
    return response


def _compressed(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """`response` in the coding that the client asks for, if it asks and that is shorter.

    `Inference-Header-Content-Length` stays that of the body as it was, as Triton's clients read it.
    """
    accept_encoding = request.header(b"accept-encoding")
    coding = accepted_coding(accept_encoding)
    # Raw scores shrink by a tenth at best: not worth its time for those libraries that list all they know unasked.
    unasked = response.content_type != b"application/json" and "," in (accept_encoding or "")
    if coding is None or unasked:
        return response
    body = compress(response.body, coding)
    if len(body) >= len(response.body):
        return response
    headers = (*response.headers, (b"content-encoding", coding.encode()), (b"vary", b"accept-encoding"))
    return HttpResponse(response.status, body, response.content_type, headers)
