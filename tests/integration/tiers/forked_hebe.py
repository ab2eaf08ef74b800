"""`hebe …` as a child forked from a process that has imported what it needs: importing torch and the rest is two of the
two and a half seconds of processor time that a server takes to start, and tests start a hundred.

What is about starting itself, or about how much memory a process has, starts Python anew (`ServerProcess`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from threading import Lock

_IMPORTED = f"{__package__}.imported_before_fork"


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload([_IMPORTED])  # does nothing once the process that forks is there
    return context


class ForkedHebe:
    """`hebe` with `arguments`, in a session of its own and with the caller's environment, directory and cores; stdout
    and stderr go to these files. The rest is as `subprocess.Popen` has it.
    """

    def __init__(self, arguments: Sequence[str], stdout: Path, stderr: Path) -> None:
        state = dict(os.environ), os.getcwd(), os.sched_getaffinity(0)
        self._process = _context().Process(
            target=_run, args=(list(arguments), stdout.resolve(), stderr.resolve(), state)
        )
        self._process.start()
        self._asking = Lock()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative if a signal ended it; None while it runs. For any thread."""
        with self._asking:  # it is told once
            return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, once it has ended. Raises `subprocess.TimeoutExpired`."""
        wait([self._process.sentinel], timeout_s)
        if (status := self.poll()) is None:
            assert timeout_s is not None
            raise subprocess.TimeoutExpired("hebe", timeout_s)
        return status

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """Let go of it, once it has ended."""
        self._process.close()


def _run(arguments: list[str], stdout: Path, stderr: Path, state: tuple[dict[str, str], str, set[int]]) -> None:
    """What the child does; ends the process as the interpreter would."""
    environment, directory, cores = state
    os.setsid()
    os.chdir(directory)
    os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, stdout), (2, stderr)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["hebe", *arguments]
    from hebe.cli.main import main

    main()
