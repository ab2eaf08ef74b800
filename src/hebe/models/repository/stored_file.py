"""One file of a stored model: written durably with its SHA-256, checked when it is read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""

_READ_BYTES = 8 << 20
_SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")


class RepositoryError(RuntimeError):
    """A stored model that cannot be read or written; names the file, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a stored model knows of one of its files: its length, and the SHA-256 of its bytes in hex.

    Raises ValueError for what neither can be: records are read from files.
    """

    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.size_bytes, int) or isinstance(self.size_bytes, bool) or self.size_bytes < 0:
            raise ValueError(f"size_bytes is {self.size_bytes!r}: must be a whole number of at least 0")
        if not isinstance(self.sha256, str) or not _SHA256_PATTERN.match(self.sha256):
            raise ValueError(f"sha256 is {self.sha256!r}: must be 64 hexadecimal digits")


def no_progress(_done_bytes: int) -> None:
    """The progress callback of those who do not watch."""


def write_durably(path: Path, pieces: Iterable[bytes | memoryview], progress: Progress = no_progress) -> FileRecord:
    """Write `pieces` one after another to the new file `path` and flush it to the disk.

    Raises OSError (a full disk among them), and whatever `pieces` raises; the file is then incomplete.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            digest.update(rest)
            size_bytes += len(rest)
            while rest:
                written = file.write(rest)
                progress(written)
                rest = rest[written:]
        os.fsync(file.fileno())
    return FileRecord(size_bytes, digest.hexdigest())


def flush_directory(path: Path) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Make a directory, and those above it that are missing, with names that survive a power failure."""
    missing = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        flush_directory(each.parent)


def why_no_file(path: Path) -> str | None:
    """What is there instead of a file; None where one is. Raises `OSError` where nobody may look."""
    if path.is_file():
        return None
    return "a directory" if path.is_dir() else "not a regular file" if path.exists() else "no such file"


def check_size(path: Path, record: FileRecord) -> None:
    """Raise `RepositoryError` unless the file is there with the length that was recorded."""
    try:
        other = why_no_file(path)
        size_bytes = 0 if other else path.stat().st_size
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror}") from None
    if other:
        raise RepositoryError(f"{path}: {other}; restore it from a backup, or write the model again")
    if size_bytes != record.size_bytes:
        what = "truncated" if size_bytes < record.size_bytes else "too long"
        raise RepositoryError(
            f"{path}: {what}: {size_bytes} bytes, expected {record.size_bytes}; "
            "restore it from a backup, or write the model again"
        )


def check_sha256(path: Path, record: FileRecord, progress: Progress = no_progress) -> None:
    """Read the whole file; raise `RepositoryError` unless its SHA-256 is the recorded one."""
    check_size(path, record)
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(_READ_BYTES)
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                progress(count)
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror}") from None
    compare_sha256(path, digest.hexdigest(), record)


def read_checked(path: Path, record: FileRecord) -> bytes:
    """The file's bytes; raises `RepositoryError` unless their length and SHA-256 are the recorded ones."""
    check_size(path, record)
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror}") from None
    compare_sha256(path, hashlib.sha256(content).hexdigest(), record)
    return content


def compare_sha256(path: Path, sha256: str, record: FileRecord) -> None:
    """Raise `RepositoryError` unless `sha256`, of the file's bytes, is the recorded one."""
    if sha256 != record.sha256:
        raise RepositoryError(
            f"{path}: checksum differs: SHA-256 is {sha256[:12]}..., expected {record.sha256[:12]}...; "
            "the file was damaged or edited: restore it from a backup, or write the model again"
        )
