"""Whether RocksDB's own logs end as they should: the write-ahead logs, and the MANIFEST, which lists the files of rows.

RocksDB takes a log that ends within a record for one whose writer was killed, and forgets that record without a word.
That is right for the last write-ahead log: the write was never acknowledged, and rows and position of an update are one
record. It is wrong for the others and for the MANIFEST, where it would lose rows that were acknowledged. Nor does
it miss a log that is gone, as in a copy without `*.log`; but a database that somebody has open has one, if an empty
one. Damage within a record is RocksDB's to find, by its checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
from hashlib import blake2b
from pathlib import Path

from hebe.embeddings.rocksdb.directory import store_error
from hebe.embeddings.store import StoreError

_BLOCK_BYTES = 32768
_HEADER = struct.Struct("<IHB")
"""Checksum, length, type; a file that RocksDB uses again has four bytes more."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_REUSED = 4
"""Types 5 to 8 are those four in a file that is used again."""

_ADVICE = "restore a checkpoint, or remove the directory and load it anew"


def unfinished_bytes(file: Path) -> int:
    """Bytes at the end of a log that are no whole record; 0 where it ends as it should."""
    size = file.stat().st_size
    if not size:
        return 0
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log:
        at = whole = 0
        """Where the next part of a record begins, and where the last whole record ends."""
        while size - at >= _HEADER.size:
            left_in_block = _BLOCK_BYTES - at % _BLOCK_BYTES
            if left_in_block < _HEADER.size:  # too little for a header: zeros
                whole = min(at + left_in_block, size) if whole == at else whole
                at += left_in_block
                continue
            _, length, kind = _HEADER.unpack_from(log, at)
            if kind == 0 and length == 0:  # room that was reserved and not used
                return 0 if whole == at and not log[at:].strip(b"\0") else size - whole
            header = _HEADER.size
            if _LAST < kind <= _LAST + _REUSED:
                kind, header = kind - _REUSED, header + 4
            at += header + length
            if at <= size and kind not in (_FIRST, _MIDDLE):
                whole = at
        return size - whole


def fingerprint(rows: Path) -> str:
    """A checksum of which files the database in `rows` consists of. Raises `OSError` where it lacks its lists."""
    current = (rows / "CURRENT").read_bytes()
    manifest = rows / current.decode("ascii", "replace").strip()
    return blake2b(current + manifest.read_bytes(), digest_size=16).hexdigest()


def is_sealed(rows: Path, seal: str | None) -> bool:
    """Whether the database in `rows` is as it was when it was closed."""
    try:
        return seal is not None and fingerprint(rows) == seal
    except (OSError, ValueError):
        return False


def check_logs(path: Path, rows: Path, seal: str | None) -> str:
    """Check what can be checked before the database in `rows` of the store in `path` is opened.

    `seal` is the fingerprint that it had when it was closed, None if it was not. Returns what is worth a line in the
    log: that the last write before a crash was not finished; "" if all is whole. Raises `StoreError`.
    """
    try:
        now = fingerprint(rows)
    except (OSError, ValueError) as fault:
        raise store_error(path, f"is corrupted: CURRENT or MANIFEST is missing or unreadable: {_ADVICE}") from fault
    if seal is not None:
        if now != seal:
            raise store_error(path, f"is corrupted: its MANIFEST is not the one it was closed with: {_ADVICE}")
        return ""
    try:
        manifest = rows / (rows / "CURRENT").read_text().strip()
        if unfinished_bytes(manifest):
            raise store_error(path, f"is corrupted: {manifest.name} ends within a record: {_ADVICE}")
        logs = sorted((int(name[:-4]), name) for name in os.listdir(rows) if name.endswith(".log"))
        if not logs:
            raise store_error(
                path,
                f"is corrupted: it has no write-ahead log (NUMBER.log), and its writer did not close it: {_ADVICE}",
            )
        for _, name in logs[:-1]:
            if unfinished_bytes(rows / name):
                raise store_error(path, f"is corrupted: {name} ends within a record, and others follow it: {_ADVICE}")
        left = unfinished_bytes(rows / logs[-1][1])
    except (OSError, ValueError) as fault:
        raise StoreError(f"persistent store {path}: its logs cannot be read: {fault}") from fault
    return f"the last write before it was stopped was not finished: {left:,} bytes of {logs[-1][1]}" if left else ""
