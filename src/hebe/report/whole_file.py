"""Write a file whole or not at all."""

from __future__ import annotations

import errno
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


def check_writable(path: Path) -> None:
    """Raise the OSError that `write_whole` would begin with now, naming what nothing can be written to; makes no
    directory, and leaves nothing behind.

    It tries, since what the permissions say is not all: root may write everywhere, and yet not in /proc.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=there):
            pass
    except OSError as fault:
        raise type(fault)(fault.errno, fault.strerror, str(there)) from None
