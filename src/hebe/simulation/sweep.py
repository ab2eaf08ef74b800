"""Many independent cases, on all cores that this process may use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

_Case = TypeVar("_Case")
_Answer = TypeVar("_Answer")

_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from hebe.simulation.sweep import work; work(int(sys.argv[1]))"


class SweepError(RuntimeError):
    """A process ended before it answered: killed, or out of memory."""


def sweep(
    function: Callable[[_Case], _Answer],
    cases: Sequence[_Case],
    on_done: Callable[[int, int], object] | None = None,
    *,
    in_process: bool = False,
) -> list[_Answer]:
    """`function` of every case, in the order of the cases. It must be a module's own function, and cases plain data.

    `on_done` receives how many of how many cases are done, first 0. `in_process` is for cases so short that processes
    would take longer to start. The first error is raised as it is, and ends what has begun, as an interrupt does.
    Raises `SweepError` if a process ends without an answer.

    The processes are children of their own that import the function's module and never the main script, which
    therefore needs no `if __name__ == "__main__":`, and may be a notebook or what a shell pipes in. They are not
    forked, since a forked process would hold half of what this one's threads do.
    """
    report = on_done or _ignore
    report(0, len(cases))
    processes = min(len(cases), len(os.sched_getaffinity(0)))
    if in_process or processes <= 1:
        answers = []
        for done, case in enumerate(cases, 1):
            answers.append(function(case))
            report(done, len(cases))
        return answers
    found: dict[int, _Answer] = {}
    children: dict[Connection, _Child] = {}
    waiting = iter(enumerate(cases))
    try:
        for _ in range(processes):
            child = _Child(function)
            children[child.connection] = child
            child.take(*next(waiting))
        while len(found) < len(cases):
            for ready in wait([each for each, child in children.items() if child.case is not None]):
                child = children[ready]  # type: ignore[index]  # of sockets and handles alike
                at, answer = child.answer()
                found[at] = answer
                if (following := next(waiting, None)) is not None:
                    child.take(*following)
                report(len(found), len(cases))
    finally:
        for child in children.values():
            child.end()
    return [found[at] for at in range(len(cases))]


def _ignore(_done: int, _total: int) -> None:
    """For callers that do not want to know."""


class _Child:
    """A process that applies a function to one case after the other; `case` is the number of the one it works at."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.connection, theirs = Pipe()
        self.case: int | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        try:
            self.connection.send(function)
        except BaseException:
            self.end()
            raise

    def take(self, at: int, case: object) -> None:
        """Begin with a case."""
        self.case = at
        try:
            self.connection.send((at, case))
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> tuple[int, Any]:
        """The case's number and the function's answer, once it is there; raises what the function raised."""
        assert self.case is not None, "it has none"
        try:
            succeeded, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._ended() from None
        at, self.case = self.case, None
        if not succeeded:
            raise answer
        return at, answer

    def end(self) -> None:
        """End the process, at once if it is at work."""
        self.connection.close()
        self._process.terminate()
        self._process.wait()

    def _ended(self) -> SweepError:
        status = self._process.wait()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return SweepError(f"a process that worked at case {self.case} {how}, before it answered")


def work(descriptor: int) -> None:
    """What a child does: receive a function, then answer cases until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the parent knows too, and ends this process
    connection = Connection(descriptor)
    try:
        function = connection.recv()
    except EOFError:
        return
    except Exception as error:  # it cannot be imported here
        function = _Failing(_with_trace(error))
    while True:
        try:
            _, case = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        except Exception as error:
            _send(connection, False, _with_trace(error))
            continue
        try:
            answer = function(case)
        except Exception as error:
            _send(connection, False, _with_trace(error))
        else:
            _send(connection, True, answer)


class _Failing:
    """A function that could not be received."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, _case: object) -> None:
        raise self._error


def _with_trace(error: Exception) -> Exception:
    """The error with the place where it arose, which its own traceback does not carry to another process."""
    error.add_note("In another process:\n" + "".join(traceback.format_exception(error)))
    return error


def _send(connection: Connection, succeeded: bool, answer: object) -> None:
    try:
        connection.send((succeeded, answer))
    except BrokenPipeError:
        return
    except Exception as error:  # what cannot be sent
        connection.send((False, TypeError(f"{answer!r} cannot be sent to another process: {error}")))
