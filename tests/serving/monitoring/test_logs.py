from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading

import pytest
import structlog
from grpc._cython import cygrpc
from structlog.testing import capture_logs

from hebe.serving.monitoring import logs
from hebe.serving.monitoring.logs import RequestLog, configure_logging
from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError


@pytest.fixture(autouse=True)
def defaults():
    yield
    structlog.reset_defaults()
    plain = logging.getLogger("hebe")
    plain.handlers, plain.level = [], logging.NOTSET


@contextlib.contextmanager
def root_handlers(*handlers):
    """Python's root logger with these instead of the test runner's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", list(handlers))
        yield


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_refusals_are_sampled_by_kind_and_the_rest_counted():
    clock = Clock()
    with capture_logs() as lines:
        log = RequestLog(clock, lines_per_s=2.0)
        for _ in range(5):
            log.refused("http", "POST /v2/models/m/infer", InvalidInput("bad key"), "1.2.3.4")
        log.refused("grpc", "ModelInfer", RequestError(ErrorKind.OVERLOADED, "full", reason="queue_full"))
        clock.now = 0.5
        log.refused("http", "POST /v2/models/m/infer", InvalidInput("bad key"))
    assert [(line["protocol"], line["reason"], line.get("not_logged")) for line in lines] == [
        ("http", "invalid", None),
        ("grpc", "queue_full", None),
        ("http", "invalid", 4),
    ]
    assert lines[0]["request"] == "POST /v2/models/m/infer"
    assert lines[0]["peer"] == "1.2.3.4"
    assert lines[0]["log_level"] == "warning"


def test_failures_are_errors_with_their_cause():
    with capture_logs() as lines:
        fault = RequestError(ErrorKind.INTERNAL, "the batch failed")
        fault.__cause__ = ZeroDivisionError("by zero")
        RequestLog(Clock()).refused("http", "POST /x", fault)
    assert lines[0]["log_level"] == "error"
    assert lines[0]["exc_info"] is fault.__cause__


def test_long_texts_are_cut():
    with capture_logs() as lines:
        RequestLog(Clock()).refused("http", "GET /" + "x" * 10_000, InvalidInput("y" * 10_000))
    assert len(lines[0]["request"]) == 200
    assert len(lines[0]["message"]) == 500


def fail(payload):
    raise ValueError(f"cause of {len(payload)}")


def log_a_failure():
    try:
        fail("the user's " + "".join(reversed("terkes")) + " keys")
    except ValueError as fault:
        structlog.get_logger().error("failed", exc_info=fault)


def test_json_lines_are_json(capsys):
    configure_logging("json", "warning")
    log = structlog.get_logger()
    log.info("not shown")
    log.warning("shown", model="m")
    log_a_failure()
    shown, failed = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (shown["event"], shown["model"], shown["level"]) == ("shown", "m", "warning")
    assert shown["timestamp"].endswith("Z")
    assert failed["exception"][0]["exc_value"] == "cause of 22"


def test_console_lines_are_for_people(capsys):
    configure_logging("console")
    structlog.get_logger().info("model loaded", model="m")
    log_a_failure()
    shown = capsys.readouterr().err
    assert "model loaded" in shown
    assert "model=m" in shown
    assert "ValueError: cause of 22" in shown


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_do_not_show_local_variables(capsys, log_format):
    configure_logging(log_format)
    log_a_failure()
    shown = capsys.readouterr().err
    assert "cause of 22" in shown
    assert "sekret" not in shown


@pytest.mark.parametrize("where", ["a full disk", "a pipe that nobody reads"])
def test_a_line_that_cannot_be_written_is_lost(monkeypatch, where):
    if where == "a full disk":
        stream = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    else:
        reading, writing = os.pipe()
        os.close(reading)
        stream = os.fdopen(writing, "w", buffering=1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        configure_logging("json")
        for _ in range(3):
            structlog.get_logger().info("model loaded", model="m" * 10_000)
            logging.getLogger("hebe.below").warning("a store is slow")
    with contextlib.suppress(OSError):
        stream.close()


@contextlib.contextmanager
def unread_pipe():
    """A full pipe that nobody reads: gives the stream that writes it, and what reads it: all that was written after
    what filled it, to its end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    stream = os.fdopen(writing, "w", buffering=1)
    unread = os.fdopen(reading, "rb")

    def read_lines(count):
        nonlocal filled
        assert unread.read(filled) == b"x" * filled
        filled = 0
        return [json.loads(unread.readline()) for _ in range(count)]

    try:
        yield stream, read_lines
    finally:
        unread.close()
        stream.close()


def logged_by_a_thread(events):
    """Whether all of these could be logged: by another thread, so that one that waits for ever does not stop us."""
    done = threading.Event()

    def log():
        for event in events:
            structlog.get_logger().info(event)
        done.set()

    threading.Thread(target=log, daemon=True).start()
    return done.wait(20)


def test_nobody_waits_for_a_reader_who_stands_still(monkeypatch):
    events = [f"line {number}" for number in range(50)]
    with unread_pipe() as (stream, read_lines):
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging("json")
        assert logged_by_a_thread(events)
        assert [line["event"] for line in read_lines(50)] == events, "kept, in order, for when it goes on"


def test_lines_beyond_what_is_kept_for_such_a_reader_are_lost(monkeypatch):
    monkeypatch.setattr(logs, "_MOST_WAITING", 3)
    monkeypatch.setattr(logs, "_WRITE_S", 0.5)  # in which the thread has begun with the first one
    with unread_pipe() as (stream, read_lines):
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging("json")
        assert logged_by_a_thread(["being written", "first", "second", "third", "fourth"])
        assert [line["event"] for line in read_lines(4)] == ["being written", "first", "second", "third"]
        structlog.get_logger().info("after that")
        assert [line["event"] for line in read_lines(1)] == ["after that"]


END = """
import structlog
from hebe.serving.monitoring import logs
logs._WRITE_S = 0.0  # as where the writer is late
logs.configure_logging("json")
for number in range(100):
    structlog.get_logger().info(str(number))
"""


def test_what_was_logged_last_is_there_when_the_process_has_ended():
    ended = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == [str(number) for number in range(100)]


def test_a_process_whose_log_nobody_reads_can_end():
    with unread_pipe() as (stream, _):
        assert subprocess.run([sys.executable, "-c", END], stderr=stream, check=False, timeout=60).returncode == 0


def test_without_threads_lines_are_written_all_the_same(capsys, monkeypatch):
    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    configure_logging("json")
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    structlog.get_logger().info("first")
    structlog.get_logger().info("second")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["first", "second"]


def test_a_forked_process_logs_too(tmp_path, monkeypatch):
    with open(tmp_path / "log", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging("json")
        structlog.get_logger().info("before")
        child = os.fork()
        if not child:
            structlog.get_logger().info("in the child")
            os._exit(0)
        os.waitpid(child, 0)
        monkeypatch.undo()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["before", "in the child"]


def test_plain_loggers_lines_have_the_same_form(capsys):
    configure_logging("json", "info")
    log = logging.getLogger("hebe.tiers")
    log.debug("not told")
    log.info("%s answers again", "volatile_db")
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        log.exception("a fault")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("volatile_db answers again", "info"),
        ("a fault", "error"),
    ]
    assert lines[0]["timestamp"]
    assert "exception" not in lines[0]
    assert lines[1]["exception"][0]["exc_value"] == "by zero"


def test_other_packages_warnings_have_the_same_form_too(capsys):
    """Such as those of OpenTelemetry when nobody takes its spans."""
    with root_handlers():
        configure_logging("json", "info")
        configure_logging("json", "info")
        logging.getLogger("opentelemetry.exporter").info("not told")
        logging.getLogger("opentelemetry.exporter").error("Failed to export %s", "span batch")
        logging.getLogger("hebe.tiers").warning("once")
        logging.getLogger("hebe.tiers").log(25, "between")
        logging.getLogger("hebe.tiers").log(35, "between, too")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line.get("logger")) for line in lines] == [
        ("Failed to export span batch", "error", "opentelemetry.exporter"),
        ("once", "warning", None),
        ("between", "info", None),
        ("between, too", "warning", None),
    ]


def test_that_a_client_left_as_its_answer_was_written_is_no_error(capsys):
    """gRPC says so with a stack trace; whatever else it says is told."""
    core, other = (logging.getLogger(name) for name in ("grpc._cython.cygrpc", "grpc.other"))
    gone = cygrpc.ExecuteBatchError('Failed "execute_batch": (<Operation object>,)')
    with root_handlers():
        configure_logging("json", "info")
        configure_logging("json", "info")
        core.error("ExecuteBatchError raised in core by servicer method", exc_info=gone)
        core.error("UsageError raised", exc_info=cygrpc.UsageError("other"))
        core.error("no fault")
        other.error("another logger", exc_info=gone)
    lines = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["UsageError raised", "no fault", "another logger"]
    assert len(core.filters) == 1


def test_where_a_program_sends_other_packages_lines_is_its_own_business(capsys):
    with root_handlers(logging.NullHandler()):
        configure_logging("json", "info")
        logging.getLogger("opentelemetry.exporter").error("not ours")
    assert not capsys.readouterr().err
