"""A checksum of the files that say what a load is like: what was measured by one is of its content, not of its name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hebe.profiling.error import ProfilingError

_DIGITS = 12
_WITH_FILES = ("trace", "reuse")
"""Short forms of `workload.forms` that may name a file, behind the first colon."""


def file_checksum(path: Path) -> str:
    """The first digits of its SHA-256. Raises `ProfilingError`, which names the file, where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
    except OSError as fault:
        raise ProfilingError(f"{path}: cannot be read: {fault.strerror}") from None


def file_of(form: str) -> Path | None:
    """The file that a short form of arrivals or keys names, `trace:FILE[:SPEED]` or `reuse:FILE[:NAME]`; else None."""
    name, *rest = form.strip().split(":")
    return Path(rest[0]) if rest and name in _WITH_FILES else None


def form_words(form: str) -> str:
    """The form, and the checksum of the file that it names: ``trace:day.csv (1f0c5a7b9e21)``. Raises as
    `file_checksum`."""
    path = file_of(form)
    return form if path is None else f"{form} ({file_checksum(path)})"
