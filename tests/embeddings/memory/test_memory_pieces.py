import ctypes
import itertools

import pytest

from hebe.embeddings.memory import memory_pieces
from hebe.embeddings.memory.memory_pieces import SEGMENT_BYTES, MemoryPieces, ZeroedMemory
from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.store import StoreError


@pytest.mark.parametrize("size_bytes", [8, 60_000, 70_000, 3 << 20])
def test_memory_is_zeros_and_writable_to_its_end(size_bytes):
    memory = ZeroedMemory(size_bytes)
    assert not any(ctypes.string_at(memory.address, size_bytes))
    ctypes.memset(memory.address, 1, size_bytes)
    assert memory.address % (HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 8) == 0
    memory.close()
    memory.close()


def test_pieces_lie_apart_on_cache_lines():
    pieces = MemoryPieces()
    sizes = [1, 64, 1000, SEGMENT_BYTES - 100, 5, SEGMENT_BYTES + 1]
    addresses = [pieces.piece(size) for size in sizes]
    assert all(address % 64 == 0 for address in addresses)
    ends = sorted((address, address + size) for address, size in zip(addresses, sizes, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    for address, size in zip(addresses, sizes, strict=True):
        ctypes.memset(address + size - 1, 1, 1)
    pieces.close()
    with pytest.raises(StoreError, match="closed"):
        pieces.piece(1)


def test_what_is_handed_out_is_counted_and_bounded():
    pieces = MemoryPieces(bound_bytes=1000)
    pieces.piece(128)
    block = pieces.block(500)
    pieces.claim(72)
    assert (pieces.taken_bytes, pieces.peak_bytes) == (700, 700)
    for take in (pieces.piece, pieces.block, pieces.claim):
        with pytest.raises(StoreError, match="pass the memory bound of 1,000 bytes"):
            take(320)
    pieces.release(block)
    pieces.claim(-72)
    assert (pieces.taken_bytes, pieces.peak_bytes) == (128, 700)
    pieces.close()


def test_more_than_the_machine_has_is_an_error(monkeypatch):
    monkeypatch.setattr(memory_pieces, "available_bytes", lambda: 1 << 20)
    pieces = MemoryPieces()
    for take in (pieces.piece, pieces.block):
        with pytest.raises(StoreError, match="1,048,576 are available"):
            take(3 << 20)
    pieces.block(1000)
    assert pieces.taken_bytes == 1000
    monkeypatch.setattr(memory_pieces, "available_bytes", lambda: None)
    with pytest.raises(StoreError, match="cannot map"):
        pieces.block(1 << 60)
    pieces.close()
