"""Why a request is not answered, and what that is called in each protocol.

| kind | HTTP | gRPC | when |
|---|---|---|---|
| INVALID | 400 | INVALID_ARGUMENT | malformed request, wrong name, dtype, shape, key |
| UNAUTHENTICATED | 401 | UNAUTHENTICATED | missing or wrong token |
| FORBIDDEN | 403 | PERMISSION_DENIED | a web page of another site asks, or may, by a name that is not the server's |
| NOT_FOUND | 404 | NOT_FOUND | unknown path, model or version, to load or unload as well |
| WRONG_METHOD | 405 | UNIMPLEMENTED | GET where POST is due, or the reverse |
| TIMED_OUT | 408 | DEADLINE_EXCEEDED | the body or message came too slowly, or the request's `timeout` ran out |
| NO_LENGTH | 411 | INVALID_ARGUMENT | a body without Content-Length and not chunked |
| TOO_LARGE | 413 | RESOURCE_EXHAUSTED | beyond the maximum request size, or that of JSON |
| WRONG_CODING | 415 | UNIMPLEMENTED | a Content-Encoding other than gzip, deflate, identity |
| RATE_LIMITED | 429 | RESOURCE_EXHAUSTED | the token's request rate is used up, or all places for gRPC calls |
| HEAD_TOO_LARGE | 431 | RESOURCE_EXHAUSTED | request line and headers, or what frames chunks, beyond their limit |
| INTERNAL | 500 | INTERNAL | a worker or store failed, or a score is not finite |
| UNSUPPORTED | 501 | UNIMPLEMENTED | a part of the protocol that Hebe does not have |
| OVERLOADED | 503 | UNAVAILABLE | refused: queue or room for requests full, or too late, on arrival or after waiting |
| UNAVAILABLE | 503 | UNAVAILABLE | model not ready, server shutting down |

429, and 503 where it helps, carry `Retry-After`.
"""

from __future__ import annotations

from enum import Enum

NO_THREAD = "can't start new thread"
"""What Python says then."""
NO_THREAD_ADVICE = (
    "the system has no memory left for one, or no place: raise the limits of memory (ulimit -v), of processes (ulimit "
    "-u) and of tasks (TasksMax, pids.max), or have fewer workers"
)
"""What to do about it."""


def described(fault: BaseException) -> str:
    """`fault` with its type, and what to do where Python's own words do not lead there."""
    advice = f": {NO_THREAD_ADVICE}" if str(fault) == NO_THREAD else ""
    return f"{type(fault).__name__}: {fault}{advice}"


def quoted(value: object, most: int = 60) -> str:
    """What a client wrote, for a message: `most` characters of it, and of a list or an object only that it is one,
    since to be cut it would first be written out, megabytes of it perhaps.
    """
    match value:
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            value = value[:most]
    return repr(value)[:most]


def sendable(text: str) -> str:
    """`text` with what UTF-8 cannot carry written out, such as bytes of a path that is not UTF-8: gRPC would raise."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class ErrorKind(Enum):
    """What went wrong; the value is (HTTP status, name of the gRPC status code, name in metrics and logs)."""

    INVALID = (400, "INVALID_ARGUMENT", "invalid")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED", "unauthenticated")
    FORBIDDEN = (403, "PERMISSION_DENIED", "forbidden")
    NOT_FOUND = (404, "NOT_FOUND", "not_found")
    WRONG_METHOD = (405, "UNIMPLEMENTED", "wrong_method")
    TIMED_OUT = (408, "DEADLINE_EXCEEDED", "timed_out")
    NO_LENGTH = (411, "INVALID_ARGUMENT", "no_length")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED", "too_large")
    WRONG_CODING = (415, "UNIMPLEMENTED", "wrong_coding")
    RATE_LIMITED = (429, "RESOURCE_EXHAUSTED", "rate_limited")
    HEAD_TOO_LARGE = (431, "RESOURCE_EXHAUSTED", "head_too_large")
    INTERNAL = (500, "INTERNAL", "internal")
    UNSUPPORTED = (501, "UNIMPLEMENTED", "unsupported")
    OVERLOADED = (503, "UNAVAILABLE", "overloaded")
    UNAVAILABLE = (503, "UNAVAILABLE", "unavailable")

    @property
    def http_status(self) -> int:
        """HTTP status code."""
        return self.value[0]

    @property
    def grpc_status(self) -> str:
        """Name of the gRPC status code."""
        return self.value[1]

    @property
    def is_failure(self) -> bool:
        """Whether the server is to blame, for another reason than its load."""
        return self in (ErrorKind.INTERNAL, ErrorKind.UNAVAILABLE)

    @property
    def label(self) -> str:
        """The name in metrics and logs."""
        return self.value[2]


MOST_MESSAGE_BYTES = 1000
"""Of a message that is sent, as UTF-8: it may quote what a client wrote, and gRPC carries it in 8 KB of trailers, in
which what is not ASCII takes three times its bytes."""


class RequestError(Exception):
    """A request that is answered with an error.

    `kind` says which; `message` names the field and the limit, `sendable` and cut to `MOST_MESSAGE_BYTES`;
    `retry_after_s` > 0 is when it is worth trying again; `reason` is the scheduler's word for a refusal, or the kind's
    label. `counted`: whether it is in the statistics already, which the front ends ask before they count it. `rest_s`:
    for how long the client is then left alone (`access.refusal_throttle`).
    """

    def __init__(self, kind: ErrorKind, message: str, *, retry_after_s: float = 0.0, reason: str | None = None) -> None:
        if len(message) > MOST_MESSAGE_BYTES or not message.isascii():
            message = _cut(message)
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s
        self.reason = reason or kind.label
        self.counted = False
        self.rest_s = 0.0


def _cut(message: str) -> str:
    whole = sendable(message[:MOST_MESSAGE_BYTES]).encode()
    if len(message) <= MOST_MESSAGE_BYTES and len(whole) <= MOST_MESSAGE_BYTES:
        return whole.decode()
    return whole[: MOST_MESSAGE_BYTES - 4].decode("utf-8", "ignore") + "..."


class InvalidInput(RequestError):
    """The request contradicts the protocol or the model; nothing was computed."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(ErrorKind.INVALID, message, reason=reason)


class ServeError(Exception):
    """A front end cannot start; the message names the port or file and what to do."""


class QueryRefused(Exception):
    """The scheduler will not answer a query: `reason` is one of `scheduling.events.RejectReason`.

    `timed_out`: the time that the request itself allowed is over, rather than the model's latency bound.
    """

    def __init__(self, reason: str, message: str, retry_after_s: float = 0.0, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.reason = str(reason)
        self.message = message
        self.retry_after_s = retry_after_s
        self.timed_out = timed_out


class QueryFailed(Exception):
    """A worker or a store failed while a query ran."""


class UnknownModel(Exception):
    """No such model, or no such version of it."""


class ModelNotReady(Exception):
    """The model exists but takes no queries yet, or none any more."""


class LoadFailed(Exception):
    """A model could not be loaded; whatever was loaded before still is."""


_REFUSALS = {
    "deadline": ErrorKind.OVERLOADED,
    "queue_full": ErrorKind.OVERLOADED,
    "expired": ErrorKind.OVERLOADED,
}


def as_request_error(fault: Exception) -> RequestError:
    """How `fault`, raised by the model host, a model or a front end, is answered."""
    match fault:
        case RequestError():
            return fault
        case QueryRefused():
            kind = ErrorKind.TIMED_OUT if fault.timed_out else _REFUSALS.get(fault.reason, ErrorKind.UNAVAILABLE)
            return RequestError(kind, fault.message, retry_after_s=fault.retry_after_s, reason=fault.reason)
        case UnknownModel():
            return RequestError(ErrorKind.NOT_FOUND, str(fault))
        case ModelNotReady():
            return RequestError(ErrorKind.UNAVAILABLE, str(fault), retry_after_s=1.0, reason="not_ready")
        case LoadFailed():
            return InvalidInput(str(fault))
        case QueryFailed():
            return RequestError(ErrorKind.INTERNAL, str(fault), reason="failed")
        case _:
            message = "internal error; the server's log has the details"
            error = RequestError(ErrorKind.INTERNAL, message, reason="internal")
            error.__cause__ = fault
            return error


def release(error: RequestError) -> None:
    """Let go of the frames that `error`, now answered, came through, and of what caused it.

    Those frames hold the request, and they and the error hold each other: its buffers would stay until the next full
    garbage collection, which thousands of refused queries may not bring about.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
