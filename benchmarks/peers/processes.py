"""Server processes that end with the run, whatever they start and however the run ends.

Every server gets a session (so a process group) of its own and a mark in its environment, which all that it starts
inherit. Ending it asks the first process, then kills the group and whatever still bears the mark: some servers
detach their workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "HEBE_PEERS_SERVER"
TERM_PATIENCE_S = 10.0
POLL_S = 0.1
SHOWN_LINES = 20


class ServerError(RuntimeError):
    """A server that did not come up, or went down; the message quotes the end of its log."""


class ServerProcess:
    """One server: its command runs from construction until `stop`."""

    def __init__(
        self, name: str, command: Sequence[str], workspace: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.mark = f"{workspace.resolve()}:{name}"
        self.log = workspace / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=workspace,
                env={**os.environ, **(environment or {}), MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, is_ready: Callable[[], bool], patience_s: float) -> None:
        """Return once `is_ready()`; raises `ServerError` when the process ends or `patience_s` have passed."""
        give_up_s = time.monotonic() + patience_s
        while not is_ready():
            self.check_alive()
            if time.monotonic() > give_up_s:
                raise ServerError(f"{self.name} was not ready after {patience_s:.0f} s; {self._log_end()}")
            time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Raises `ServerError` if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise ServerError(f"{self.name} ended by itself (exit code {code}); {self._log_end()}")

    def cpu_s(self) -> float:
        """CPU seconds used so far by the server and all that it started and that still lives."""
        return sum(_cpu_s(pid) for pid in marked_pids(self.mark))

    def resident_bytes(self) -> int:
        """Resident memory of the server and all that it started; pages that they share count once for each."""
        return sum(_resident_bytes(pid) for pid in marked_pids(self.mark))

    def stop(self) -> None:
        """End the server and everything it started; does nothing the second time."""
        if self._process.poll() is None:
            # The first process alone, so that it can end its own in order and unlink its shared memory.
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_marked(self.mark)

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        return f"the end of {self.log}:\n" + "\n".join(f"    {line}" for line in lines)


def end_marked(mark: str) -> None:
    """Kill every process whose mark starts with `mark`, until none is left."""
    while pids := marked_pids(mark):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def marked_pids(mark: str) -> list[int]:
    """Living processes whose mark starts with `mark` (ours are the only ones whose environment we may read)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(variable.startswith(wanted) for variable in variables):
            found.append(int(folder.name))
    return found


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
