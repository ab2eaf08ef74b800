"""What a figure was measured on: this machine and this commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """CPU model, cores this process may use, memory, kernel, and the versions of Python and torch.

    torch is looked up by its package metadata, not imported. What the system does not tell is "unknown" or 0.
    """
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory_bytes": _memory_bytes(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _package_version("torch"),
    }


def current_commit() -> str:
    """The commit of the source tree this package runs from, with "+changes" if it differs, or "unknown"."""
    here = Path(__file__).resolve().parent
    commit = _git("rev-parse", "--short=12", "HEAD", at=here)
    # An installed package may lie inside somebody else's repository: only one that tracks this file counts.
    if not commit or not _git("ls-files", Path(__file__).name, at=here):
        return "unknown"
    return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", at=here) else "")


def _git(*arguments: str, at: Path) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(at), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _field(path: Path, name: str) -> str:
    """The value of the first "name : value" line of a /proc file, or ""."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == name), "")


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
