"""`python -m benchmarks.peers`: compare Hebe with its peers on this machine."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from hebe.report.atomic_write import write_whole
from hebe.report.figures import FigureFile

from .bentoml import BentoML, BentoMLEager
from .comparison import figures, picture, table
from .floor import Floor
from .hebe_server import Hebe
from .installation import Installation
from .processes import end_marked
from .run import CONCURRENCIES, ModelError, Run
from .server import Server, Settings
from .torchserve import TorchServe, TorchServeEager
from .triton import Triton, TritonPythonBackend

SERVERS: tuple[type[Server], ...] = (
    Hebe,
    TritonPythonBackend,
    Triton,
    BentoML,
    TorchServe,
    BentoMLEager,
    TorchServeEager,
    Floor,
)
UNASKED = tuple(server.name for server in SERVERS if server is not Floor)
QUICK_SECONDS, QUICK_ROUNDS = 1.0, 1
SECONDS, ROUNDS = 3.0, 3
TUNED = tuple(
    Settings(workers, threads, scripted) for scripted in (False, True) for workers, threads in ((1, 1), (1, 2), (2, 1))
)
"""The settings that `--tune` compares; each server's own `settings` are the best of them for it."""


class InUseError(RuntimeError):
    """Another run uses the same folder."""


def main() -> int:
    """Run and exit: 0 done, 1 where something was left out or failed, 130 interrupted."""
    arguments = _arguments()
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    root = arguments.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started_s:6.1f} s[/]", end=" ")
        console.print(line, markup=False)

    try:
        with alone(root):
            workspace = root / "run"
            shutil.rmtree(workspace, ignore_errors=True)
            workspace.mkdir()
            run = Run(workspace, Installation(root, say), _servers(arguments), say)
            results = run.measure(arguments.rounds, arguments.seconds, arguments.concurrency)
    except (ModelError, InUseError) as fault:
        console.print(f"error: {fault}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; every server was ended, no figures written")
        return 130
    results.write(workspace / "measurements.json")
    console.print(table(results, arguments.concurrency))
    command = shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]])
    measured = figures(results, arguments.concurrency)
    seconds = time.monotonic() - started_s
    file = FigureFile.here("peers", command, seconds, arguments.quick, measured)
    for figure in measured:
        if figure.unit == "ratio":
            met = {None: "", True: "met", False: "MISSED"}[figure.met]
            shown = f"{figure.name:36} {figure.value:6.2f}  {figure.target or '':7} {met:7} {figure.note}"
            console.print(shown, markup=False)
    console.print(f"{len(measured)} figures in {file.write(arguments.out)}; {seconds:.0f} s", markup=False)
    drawn = arguments.out / "peers.svg"
    write_whole(drawn, picture(results, arguments.concurrency))
    console.print(f"drawn in {drawn}", markup=False)
    for line in results.faults:
        console.print(line.splitlines()[0], markup=False)
    return 1 if results.faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    known = ", ".join(server.name for server in SERVERS)
    parser.add_argument("--only", default=",".join(UNASKED), help=f"servers to run, of: {known} (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} round of {QUICK_SECONDS:g} s")
    parser.add_argument("--seconds", type=float, help=f"of each measurement (default: {SECONDS:g})")
    parser.add_argument("--rounds", type=int, help=f"repeats, taken in turns (default: {ROUNDS})")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), help="closed-loop callers")
    parser.add_argument("--cores", type=int, default=2, help="cores for servers and client together (default: 2)")
    parser.add_argument("--tune", action="store_true", help="run every peer in every setting, to choose from")
    parser.add_argument("--root", type=Path, default=Path("out/peers"), help="where all is installed")
    parser.add_argument("--out", type=Path, default=Path("out/figures"), help="where peers.json goes")
    arguments = parser.parse_args()
    if arguments.seconds is None:
        arguments.seconds = QUICK_SECONDS if arguments.quick else SECONDS
    if arguments.rounds is None:
        arguments.rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    unknown = set(arguments.only.split(",")) - {server.name for server in SERVERS}
    if unknown:
        parser.error(f"--only: no server {', '.join(sorted(unknown))}; there are {known}")
    if arguments.seconds <= 0 or min(arguments.rounds, arguments.cores, *arguments.concurrency) < 1:
        parser.error("--seconds, --rounds, --cores and --concurrency must be positive")
    return arguments


def _servers(arguments: argparse.Namespace) -> list[Server]:
    chosen = [server for server in SERVERS if server.name in arguments.only.split(",")]
    if not arguments.tune:
        return [server() for server in chosen]
    tuned = []
    for server in chosen:
        tunable = server.settings is not None and not server.name.endswith("-eager")
        for settings in TUNED if tunable else ():
            one = server()
            one.settings = settings
            graph = "scripted" if settings.scripted else "eager"
            one.name = f"{server.name}-{graph}-{settings.workers}x{settings.threads}"
            tuned.append(one)
    return tuned


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """One run at a time in `root`; ends what a killed earlier one left. Raises `InUseError` if another runs."""
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"another run is using {root}; wait for it, or give another --root") from None
        end_marked(f"{root}/")
        yield


if __name__ == "__main__":
    sys.exit(main())
