import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.memory.model_rows import KeyedRows, ModelRows, dense_rows, first_keys, keyed_chunks
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec

TABLES = (EmbeddingTableSpec("users", 10, 4), EmbeddingTableSpec("items", 5, 1))


def rows_of(identity: str, version: int = 1) -> ModelRows:
    return ModelRows("ads", version, TABLES, {}, identity)


def test_other_files_or_another_version_are_another_content() -> None:
    contents = {rows_of(identity, version).content for identity in ("a" * 40, "b" * 40) for version in (1, 2)}
    assert len(contents) == 4
    assert rows_of("a" * 40).content == rows_of("a" * 40).content


def test_a_content_without_identity_is_named_by_model_and_version() -> None:
    assert rows_of("").content == "ads.1"
    assert rows_of("").dims == {"users": 4, "items": 1}


TABLE = EmbeddingTableSpec("users", 5, 2)


class Keyed:
    """Rows that are their keys, in pieces of two."""

    place = "there"

    def __init__(self, keys: list[int], dim: int = 2, dtype: type = np.float32) -> None:
        self._keys = np.array(sorted(keys), np.int64)
        self._dim, self._dtype = dim, dtype

    @property
    def rows(self) -> int:
        return self._keys.size

    def chunks(self):
        for first in range(0, self.rows, 2):
            keys = self._keys[first : first + 2]
            yield keys, np.repeat(keys, self._dim).reshape(-1, self._dim).astype(self._dtype)

    def first_keys(self, count: int):
        return self._keys[::-1][:count].copy()


def collected(source, rows: int) -> dict[int, list[float]]:
    return {
        key: row
        for keys, chunk in keyed_chunks(TABLE, source, rows)
        for key, row in zip(keys.tolist(), chunk.tolist(), strict=True)
    }


def test_what_has_keys_is_told_from_what_has_row_numbers() -> None:
    assert isinstance(Keyed([1]), KeyedRows)
    for other in (np.zeros((5, 2), np.float32), [np.zeros((5, 2), np.float32)], iter(())):
        assert not isinstance(other, KeyedRows)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9, unique=True), st.integers(0, 9))
def test_the_first_rows_in_order_of_key(keys: list[int], wanted: int) -> None:
    wanted = min(wanted, len(keys))
    expected = {key: [float(np.float32(key))] * 2 for key in sorted(keys)[:wanted]}
    assert collected(Keyed(keys), wanted) == expected


def test_row_numbers_are_the_keys_of_what_has_none() -> None:
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert collected(rows, 5) == dict(enumerate(rows.tolist()))
    assert collected([rows[:3], rows[3:]], 4) == dict(enumerate(rows[:4].tolist()))


def test_wrong_sources() -> None:
    with pytest.raises(StoreError, match="table users has 2 rows: must have 5"):
        collected(Keyed([7, 8]), 5)
    with pytest.raises(StoreError, match=r"table users is float32 \[2, 3\]: must be float32 \[n, 2\]"):
        collected(Keyed([7, 8], dim=3), 2)
    with pytest.raises(StoreError, match="float64"):
        collected(Keyed([7, 8], dtype=np.float64), 2)


class NotFinite(Keyed):
    """Of which the rows of odd keys are not all numbers."""

    def chunks(self):
        for keys, rows in super().chunks():
            rows[keys % 2 == 1, 1] = np.nan if keys[0] < 0 else np.inf
            yield keys, rows


def test_rows_that_are_not_finite_are_counted_and_the_first_named() -> None:
    said = r"there of table users: 3 of 6 rows are not finite \(inf or nan\), the first that of key -3: training"
    with pytest.raises(StoreError, match=said) as fault:
        collected(NotFinite([-4, -3, 0, 1, 5, 6]), 6)
    assert "there" not in fault.value.client_message
    assert len(collected(NotFinite([0, 2, 4, 6]), 4)) == 4


def test_what_a_cache_begins_with() -> None:
    assert first_keys(TABLE, Keyed([5, -9, 7]), 2).tolist() == [7, 5]
    rows = np.zeros((5, 2), np.float32)
    assert first_keys(TABLE, rows, 3).tolist() == [0, 1, 2]
    assert first_keys(TABLE, None, 30).tolist() == [0, 1, 2, 3, 4]
    assert dense_rows(TABLE, rows) == 5
    assert dense_rows(TABLE, Keyed([0, 1, 2, 3, 4])) == 0


def test_a_store_is_loaded_under_the_keys(tmp_path) -> None:
    keys = [-(2**63), -5, 0, 3, 2**63 - 1]
    with contextlib.closing(
        RocksDbStore.load(tmp_path / "store", [TABLE], {"users": Keyed(keys)}, "one", read_only=False)
    ) as store:
        assert store.size("users") == 5
        assert [key for part in store.dump_keys("users", 2) for key in part.tolist()] == keys
        asked = np.array([3, 1, -5, 2**63 - 1], np.int64)
        rows, found = np.zeros((4, 2), np.float32), np.zeros(4, np.bool_)
        assert store.query("users", asked, rows, found) == 3
        assert found.tolist() == [True, False, True, True]
        assert rows[found, 0].tolist() == [3, -5, float(np.float32(2**63 - 1))]
        assert store.update("users", np.array([1, 3]), np.ones((2, 2), np.float32)) == 1, "key 1 is not there"
        store.insert("users", np.array([1]), np.ones((1, 2), np.float32))
        assert store.size("users") == 6
