"""A Redis of our own on this machine, for benchmarks and studies: one server or a cluster, gone after use."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

NOT_INSTALLED = "this machine has no redis-server (Debian: apt install redis-server)"

_HOST = "127.0.0.1"
_BUS = 10_000
"""The nodes of a cluster talk to each other on their port plus this."""
_START_S = 20.0
_POLL_S = 0.01

_ENDS_WITH_US = 'exec 3<&0; { read -r _ <&3 || kill -9 $$; } & exec 3<&-; exec redis-server "$@" </dev/null'
"""The shell becomes the server. What it leaves behind kills it if our end of the pipe closes before a line came."""


def redis_is_installed() -> bool:
    """Whether this machine has `redis-server` and `redis-cli` (Debian's package redis-server brings both)."""
    return all(shutil.which(program) is not None for program in ("redis-server", "redis-cli"))


@contextlib.contextmanager
def local_redis(nodes: int = 1) -> Iterator[str]:
    """The address, as `RedisStore` takes it, of an empty Redis that ends with the context and keeps nothing on disk.

    One node listens on a Unix socket in a directory of its own, several (three at least) are a Redis Cluster on ports
    of 127.0.0.1. Raises RuntimeError when a node does not start, OSError when there is no `redis-server`.
    """
    with contextlib.ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="hebe-redis-")))
        if nodes == 1:
            path = directory / "redis.sock"
            _start(["--port", "0", "--unixsocket", str(path)], directory, running, lambda: _listens(str(path)))
            yield f"unix:{path}"
            return
        ports = []
        for number in range(nodes):
            ports.append(_free_port())
            own = directory / str(number)
            own.mkdir()
            options = ["--bind", _HOST, "--port", str(ports[-1]), "--cluster-enabled", "yes"]
            _start(options, own, running, lambda: _listens((_HOST, ports[-1])))
        _join(ports)
        yield ";".join(f"{_HOST}:{port}" for port in ports)


def _start(
    options: Sequence[str], directory: Path, running: contextlib.ExitStack, ready: Callable[[], bool]
) -> subprocess.Popen[bytes]:
    """Start a node that ends with `running`, and wait until it is `ready`."""
    kept_nowhere = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    process = subprocess.Popen(
        ["sh", "-c", _ENDS_WITH_US, "sh", *options, *kept_nowhere],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us, who then end it in order
    )
    running.callback(_end, process)
    _wait(lambda: ready() or process.poll() is not None)
    if process.poll() is not None:
        raise RuntimeError("redis-server does not start: run it by hand to see why")
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate(b"\n")


def _join(ports: Sequence[int]) -> None:
    """Make a cluster of nodes that run, without replicas, and wait until each of them knows it."""
    addresses = [f"{_HOST}:{port}" for port in ports]
    made = subprocess.run(
        ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"],
        capture_output=True,
        text=True,
        timeout=_START_S,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"redis-cli --cluster create: {(made.stdout + made.stderr).strip()[-1000:]}")
    for port in ports:
        _wait(lambda port=port: "cluster_state:ok" in _asked(port, "cluster", "info"))  # type: ignore[misc]


def _asked(port: int, *question: str) -> str:
    command = ["redis-cli", "-h", _HOST, "-p", str(port), *question]
    return subprocess.run(command, capture_output=True, text=True, timeout=_START_S, check=False).stdout


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"redis-server is not ready after {_START_S:g} s: run it by hand to see why")
        time.sleep(_POLL_S)


def _listens(address: str | tuple[str, int]) -> bool:
    """Whether connections are taken there. A socket's file is there a moment before that."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as asking:
        asking.settimeout(_START_S)
        asking.connect(address)
        return True
    return False


def _free_port() -> int:
    """A port of this machine that nobody listens on, nor on that of its cluster bus."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((_HOST, 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind((_HOST, port + _BUS))
                return port
