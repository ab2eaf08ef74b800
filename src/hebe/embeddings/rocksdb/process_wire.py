"""Messages to and from a persistent store in a process of its own: a head in JSON, then arrays as memory has them.

    bytes of the head (u32) | bytes of the arrays (u64) | head | arrays

Both ends are of one machine and one version of Hebe.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import StoreDamaged, StoreError, StoreUnavailable

_SIZES = struct.Struct("<IQ")
_KINDS: Mapping[str, type[StoreError]] = {"unavailable": StoreUnavailable, "damaged": StoreDamaged}


def send(connection: socket.socket, head: Mapping[str, Any], *arrays: npt.NDArray[Any]) -> None:
    """Send one message. Raises OSError when the other end is gone, or takes none of it within the time-out."""
    encoded = json.dumps(head).encode()
    bodies = [np.ascontiguousarray(array).data.cast("B") for array in arrays if array.size]
    parts = [memoryview(_SIZES.pack(len(encoded), sum(body.nbytes for body in bodies)) + encoded), *bodies]
    while parts:  # one call, unless a signal cuts it short: each lets go of the interpreter lock and waits for it
        sent = connection.sendmsg(parts)
        while parts and sent >= parts[0].nbytes:
            sent -= parts.pop(0).nbytes
        if sent:
            parts[0] = parts[0][sent:]


def receive(connection: socket.socket) -> tuple[dict[str, Any], memoryview]:
    """The next message: its head, and all of its arrays in one piece.

    Raises EOFError when the other end is gone, OSError when nothing comes within the time-out.
    """
    head_bytes, body_bytes = _SIZES.unpack(_read(connection, _SIZES.size))
    content = memoryview(_read(connection, head_bytes + body_bytes))
    return json.loads(bytes(content[:head_bytes])), content[head_bytes:]


def fault_head(fault: StoreError) -> dict[str, Any]:
    """The head that tells of a fault; `raise_fault` raises it at the other end."""
    kind = next((name for name, kind in _KINDS.items() if isinstance(fault, kind)), "")
    return {"fault": str(fault), "client_message": fault.client_message, "kind": kind}


def raise_fault(head: Mapping[str, Any]) -> None:
    """Raises the `StoreError` that a head tells of, if it does."""
    if "fault" in head:
        raise _KINDS.get(head["kind"], StoreError)(head["fault"], head["client_message"])


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = connection.recv_into(left, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the connection ended")
        left = left[count:]
    return data
