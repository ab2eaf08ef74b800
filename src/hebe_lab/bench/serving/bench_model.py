"""Models that benchmarks measure, made from the catalog once and kept under out/.

`measured_in_child` measures a loop in a process of its own, so that nothing of the benchmark's runs at its side.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

BENCH_MODELS = Path("out/bench/models")


def bench_repository(name: str, size: str | None, progress: Progress, scale: float = 1.0) -> Path:
    """A repository that holds catalog model `name` alone, initialised from seed 1; made if it is not there."""
    from hebe.models.catalog import entry
    from hebe.models.repository.initial_model import write_initial_model
    from hebe.models.repository.repository import ModelRepository

    spec = entry(name, size=size, scale=scale)
    repository = ModelRepository(BENCH_MODELS / f"{name}-{size or 'default'}-{scale:g}")
    if repository.versions(name) and repository.open(name).spec == spec:
        return repository.root
    task = progress.add_task(f"making {name}", total=spec.table_bytes)
    write_initial_model(
        repository, spec, 1, "hebe bench", lambda done, total: progress.update(task, completed=done, total=total)
    )
    progress.remove_task(task)
    return repository.root


PATIENCE_S = 120.0
"""For the process to start and to be ready to measure, beside the seconds that it measures."""


def measured_in_child(module: str, arguments: Sequence[str], seconds: float, what: str) -> dict[str, Any]:
    """Run `module`, which measures for `seconds` and prints a JSON object as its last line, and return that.

    `what` begins what is told where it fails, or does not end: raises RuntimeError.
    """
    timeout_s = seconds + PATIENCE_S
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{what} has not ended after {timeout_s:g} s") from None
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
