import numpy as np
import pytest

from hebe.embeddings.memory.resident_rows import ResidentRows
from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.store import StoreError
from hebe.kernels.lookup.row_format import RowFormat
from tests.embeddings.stores.store_conformance import refuses_wrong_arrays

TOLERANCE = {RowFormat.FP32: 0.0, RowFormat.FP16: 1e-2, RowFormat.INT8: 1e-1}


@pytest.fixture(params=list(RowFormat))
def memory(request):
    """Row i of `users` is all i, of `items` all -i."""
    made = TableMemory({"users": (10, 3), "items": (4, 1)}, request.param)
    numbers = np.arange(10, dtype=np.float32)[:, None]
    made.fill({"users": np.repeat(numbers, 3, axis=1), "items": -numbers[:4]})
    yield made
    made.close()


def rows_of(store: ResidentRows, table: str, keys: list[int], dim: int) -> tuple[np.ndarray, list[bool]]:
    rows, found = np.full((len(keys), dim), 99, np.float32), np.zeros(len(keys), np.bool_)
    assert store.query(table, np.array(keys, np.int64), rows, found) == found.sum()
    return rows, found.tolist()


def test_every_row_is_there_and_nothing_else(memory):
    store = ResidentRows(memory)
    rows, found = rows_of(store, "users", [9, -1, 3, 10, -(2**63), 2**63 - 1], 3)
    assert found == [True, False, True, False, False, False]
    np.testing.assert_allclose(rows[:, 1], [9, 99, 3, 99, 99, 99], atol=TOLERANCE[memory.row_format])
    assert store.size("items") == 4
    assert [keys.tolist() for keys in store.dump_keys("users", 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_updates_are_seen_in_place_and_the_last_of_repeated_keys_wins(memory):
    store = ResidentRows(memory)
    before = memory.stored("items").copy()
    rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    store.insert("users", np.array([5, 6, 5]), rows)
    np.testing.assert_allclose(rows_of(store, "users", [5, 6], 3)[0], rows[[2, 1]], atol=TOLERANCE[memory.row_format])
    assert store.update("users", np.array([7, 7, 50]), rows) == 1
    np.testing.assert_allclose(rows_of(store, "users", [7], 3)[0], rows[1:2], atol=TOLERANCE[memory.row_format])
    assert np.array_equal(memory.stored("items"), before)


def test_keys_that_no_row_has_are_counted(memory):
    store = ResidentRows(memory)
    before = memory.flat.copy()
    assert store.refused_keys == {"users": 0, "items": 0}
    store.insert("users", np.array([10, -1, 2**40]), np.ones((3, 3), np.float32))
    store.insert("items", np.array([4]), np.ones((1, 1), np.float32))
    assert store.refused_keys == {"users": 3, "items": 1}
    store.delete("users", np.array([11]))
    assert store.refused_keys["users"] == 3, "it is as deleted as it can be"
    assert np.array_equal(memory.flat, before)
    rows = np.zeros((2, 3), np.float32)
    memory.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            store.insert("users", np.array([1, 12]), rows)
    assert store.refused_keys["users"] == 3, "what is tried again is counted once"


def test_rows_beyond_what_the_format_holds_are_counted(memory):
    store = ResidentRows(memory)
    rows = np.array([[1, 2, 3], [1, 2, 65505], [65504, -65504, 0], [-1e9, 0, 0]], np.float32)
    store.insert("users", np.array([1, 2, 3, 4]), rows)
    store.insert("users", np.array([2, 3]), rows[[3, 2]])
    store.insert("users", np.array([30]), rows[3:])
    wanted = {"users": 3 if memory.row_format is RowFormat.FP16 else 0, "items": 0}
    assert store.unheld_rows == wanted
    if memory.row_format is RowFormat.FP16:
        assert rows_of(store, "users", [2], 3)[0].tolist() == [[-65504, 0, 0]]
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        store.insert("users", np.array([2]), rows[3:])
    assert store.unheld_rows == wanted, "what is tried again is counted once"


def test_deleted_rows_become_the_default_vector(memory):
    store = ResidentRows(memory, {"users": 0.5})
    assert store.delete("users", np.array([1, 1, 30])) == 1
    assert store.delete("items", np.array([2])) == 1
    np.testing.assert_allclose(rows_of(store, "users", [1], 3)[0], 0.5, atol=TOLERANCE[memory.row_format])
    assert rows_of(store, "items", [2], 1)[0].tolist() == [[0.0]]


def test_arrays_that_a_call_does_not_take(memory):
    refuses_wrong_arrays(ResidentRows(memory))


def test_unknown_tables_and_closed_memory_are_errors(memory):
    store = ResidentRows(memory)
    with pytest.raises(StoreError, match="no table ghosts"):
        store.size("ghosts")
    with pytest.raises(StoreError, match="no table ghosts"):
        store.insert("ghosts", np.array([1]), np.ones((1, 3), np.float32))
    with pytest.raises(StoreError, match="no table ghosts"):
        store.delete("ghosts", np.array([1]))
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        store.update("users", np.array([1]), np.ones((1, 3), np.float32))
