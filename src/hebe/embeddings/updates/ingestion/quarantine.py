"""Where poison messages go: a directory that somebody can look into, with the bytes and the reason of each.

Where there is none, or no room, what is said of a message has as much of its bytes as it takes to find who sent it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from hebe.embeddings.updates.contract import Delivery, UpdateMessage
from hebe.embeddings.updates.message import encode, sender_in

MOST_MESSAGES = 1000
MOST_BYTES = 256 << 20
_TOLD_BYTES = 48
_SUFFIX = ".message"


class Quarantine:
    """Keeps up to `MOST_MESSAGES` messages, `MOST_BYTES` together, in `path`: what comes later is only counted.

    `MODEL.TABLE.PARTITION.OFFSET.DIGEST.message` holds a message's bytes, the file of that name and `.json` why it was
    put aside. The digest is of the bytes: a log that was made anew has other messages at the same offsets. None for
    `path` keeps nothing: what `put` returns must do.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = None if path is None else Path(path)
        self._count, self._bytes = 0, 0
        if self.path is not None:
            with contextlib.suppress(OSError):
                sizes = [entry.stat().st_size for entry in os.scandir(self.path) if entry.name.endswith(_SUFFIX)]
                self._count, self._bytes = len(sizes), sum(sizes)

    def put(self, delivery: Delivery, fault: str) -> str:
        """Put a message aside; returns where it is, or why it is nowhere and what it began with.

        Raises nothing: the rest must go on.
        """
        at = delivery.at
        payload = delivery.payload or b""
        if not payload and isinstance(delivery.message, UpdateMessage):
            with contextlib.suppress(ValueError):
                payload = encode(delivery.message, at)
        if self.path is None:
            return f"not kept: there is no quarantine directory; {_told(payload)}"
        if self._count >= MOST_MESSAGES or self._bytes + len(payload) > MOST_BYTES:
            held = f"{self.path} holds {self._count} messages of {self._bytes:,} bytes already"
            return f"not kept: {held}; {_told(payload)}"
        digest = hashlib.blake2b(payload, digest_size=4).hexdigest()
        file = self.path / f"{at.model}.{at.table}.{at.partition}.{delivery.offset}.{digest}{_SUFFIX}"
        told = file.with_name(f"{file.name}.json")
        unfinished = {each: each.with_name(f"{each.name}.unfinished") for each in (file, told)}
        record = {"model": at.model, "table": at.table, "partition": at.partition, "offset": delivery.offset}
        record |= {"fault": fault, "put_aside_s": time.time()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            known = file.stat().st_size if file.exists() else None
            unfinished[file].write_bytes(payload)
            unfinished[told].write_text(json.dumps(record))
            for each, written in unfinished.items():  # who looks in meanwhile finds all of it or none
                written.replace(each)
        except OSError as why:
            for written in unfinished.values():  # what an earlier delivery left stays
                with contextlib.suppress(OSError):
                    written.unlink(missing_ok=True)
            return f"not kept: {self.path}: {why.strerror}; {_told(payload)}"
        self._count += known is None
        self._bytes += len(payload) - (known or 0)
        return str(file)


def _told(payload: bytes) -> str:
    """Of bytes that are kept nowhere, what helps to find their sender."""
    if not payload:
        return "it has no bytes"
    begin = f"its {len(payload):,} bytes begin with {payload[:_TOLD_BYTES].hex()}"
    sender = sender_in(payload)
    return begin if sender is None else f"{begin}, and name producer {sender[0]}, message {sender[1]}"
