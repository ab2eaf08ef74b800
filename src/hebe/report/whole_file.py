"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Make `path` hold `text` in UTF-8, readable for all, replacing an older file at once; makes its directory.

    Whoever reads it meanwhile finds the older content or the new, and where writing fails the older stays.
    Raises OSError, which names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as fault:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(fault, OSError) and fault.filename is None:  # as where the disk is full
            raise type(fault)(fault.errno, fault.strerror, str(path)) from fault
        raise
