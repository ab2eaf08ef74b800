"""How a store's content is written in RocksDB: keys, rows, what is noted beside them, and RocksDB's options.

A key is its eight bytes, big-endian, with the sign bit flipped, so that RocksDB's order is that of the numbers. A row
is its float32 bytes, little-endian. Each table has a column family `table:NAME`; the default one holds the notes: how
many rows a table has, and up to which position of which log of updates they are. A position is its offset, eight bytes
big-endian, and the mark of the message there, which stores of older versions do not have.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import rocksdict

from hebe.embeddings.store import KeyArray, RowArray

_SIGN = np.uint64(1 << 63)
_COUNT, _POSITION = b"rows:", b"position:"
_OFFSET = struct.Struct(">q")
_LOG_FILES_KEPT = 4
_UNWRITTEN_BYTES = 256 << 20
"""The most memory that updates take before they go to files: RocksDB would take 128 MiB for each table."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a table has; all keys in `[0, dense)` are among them, so that nobody need look for those."""

    rows: int = 0
    dense: int = 0


def encode_keys(keys: KeyArray) -> list[bytes]:
    """Keys as RocksDB has them."""
    return (keys.view(np.uint64) ^ _SIGN).astype(">u8").view("V8").tolist()  # type: ignore[no-any-return]


def decode_keys(keys: list[bytes]) -> KeyArray:
    """The inverse of `encode_keys`."""
    return (np.frombuffer(b"".join(keys), ">u8").astype(np.uint64) ^ _SIGN).view(np.int64)


def encode_rows(rows: RowArray) -> list[bytes]:
    """Rows `[n, dim]` as RocksDB has them."""
    size = 4 * rows.shape[1]
    return np.ascontiguousarray(rows, "<f4").view(f"V{size}").reshape(-1).tolist()


def count_note(table: str, count: RowCount) -> tuple[bytes, bytes]:
    """Key and value of the note of a table's rows."""
    return _COUNT + table.encode(), struct.pack(">qq", count.rows, count.dense)


@dataclass(frozen=True, slots=True)
class Position:
    """An offset in the log of updates `log`, and the mark of the message there; "" if that is not known."""

    log: str
    offset: int
    mark: str = ""


def position_note(position: Position) -> tuple[bytes, bytes]:
    """Key and value of the note of a position."""
    return _POSITION + position.log.encode(), _OFFSET.pack(position.offset) + position.mark.encode()


def read_notes(notes: list[tuple[bytes, bytes]]) -> tuple[dict[str, RowCount], dict[str, Position]]:
    """Rows by table, and positions by log. Raises ValueError for notes that are not ours."""
    counts, positions = {}, {}
    try:
        for key, value in notes:
            if key.startswith(_COUNT):
                counts[key[len(_COUNT) :].decode()] = RowCount(*struct.unpack(">qq", value))
            elif key.startswith(_POSITION):
                log, (offset,) = key[len(_POSITION) :].decode(), _OFFSET.unpack_from(value)
                positions[log] = Position(log, offset, value[_OFFSET.size :].decode())
            else:
                raise ValueError("its key is not ours")
    except (struct.error, ValueError) as fault:
        raise ValueError(f"Corruption: note {key!r}: {fault}") from fault
    return counts, positions


def family_name(table: str) -> str:
    """The column family of a table, which may be called "default" where RocksDB keeps that for itself."""
    return f"table:{table}"


def database_options(block_cache_bytes: int = 0, *, creates: bool = False, tolerates_cut_log: bool = False) -> Any:
    """RocksDB's options: checksums over all, nothing compressed, as floats do not.

    Without a block cache the system's page cache is the only one; that is faster by half while it holds the rows, and
    no memory is taken twice. A log of recent writes with a damaged record is refused; one that ends within a record
    only if not `tolerates_cut_log`.
    """
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_checksum_type(rocksdict.ChecksumType.xxh3())
    blocks.set_format_version(5)
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    if block_cache_bytes:
        blocks.set_block_cache(rocksdict.Cache(block_cache_bytes))
    else:
        blocks.disable_cache()
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(creates)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_paranoid_checks(True)
    options.set_db_write_buffer_size(_UNWRITTEN_BYTES)
    options.set_keep_log_file_num(_LOG_FILES_KEPT)
    options.set_wal_recovery_mode(
        rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records()
        if tolerates_cut_log
        else rocksdict.DBRecoveryMode.absolute_consistency()
    )
    return options
