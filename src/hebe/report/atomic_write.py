"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Make `path` hold `text` in UTF-8, readable for those of `mode`, replacing an older file at once; makes its
    directory.

    Whoever reads it meanwhile finds the older content or the new, and where writing fails the older stays. A link
    stays, and what it leads to is replaced. What is no file to replace (a device such as /dev/null, a pipe, this
    process's own output) is written into. Raises OSError, which names `path`.
    """
    content = text.encode()
    try:
        if (stream := _stream(path)) is None:
            _replace(Path(os.path.realpath(path)), content, mode)
        else:
            with open(stream, "wb", closefd=isinstance(stream, Path)) as opened:
                opened.write(content)
    except OSError as fault:
        if fault.filename is not None:
            raise
        raise type(fault)(fault.errno, fault.strerror, str(path)) from fault  # as where the disk is full


def check_writable(path: Path) -> None:
    """Raise the OSError that `write_whole` would begin with now, naming what nothing can be written to; makes no
    directory, and leaves nothing behind.

    It tries, since what the permissions say is not all: root may write everywhere, and yet not in /proc. Only what is
    written into is not tried: who reads a pipe would see it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (stream := _stream(path)) is not None:
        if isinstance(stream, Path) and not os.access(stream, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    file = Path(os.path.realpath(path))
    there = next(parent for parent in file.parents if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{file.name}.", dir=there):
            pass
    except OSError as fault:
        raise type(fault)(fault.errno, fault.strerror, str(there)) from None


def _stream(path: Path) -> Path | int | None:
    """What to open where `path` is not to be replaced; None where it is, or nothing is there.

    Standard output and error are written into even where they lead to a file (``--page /dev/stdout > FILE``): what else
    is printed there would be lost with the file. They are named by number, since not every one can be opened anew.
    """
    for output in (1, 2):
        with contextlib.suppress(OSError):  # nothing is there, or the output is closed
            if os.path.samestat(os.stat(path), os.fstat(output)):
                return output
    return path if path.exists() and not path.is_file() else None


def _replace(file: Path, content: bytes, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # its owner alone may read it yet
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
