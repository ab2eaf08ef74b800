"""`hebe serve` as a child process: started on free ports, awaited until ready, always stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

_POLL_S = 0.05
_STOP_S = 15.0
_LOG_LINES = 15


class ServerProcessError(RuntimeError):
    """The server did not come up, or died; carries the end of its log."""


class ServerProcess:
    """Between `start` and `stop`, or inside the context, the repository is served and every model is ready.

    `http_url`, `grpc_address` and `metrics_url` say where. The log goes to `log`. Ctrl-C reaches only this process,
    so that what is under way ends in order.
    """

    def __init__(self, repository: Path, log: Path, options: Sequence[str] = (), ready_timeout_s: float = 60.0) -> None:
        self._command = [sys.executable, "-m", "hebe", "serve", str(repository)]
        self._command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--json", *options]
        self._log = log
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self.http_url = ""
        self.grpc_address = ""
        self.metrics_url = ""

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def start(self) -> None:
        """Start it and wait until it is ready. Raises `ServerProcessError`; nothing is left running then."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                # Ctrl-C is for us, who then end it. Not a session of its own, beside which the kernel would share out
                # cores evenly (sched_autogroup), so that what gives way in there would hold up the load generator.
                process_group=0,
            )  # fmt: skip
        try:
            deadline_s = time.monotonic() + self._ready_timeout_s
            listening = self._announced(deadline_s)["listening"]
            self.http_url, self.grpc_address = listening["http"], listening["grpc"]
            self.metrics_url = listening["metrics"]
            while not self._ready():
                self.check()
                if time.monotonic() > deadline_s:
                    raise self._failure(f"is not ready after {self._ready_timeout_s:g} s")
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The server's process id; it must run."""
        assert self._process is not None
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """The server's resident size now. Raises `ServerProcessError` if it is not running any more."""
        self.check()  # of one that has ended the kernel says 0
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `ServerProcessError` if the server is not running any more."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure(f"ended with exit status {self._process.returncode}")

    def stop(self) -> None:
        """Ask it to stop, and kill it if it has not after a while. Does nothing if it does not run."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def _announced(self, deadline_s: float) -> dict[str, Any]:
        """The JSON line by which the server tells its ports."""
        assert self._process is not None
        assert self._process.stdout is not None
        lines: list[str] = []
        reader = Thread(
            target=lambda stream: lines.append(stream.readline()), args=(self._process.stdout,), daemon=True
        )
        reader.start()
        reader.join(max(deadline_s - time.monotonic(), 0.0))
        if not lines:
            raise self._failure(f"tells no address after {self._ready_timeout_s:g} s")
        if not lines[0]:
            self._process.wait()
            self.check()
        try:
            announced: dict[str, Any] = json.loads(lines[0])
        except ValueError:
            announced = {}
        if "listening" not in announced:
            self._process.wait(_STOP_S)
            self.check()
            raise self._failure(f"announced {lines[0]!r:.100} instead of its addresses")
        return announced

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.http_url}/v2/health/ready", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _failure(self, what: str) -> ServerProcessError:
        lines = self._log.read_text(errors="replace").splitlines()
        end = "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
        return ServerProcessError(f"the server {what}; its log, {self._log}, ends:\n{end}")
