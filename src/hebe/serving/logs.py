"""Structured logs: one line an event, JSON for machines or coloured columns for people.

Requests that are refused or fail get a line each, up to a rate; how many more there were is on the next line.
A line that cannot be written, since the disk is full or whoever read them has gone, is lost; no request fails for it.
Neither payloads nor tokens are ever logged.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any, Literal, TextIO, cast

import structlog
import structlog.tracebacks

from hebe.serving.errors import ErrorKind, RequestError

LogFormat = Literal["json", "console"]


def configure_logging(log_format: LogFormat = "console", level: str = "info") -> None:
    """Send this process's structured logs to stderr in `log_format`, from `level` up."""
    # Neither form of traceback shows local variables: those would be payloads and tokens.
    renderers: list[Any] = (
        [
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if log_format == "json"
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    plain = logging.getLogger("hebe")  # of the rooms below, which know no structlog
    plain.handlers = [_ToStructlog()]
    plain.setLevel(level.upper())
    root = logging.getLogger()
    if not root.handlers:  # else it is the program's, which has said where other packages' lines go
        others = _ToStructlog(logging.WARNING)
        others.addFilter(lambda record: not _is_ours(record))
        root.addHandler(others)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "hebe"


class _Lossy:
    """A stream to which lines are written if they can be."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, or do not."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, or do not: what was not written is tried again with the next line, as far as it is kept."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class _ToStructlog(logging.Handler):
    """Hands lines of the standard library's loggers on, so that all of them have one form."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {} if _is_ours(record) else {"logger": record.name}
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info, **fields)


class RequestLog:
    """Logs requests that were not answered, at most `lines_per_s` of each kind of error."""

    def __init__(self, clock: Callable[[], float], lines_per_s: float = 5.0) -> None:
        self._clock = clock
        self._gap_s = 1.0 / lines_per_s
        self._next_s: dict[ErrorKind, float] = {}
        self._skipped: dict[ErrorKind, int] = {}
        self._log = structlog.get_logger("hebe.serving")

    def refused(self, protocol: str, what: str, error: RequestError, peer: str = "") -> None:
        """Log that the request `what` (method and path, or RPC) was answered with `error`."""
        kind = error.kind
        now = self._clock()
        if now < self._next_s.get(kind, now):
            self._skipped[kind] = self._skipped.get(kind, 0) + 1
            return
        self._next_s[kind] = now + self._gap_s
        fields: dict[str, Any] = {
            "protocol": protocol,
            "request": what[:200],
            "reason": error.reason,
            "message": error.message[:500],
        }
        if peer:
            fields["peer"] = peer
        skipped = self._skipped.pop(kind, 0)
        if skipped:
            fields["not_logged"] = skipped
        if kind is ErrorKind.INTERNAL:
            self._log.error("request failed", **fields, exc_info=error.__cause__)
        else:
            self._log.warning("request refused", **fields)
