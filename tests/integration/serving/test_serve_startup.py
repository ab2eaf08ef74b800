"""What keeps a server from starting is one line on stderr and exit status 1, at once.

Wrong usage, which is status 2, is tests/cli/test_serve.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hebe.cli.main import main
from tests.integration.tiers.forked_hebe import ForkedHebe
from tests.servers.ports import free_port

from .served import PATIENCE_S, eventually, small_dlrm, store


@dataclass
class Failure:
    """A way to fail: `arrange(own directory)` makes the arguments of `hebe serve`; `says` is in the one line."""

    arrange: Callable[[Path], list[str]]
    says: str


def _model(root: Path, rows: int = 1000) -> Path:
    store(root / "models", small_dlrm("ranker", rows))
    return root / "models"


def _damaged(change: Callable[[Path], None], *options: str) -> Callable[[Path], list[str]]:
    def arrange(root: Path) -> list[str]:
        models = _model(root)
        change(models / "ranker" / "1")
        return [str(models), *options]

    return arrange


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _edited(version: Path) -> None:
    path = version / "model.toml"
    path.write_text(path.read_text().replace("rows = 1000", "rows = 2000"))


def _taken(option: str) -> Callable[[Path], list[str]]:
    """`hebe serve` on a port that this process listens on, until it ends."""

    def arrange(root: Path) -> list[str]:
        listener = socket.create_server(("127.0.0.1", 0))
        _LISTENERS.append(listener)
        return [str(_model(root)), option, str(listener.getsockname()[1])]

    return arrange


_LISTENERS: list[socket.socket] = []


def _unreadable(root: Path) -> list[str]:
    """A directory that may not be read; where this user may read everything, a file in its place."""
    directory = root / "secret"
    directory.mkdir(mode=0)
    if os.access(directory, os.R_OK):
        directory.rmdir()
        directory.write_text("")
    return [str(directory)]


def _bad_certificate(root: Path) -> list[str]:
    for name in ("certificate.pem", "key.pem"):
        (root / name).write_text("-----BEGIN NOTHING-----\n")
    return [
        str(_model(root)),
        "--tls-certificate",
        str(root / "certificate.pem"),
        "--tls-key",
        str(root / "key.pem"),
    ]


def _no_tokens(root: Path) -> list[str]:
    (root / "tokens").write_text("# none yet\n")
    return [str(_model(root)), "--api-token-file", str(root / "tokens")]


FAILURES = {
    "no such directory": Failure(lambda root: [str(root / "nowhere")], "not a model repository: No such file"),
    "empty repository": Failure(lambda root: [str(root)], "has no models; make one with `hebe model new"),
    "unreadable": Failure(_unreadable, "/secret: "),
    "model.toml edited": Failure(_damaged(_edited), "model.toml: truncated, damaged or edited by hand"),
    "table truncated": Failure(_damaged(lambda v: _truncate(v / "tables" / "ads.safetensors")), "ads.safetensors: "),
    "table missing": Failure(_damaged(lambda v: (v / "tables" / "users.safetensors").unlink()), "users.safetensors: "),
    "model.toml missing": Failure(
        _damaged(lambda v: (v / "model.toml").unlink()), "has no model.toml and is no version: restore it"
    ),
    "dense damaged": Failure(_damaged(lambda v: _flip(v / "dense.safetensors")), "dense.safetensors: "),
    "row damaged": Failure(
        _damaged(lambda v: _flip(v / "tables" / "users.safetensors")), "users.safetensors: checksum differs"
    ),
    "row damaged, every byte read first": Failure(
        _damaged(lambda v: _flip(v / "tables" / "users.safetensors"), "--verify"),
        "users.safetensors: checksum differs",
    ),
    "directory renamed": Failure(
        lambda root: [str(shutil.move(_model(root) / "ranker", root / "models" / "other").parent)],
        "a model cannot be renamed by renaming its directory",
    ),
    "HTTP port taken": Failure(_taken("--http-port"), "already in use; stop what listens there, or choose another"),
    "gRPC port taken": Failure(_taken("--grpc-port"), "already in use; stop what listens there, or choose another"),
    "metrics port taken": Failure(_taken("--metrics-port"), "already in use; stop what listens there"),
    "no such address": Failure(lambda r: [str(_model(r)), "--host", "192.0.2.1"], "not an address of this machine"),
    "no such certificate": Failure(
        lambda root: [str(_model(root)), "--tls-certificate", "none.pem", "--tls-key", "none.pem"],
        "TLS certificate none.pem: No such file or directory",
    ),
    "not a certificate": Failure(_bad_certificate, "certificate.pem and key "),
    "token file without tokens": Failure(_no_tokens, "tokens: has no token; write one a line"),
    "a persistent directory of someone else's": Failure(
        lambda root: [str(_model(root, 100_000)), "--table-memory", "4M", "--persistent-dir", str(_others(root))],
        "is not empty and holds no store: give another path",
    ),
    "brackets around no address": Failure(lambda r: [str(_model(r)), "--host", "[here]"], "use an address of this"),
}


def _others(root: Path) -> Path:
    """A directory for rows in which something else lies where this model's would go."""
    place = root / "rows" / "ranker" / "1"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("important")
    return root / "rows"


Outcome = tuple[int, str]
"""Exit status and stderr."""


def run_here(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Outcome:
    """`hebe serve` in this process; stopped if it serves after all."""
    stop = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGTERM))
    stop.start()
    try:
        with pytest.raises(SystemExit) as ended:
            main(["serve", *arguments])
    finally:
        stop.cancel()
    return int(ended.value.code or 0), capsys.readouterr().err


def run_process(arguments: list[str]) -> Outcome:
    """`hebe serve` as a user runs it."""
    command = [sys.executable, "-m", "hebe", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stderr


def check(failure: Failure, outcome: Outcome) -> list[str]:
    """That it failed as it should; returns the lines on stderr but for what was merely reported on the way."""
    status, stderr = outcome
    assert status == 1, stderr
    assert failure.says in " ".join(stderr.split()), stderr
    assert "Traceback" not in stderr
    return [line for line in stderr.splitlines() if "[info " not in line]


def with_free_ports(arguments: list[str]) -> list[str]:
    ports = (port for port in ("--http-port", "--grpc-port", "--metrics-port") if port not in arguments)
    return [*arguments, *(f"{port}=0" for port in ports)]


@pytest.mark.usefixtures("this_process")
@pytest.mark.parametrize("name", FAILURES)
def test_what_keeps_a_server_from_starting(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    failure = FAILURES[name]
    try:
        lines = check(failure, run_here(with_free_ports(failure.arrange(tmp_path)), capsys))
    finally:
        while _LISTENERS:
            _LISTENERS.pop().close()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")


def test_the_same_from_a_shell(tmp_path: Path):
    failure = FAILURES["table truncated"]
    lines = check(failure, run_process(with_free_ports(failure.arrange(tmp_path))))
    assert len(lines) == 1
    assert lines[0].startswith("error: ")


@pytest.mark.usefixtures("this_process")
def test_the_reason_is_logged_for_each_of_several_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("one", "two"):
        store(tmp_path, small_dlrm(name))
        _truncate(tmp_path / name / "1" / "dense.safetensors")
    failure = Failure(lambda root: [str(root)], "none of the 2 models of ")
    lines = check(failure, run_here(with_free_ports(failure.arrange(tmp_path)), capsys))
    for name in ("one", "two"):
        assert any(f"model={name}" in line and "dense.safetensors" in line for line in lines)
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]


@pytest.mark.parametrize(
    ("streams", "options"),
    [
        (">/dev/full 2>/dev/full", ()),
        (">/dev/full 2>/dev/full", ("--json",)),
        ("<&- >&- 2>&-", ()),
    ],
)
def test_streams_that_take_nothing_do_not_keep_a_server_from_serving(
    streams: str, options: tuple[str, ...], tmp_path: Path
):
    """A full disk, or a starter that closes them; nor is the end of such a server a failure."""
    port = free_port()
    arguments = with_free_ports([str(_model(tmp_path)), "--http-port", str(port), *options])
    with _shell(f'exec "$@" {streams}', arguments) as server:
        eventually(lambda: _is_ready(port) or server.poll() is not None, "the server is ready, or has ended")
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0


def test_addresses_that_stdout_does_not_take_are_told_in_the_log(tmp_path: Path):
    port, log = free_port(), tmp_path / "log"
    arguments = with_free_ports([str(_model(tmp_path)), "--http-port", str(port), "--json"])
    server = ForkedHebe(["serve", *arguments], Path("/dev/full"), log)
    try:
        eventually(lambda: _is_ready(port) or server.poll() is not None, "the server is ready, or has ended")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.wait()
        server.close()
    assert f"Hebe serves {tmp_path / 'models'}  HTTP http://127.0.0.1:{port} " in log.read_text()
    assert "where this server listens could not be told" in log.read_text()


def test_where_few_files_may_be_open_idle_connections_keep_nobody_out(tmp_path: Path):
    port, metrics_port, log = free_port(), free_port(), tmp_path / "log"
    arguments = [str(_model(tmp_path)), "--http-port", str(port), "--metrics-port", str(metrics_port)]
    with (
        _shell(f'ulimit -n 64; exec "$@" 2>{log}', with_free_ports(arguments)) as server,
        contextlib.ExitStack() as idle,
    ):
        eventually(lambda: _is_ready(port), "the server is ready")
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually(lambda: _is_ready(port), "one of those that wait has lost its place")
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=PATIENCE_S) as page:
            assert b"process_max_fds 64.0" in page.read()
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
    assert "the hard limit of open files is low: there is room for fewer connections" in log.read_text()
    assert "LimitNOFILE=" in log.read_text()


@contextlib.contextmanager
def _shell(line: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`hebe serve` with `arguments` as `"$@"` of a line of sh, which it takes the place of."""
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "hebe", "serve", *arguments]
    # Unbuffered, nothing would be left to write at its end, which is where a stream that takes nothing hurts most.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=buffered)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False
