from concurrent.futures import ThreadPoolExecutor

import pytest

from hebe.embeddings.store import StoreError
from hebe.runtime.accelerator_memory import AcceleratorMemory


def test_what_is_reserved_is_not_free_until_it_is_released():
    memory = AcceleratorMemory(100)
    first, second = memory.reserve(60, "one"), memory.reserve(40, "two")
    assert (memory.reserved_bytes, memory.free_bytes) == (100, 0)
    first.release()
    first.release()
    assert memory.free_bytes == 60
    with memory.reserve(60, "three"):
        assert memory.free_bytes == 0
    assert memory.free_bytes == 60
    second.release()
    assert memory.free_bytes == memory.capacity_bytes == 100


def test_two_alike_are_two():
    memory = AcceleratorMemory(100)
    first, _ = memory.reserve(50, "one"), memory.reserve(50, "one")
    first.release()
    first.release()
    assert memory.free_bytes == 50


def test_what_does_not_fit_is_refused_in_words():
    memory = AcceleratorMemory(100)
    with pytest.raises(
        StoreError, match=r"hot rows need 101 bytes of the accelerator's memory and 100 of 100 are free: "
    ):
        memory.reserve(101, "hot rows")
    memory.reserve(70, "the DenseNet")
    with pytest.raises(StoreError, match=r"need 31 bytes .* 30 of 100 are free beside 70 of the DenseNet"):
        memory.reserve(31, "hot rows")
    assert memory.free_bytes == 30


def test_impossible_amounts_are_errors():
    with pytest.raises(ValueError, match="-1 bytes"):
        AcceleratorMemory(-1)
    with pytest.raises(ValueError, match="rows: -5 bytes"):
        AcceleratorMemory(10).reserve(-5, "rows")


def test_threads_never_reserve_more_than_there_is():
    memory = AcceleratorMemory(10)

    def reserve(_):
        try:
            return memory.reserve(1, "row")
        except StoreError:
            return None

    with ThreadPoolExecutor(4) as threads:
        reserved = list(threads.map(reserve, range(40)))
    assert sum(reservation is not None for reservation in reserved) == 10
