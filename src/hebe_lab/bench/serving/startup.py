"""The CPU time that a server takes until it is ready: with all kernels compiled beforehand, and with none.

The model is small, so that its rows count for little. Every start is a fresh process. The system has its files in
memory after the first start, which is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.report.figures import Figure
from hebe_lab.bench.serving.bench_model import bench_repository

DESCRIPTION = "CPU time until a server is ready, with kernels compiled beforehand and without."

_MODEL, _SCALE = "dlrm-rmc1", 0.001
_TARGET_S = 6
_COLD_TIMEOUT_S = 600.0


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `startup.*`. Raises RuntimeError where kernels cannot be compiled or a server does not become ready."""
    starts = 3 if quick else 9
    repository = bench_repository(_MODEL, "small", progress, _SCALE)
    task = progress.add_task("compiling kernels", total=starts + 2)
    _precompile()
    progress.update(task, description="starting servers")
    ready_cpu_s(repository)
    progress.advance(task)
    warm_s = []
    for _ in range(starts):
        warm_s.append(ready_cpu_s(repository))
        progress.advance(task)
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as cache:
        cold_s = ready_cpu_s(repository, ["--kernel-cache", cache])
    progress.advance(task)
    return figures_of(warm_s, cold_s)


def _precompile() -> None:
    done = subprocess.run([sys.executable, "-m", "hebe", "precompile"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"hebe precompile failed: {done.stderr.strip()}")


def ready_cpu_s(repository: Path, options: Sequence[str] = ()) -> float:
    """Start a server, and return the CPU seconds that it and its children have taken when it is ready."""
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as directory:
        with ServerProcess(repository, Path(directory) / "log", options, _COLD_TIMEOUT_S) as server:
            return cpu_s(server.pid)


def cpu_s(pid: int) -> float:
    """CPU seconds, of user and system, of a process and of all its children, those that ended among them."""
    process = Path(f"/proc/{pid}")
    after_name = (process / "stat").read_text().rpartition(")")[2].split()
    own_s = sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
    children = [child for task in (process / "task").iterdir() for child in (task / "children").read_text().split()]
    return own_s + sum(cpu_s(int(child)) for child in children)


def figures_of(warm_s: Sequence[float], cold_s: float) -> list[Figure]:
    """What the starts say, of which one was without compiled kernels."""
    return [
        Figure(
            "startup.ready_cpu_s",
            statistics.median(warm_s),
            "s",
            low=min(warm_s),
            high=max(warm_s),
            runs=len(warm_s),
            target=f"<= {_TARGET_S}",
            note=f"of a server of {_MODEL} at scale {_SCALE}, after hebe precompile; lowest and highest",
        ),
        Figure("startup.cold_ready_cpu_s", cold_s, "s", note="with an empty cache of kernels"),
    ]
