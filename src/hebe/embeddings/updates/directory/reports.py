"""What the readers of a log directory have reported: one file for each, replaced as a whole.

    readers/READER.json    {"offsets": {"MODEL/TABLE/PARTITION": offset, ...}, "reported_s": Unix seconds}

A crash of the machine may take the last report back, or leave the file empty. Nothing is lost by it: where a store is
in the log, its own rows say.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from hebe.embeddings.updates.contract import REPORT_EXPIRY_S, TopicPartition
from hebe.embeddings.updates.directory.segments import file_faults

_MOST_BYTES = 1 << 24


def write_report(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Report that a store has all up to these offsets (-1: nothing). Raises `StoreError`."""
    named = {f"{at.model}/{at.table}/{at.partition}": offset for at, offset in sorted(offsets.items())}
    with file_faults(path, "cannot report how far the store is"):
        path.parent.mkdir(exist_ok=True)  # not its parents: while there is no log, nobody makes half of one
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            with open(temporary, "x") as written:  # for whom the umask says, as the files beside it
                json.dump({"offsets": named, "reported_s": time.time()}, written)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_report(path: Path) -> dict[TopicPartition, int] | None:
    """What `write_report` was given last; None where there is none, it is damaged, or older than `REPORT_EXPIRY_S`."""
    with (
        file_faults(path, "cannot be read"),
        contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError),
    ):
        if path.stat().st_size > _MOST_BYTES:
            return None
        report = json.loads(path.read_bytes())
        if time.time() - report["reported_s"] > REPORT_EXPIRY_S:
            return None
        places = {tuple(name.split("/")): int(offset) for name, offset in report["offsets"].items()}
        return {TopicPartition(model, table, int(part)): offset for (model, table, part), offset in places.items()}
    return None


def reporting(directory: Path) -> list[str]:
    """The readers whose reports have not expired, in order. Files of the others are removed where that is allowed."""
    found = []
    with file_faults(directory, "cannot be read"):
        for path in directory.glob("*.json"):
            if read_report(path) is not None:
                found.append(path.stem)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
    return sorted(found)
