import numpy as np
import pytest

from hebe.embeddings.memory_store import MemoryStore
from hebe.embeddings.store import StoreError

from .store_conformance import CAPACITY, TABLES, StoreConformance

SHAPES = {table: (CAPACITY, dim) for table, dim in TABLES.items()}


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def make_store(self):
        return lambda: MemoryStore(SHAPES)

    def test_a_key_beyond_the_capacity_is_an_error(self):
        store = MemoryStore(SHAPES)
        for key in (-1, CAPACITY):
            with pytest.raises(StoreError, match=f"key {key} of table items: must be at least 0 and below {CAPACITY}"):
                store.insert("items", np.array([0, key]), np.zeros((2, 1), np.float32))
        assert store.size("items") == 0
        store.close()

    def test_loaded_rows_are_all_present(self):
        rows = {table: np.random.default_rng(0).random((CAPACITY, dim), np.float32) for table, dim in TABLES.items()}
        store = MemoryStore(SHAPES)
        store.load(rows)
        got, found = np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
        assert store.query("users", np.array([11, 4]), got, found) == 2
        assert np.array_equal(got, rows["users"][[11, 4]])
        assert store.size("users") == CAPACITY
        store.close()
