"""What holds for every test."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# The same examples on every run, and no time limit on one: a slow machine is not a fault.
settings.register_profile("hebe", deadline=None, derandomize=True)
settings.load_profile("hebe")

# Threads of torch that have nothing to do would otherwise spin, on cores that other tests want.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Those of numpy's OpenBLAS always spin, and wait for each other where cores are fewer than tests want: a decomposition
# of a few hundred rows then takes thirty times as long as on one thread. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that runs the tests in the background has Ctrl-C ignored in them, and so in all that they start; `nohup` has
# the end of the terminal ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_MANY_OBJECTS = 100_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What imports and collecting make stays. The garbage collector would look through it over and over while it grows,
    for nearly half the time that collecting takes, and again in every full collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _what_stays_is_set_aside() -> Iterator[None]:
    """Anew after a test that brought it back, as each open loop does at its end: a full collection of all that stays
    takes a quarter of a second, and the next open loop begins with one.
    """
    yield
    if len(gc.get_objects(generation=2)) > _MANY_OBJECTS:
        gc.collect(1)
        gc.freeze()


@pytest.fixture(autouse=True)
def _logs_are_not_configured() -> Iterator[None]:
    """`structlog.testing.capture_logs` leaves them so, and `hebe.Server` leaves alone what its user has configured."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def threads_begun() -> Callable[[], list[str]]:
    """Names of the living threads that the test began.

    Not how many more there are than before: threads that an earlier test of this process let go may end meanwhile.
    """
    before = set(threading.enumerate())
    return lambda: sorted(thread.name for thread in threading.enumerate() if thread not in before)


@pytest.fixture
def threads_refused(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """How names of threads begin that the system has no place for, as long as they stand there."""
    refused: set[str] = set()
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(tuple(refused)):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Writes a file of the folder that is worked in."""
    monkeypatch.chdir(tmp_path)

    def written(name: str, text: str) -> Path:
        Path(name).write_text(text, encoding="utf-8")
        return Path(name)

    return written
