"""Structured logs: one line an event, JSON for machines or coloured columns for people.

Requests that are refused or fail get a line each, up to a rate; how many more there were is on the next line.
A line that cannot be written, since the disk is full or whoever reads them has gone or stands still, is lost; no
request fails or waits for it.
Neither payloads nor tokens are ever logged.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TextIO, cast

import structlog
import structlog.tracebacks

from hebe.serving.requests.errors import ErrorKind, RequestError

LogFormat = Literal["json", "console"]

_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)
"""Others' loggers have levels between these."""
_GRPC_CORE = "grpc._cython.cygrpc"
"""A logger, and the module of its faults."""
_MOST_WAITING = 1000
"""Lines that are kept for whoever reads them slowly."""
_WRITE_S = 0.1
"""How long the caller waits for its line to be written, so that it is there when the next thing happens."""
_LAST_S = 1.0
"""How long the process waits at its end for the lines that are left."""


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
    logging.getLogger(_GRPC_CORE).addFilter(_is_no_gone_client)  # once, however often this is called
    root = logging.getLogger()
    if not root.handlers:  # else it is the program's, which has said where other packages' lines go
        others = _ToStructlog(logging.WARNING)
        others.addFilter(lambda record: not _is_ours(record))
        root.addHandler(others)


def _is_no_gone_client(record: logging.LogRecord) -> bool:
    """Whether `record` is another than gRPC's of a client who left while its answer was written: that is no error, and
    gRPC tells it with a stack trace. By name, as this module is for those as well who need no gRPC.
    """
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or (kind.__module__, kind.__qualname__) != (_GRPC_CORE, "ExecuteBatchError")


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "hebe"


class _Lossy:
    """A stream to which lines are written if they can be.

    A thread writes them, since whoever reads a pipe or a terminal may stand still: that stops a write and, on the event
    loop, would stop the server. What is logged is written when `flush` returns, as long as the reader keeps up; the
    thread lasts until no line is left.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""
        self._waiting: deque[str] = deque()
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        atexit.register(self._drain)

    def write(self, text: str) -> None:
        """Begin a line, or go on with it. structlog lets one thread at a time write one."""
        self._begun += text

    def flush(self) -> None:
        """Have the line written, or not; nobody waits again until a reader who stood still has read all there is."""
        line, self._begun = self._begun, ""
        with self._lock:
            if len(self._waiting) == _MOST_WAITING:
                return
            self._waiting.append(line)
            if self._writer is not None and self._writer.is_alive():  # which it is not in a process that was forked
                return
            writer = threading.Thread(target=self._write_lines, name="hebe-log", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is to be had
                writer.start()
                self._writer = writer
        if writer.ident is None:
            self._write_lines()
        else:
            writer.join(_WRITE_S)

    def _write_lines(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._writer = None
                    return
                line = self._waiting.popleft()
            with contextlib.suppress(OSError, ValueError):  # the latter: it is closed
                self._write_line(line)

    def _write_line(self, line: str) -> None:
        """Past the stream's buffer, where it is a file's: whoever else flushes the stream, as the interpreter does at
        its end, would wait for its lock.
        """
        number = _file_number(self._stream)
        if number is None:
            self._stream.write(line)
            self._stream.flush()
            return
        left = line.encode(self._stream.encoding, self._stream.errors or "strict")
        while left:
            left = left[os.write(number, left) :]

    def _drain(self) -> None:
        writer = self._writer
        if writer is not None and writer.is_alive():
            writer.join(_LAST_S)


def _file_number(stream: TextIO) -> int | None:
    """The file that `stream` writes; None where it is something else, such as a notebook's, whose number is not where
    it shows what is written.
    """
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):
            return stream.fileno()
    return None


class _ToStructlog(logging.Handler):
    """Hands lines of the standard library's loggers on, so that all of them have one form."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {} if _is_ours(record) else {"logger": record.name}
        log = structlog.get_logger(record.name)
        level = next((known for known in _LEVELS if known <= record.levelno), logging.DEBUG)
        log.log(level, record.getMessage(), exc_info=record.exc_info, **fields)


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
