"""A loop that is measured in a process of its own, so that nothing of the benchmark's runs beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

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
