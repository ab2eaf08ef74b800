"""An update message as bytes: what stands in a Kafka record, a Redis stream entry or a record of a log directory.

    header   45 bytes, little-endian: magic "HEBU", version, kind (0 rows, 1 tombstones), length in bytes of the
             producer's, the model's and the table's name, partition, keys, dim (0 for tombstones), sequence, sent_s
             (of the oldest row), span_s (of the newest after it)
    names    producer, model, table, in UTF-8
    keys     int64 each, little-endian
    rows     float32 each, little-endian, row after row
    check    CRC-32 of all before

Nothing of it is ever executed or unpickled. The names say where the message belongs, so that one that strays into
another topic is told.

Messages of version 1, which are read too, have no span_s. Their newest row may be as much younger as rows may wait.
"""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np

from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.limits import LONGEST_LINGER_S, MOST_BYTES, MOST_DIM, MOST_PARTITIONS
from hebe.spec import SpecError, check_name

MAGIC = b"HEBU"
VERSION = 2

_HEADER = struct.Struct("<4sBBBBBIIIQdd")
_HEADER_1 = struct.Struct("<4sBBBBBIIIQd")
"""Of version 1."""
_CHECK = struct.Struct("<I")
_ROWS, _TOMBSTONES = 0, 1


class MessageFault(ValueError):
    """Bytes that are no message, or not one of this partition; says why."""


def message_bytes(producer: str, topic: Topic, keys: int, dim: int) -> int:
    """Size of a message of `keys` keys with rows of `dim` floats (0: tombstones)."""
    names = len(producer) + len(topic.model) + len(topic.table)
    return _HEADER.size + names + keys * (8 + 4 * dim) + _CHECK.size


def most_keys(producer: str, topic: Topic, dim: int, most_bytes: int) -> int:
    """Keys that fit into a message of `most_bytes`; may be 0."""
    return max(0, (most_bytes - message_bytes(producer, topic, 0, dim)) // (8 + 4 * dim))


def encode(message: UpdateMessage, at: TopicPartition) -> bytes:
    """The bytes of `message` for partition `at`. Raises ValueError for what could not be read back."""
    keys, rows = message.keys, message.rows
    dim = 0 if rows is None else rows.shape[1] if rows.ndim == 2 else -1
    if keys.ndim != 1 or (rows is not None and (rows.shape != (len(keys), dim) or not 1 <= dim <= MOST_DIM)):
        shape = "tombstones" if rows is None else f"rows {list(rows.shape)}"
        raise ValueError(f"keys {list(keys.shape)} with {shape}: must be [n] with [n, dim], dim in [1, {MOST_DIM}]")
    if not len(keys):
        raise ValueError("a message without keys")
    if not 0 <= at.partition < MOST_PARTITIONS or not 0 <= message.sequence < 1 << 64:
        raise ValueError(f"partition {at.partition}, sequence {message.sequence}: out of range")
    if not math.isfinite(message.sent_s):
        raise ValueError(f"sent_s is {message.sent_s}: must be finite")
    if not 0 <= message.span_s < math.inf:
        raise ValueError(f"span_s is {message.span_s}: must be finite and at least 0")
    names = []
    for kind, name in (("producer", message.producer), ("model", at.model), ("table", at.table)):
        check_name(kind, name)
        names.append(name.encode())
    size = message_bytes(message.producer, at.topic, len(keys), dim)
    if size > MOST_BYTES:
        raise ValueError(f"a message of {size:,} bytes: at most {MOST_BYTES:,}")
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        _TOMBSTONES if rows is None else _ROWS,
        *map(len, names),
        at.partition,
        len(keys),
        dim,
        message.sequence,
        message.sent_s,
        message.span_s,
    )
    parts = [header, *names, np.ascontiguousarray(keys, "<i8").tobytes()]
    if rows is not None:
        parts.append(np.ascontiguousarray(rows, "<f4").tobytes())
    body = b"".join(parts)
    return body + _CHECK.pack(zlib.crc32(body))


def sender_in(payload: bytes) -> tuple[str, int] | None:
    """The producer and the number of a message, as bytes say that may be broken; None if they do not say."""
    layout = _header_of(payload)
    if len(payload) < layout.size or not payload.startswith(MAGIC):
        return None
    header = layout.unpack_from(payload)
    name = payload[layout.size : layout.size + header[3]]
    try:
        producer = name.decode()
        check_name("producer", producer)
    except (UnicodeDecodeError, SpecError):
        return None
    return producer, header[9]


def keys_of(payload: bytes) -> int:
    """How many keys a message has that `encode` made."""
    count: int = _HEADER.unpack_from(payload)[7]
    return count


def _header_of(payload: bytes) -> struct.Struct:
    """The header that a message of that version has."""
    return _HEADER_1 if payload[len(MAGIC) : len(MAGIC) + 1] == b"\x01" else _HEADER


def decode(payload: bytes, at: TopicPartition) -> UpdateMessage:
    """The message in `payload`, which came out of partition `at`; its arrays are copies.

    Raises `MessageFault` for anything but a whole, unchanged message of a known version that belongs there.
    """
    size = len(payload)
    if size > MOST_BYTES:
        raise MessageFault(f"{size:,} bytes: a message has at most {MOST_BYTES:,}")
    layout = _header_of(payload)
    if size < layout.size + _CHECK.size:
        raise MessageFault(f"{size} bytes: truncated, a message has at least {layout.size + _CHECK.size}")
    magic, version, kind, producer_size, model_size, table_size, partition, count, dim, sequence, sent_s, *later = (
        layout.unpack_from(payload)
    )
    span_s = later[0] if later else LONGEST_LINGER_S
    if magic != MAGIC:
        raise MessageFault(f"begins with {magic!r}: not an update message of Hebe")
    if version not in (1, VERSION):
        raise MessageFault(f"has version {version}, this one reads up to {VERSION}")
    expected = layout.size + producer_size + model_size + table_size + count * (8 + 4 * dim) + _CHECK.size
    if size != expected:
        raise MessageFault(f"{size:,} bytes: its header says {expected:,}; truncated or corrupt")
    body = memoryview(payload)[: -_CHECK.size]
    if _CHECK.unpack_from(payload, len(body))[0] != zlib.crc32(body):
        raise MessageFault("its checksum does not fit: corrupt")
    tombstones = kind == _TOMBSTONES
    if kind not in (_ROWS, _TOMBSTONES) or not count or tombstones != (dim == 0) or dim > MOST_DIM:
        raise MessageFault(f"kind {kind} with {count} keys and dim {dim}: there is none such")
    if not math.isfinite(sent_s):
        raise MessageFault(f"sent_s is {sent_s}: must be finite")
    if not 0 <= span_s < math.inf:
        raise MessageFault(f"span_s is {span_s}: must be finite and at least 0")
    first = layout.size
    names = []
    for what, length in (("producer", producer_size), ("model", model_size), ("table", table_size)):
        try:
            names.append(bytes(body[first : first + length]).decode())
            check_name(what, names[-1])
        except (UnicodeDecodeError, SpecError) as fault:
            raise MessageFault(f"name of its {what}: {fault}") from None
        first += length
    if (names[1], names[2], partition) != (at.model, at.table, at.partition):
        raise MessageFault(
            f"is for partition {partition} of model {names[1]}, table {names[2]}; it came in partition {at.partition} "
            f"of model {at.model}, table {at.table}"
        )
    keys = np.frombuffer(body, "<i8", count, first).astype(np.int64)
    rows = None
    if not tombstones:
        rows = np.frombuffer(body, "<f4", count * dim, first + 8 * count).astype(np.float32).reshape(count, dim)
    return UpdateMessage(names[0], sequence, sent_s, keys, rows, span_s)
