"""What every `EmbeddingStore` must do, checked against a plain dict. A store's tests subclass `StoreConformance`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hebe.embeddings.store import EmbeddingStore, StoreError

TABLES = {"users": 3, "items": 1}
CAPACITY = 16
"""At most so many keys of a table are ever present, but for `test_large_batches`, which has LARGE_CAPACITY."""

LARGE_CAPACITY = 12_000
ENDS = (-(2**63), -(2**63) + 1, -1, 2**63 - 2, 2**63 - 1)
"""Keys at the ends of int64, and the one that other code may take for "none"."""

STORED_KEY = st.integers(0, CAPACITY - 1 - len(ENDS)) | st.sampled_from(ENDS)
KEYS = st.lists(STORED_KEY, max_size=8).map(lambda keys: np.array(keys, np.int64))
ANY_KEYS = st.lists(STORED_KEY | st.sampled_from((-2, CAPACITY, 2**62)), max_size=8).map(
    lambda keys: np.array(keys, np.int64)
)
TABLE = st.sampled_from(sorted(TABLES))


def rows_for(table: str, keys: np.ndarray, stamp: int) -> np.ndarray:
    """A row that tells its table, its place in the call and the call."""
    places = np.arange(len(keys) * TABLES[table], dtype=np.float32).reshape(len(keys), TABLES[table])
    return places + 1000 * stamp


def held(store: EmbeddingStore) -> dict[str, dict[int, list[float]]]:
    """All rows of a store of `TABLES`, by table and key."""
    found_rows = {}
    for table, dim in TABLES.items():
        keys = np.concatenate([np.empty(0, np.int64), *store.dump_keys(table, 100)])
        rows, found = np.zeros((len(keys), dim), np.float32), np.zeros(len(keys), np.bool_)
        assert store.query(table, keys, rows, found) == len(keys)
        found_rows[table] = dict(zip(keys.tolist(), rows.tolist(), strict=True))
    return found_rows


def refuses_wrong_arrays(store: EmbeddingStore) -> None:
    """A store of `TABLES` that has rows of "users" under keys 0 to 2 refuses whatever a call does not take, and has the
    rows that it had afterwards.
    """
    before = held(store)
    assert before["users"].keys() >= {0, 1, 2}
    keys, rows, found = np.arange(3), rows_for("users", np.arange(3), 7), np.zeros(3, np.bool_)
    frozen_rows, frozen_mask = rows.copy(), found.copy()
    frozen_rows.flags.writeable = frozen_mask.flags.writeable = False
    wrong_keys = [
        *(keys.astype(dtype) for dtype in (np.int32, np.uint64, np.float64, np.bool_, ">i8")),
        *(keys[None], keys[:, None], np.array(1), np.arange(6)[::2], keys[::-1]),
    ]
    wrong_rows = [
        *(rows.astype(dtype) for dtype in (np.float64, np.float16, np.int32, np.uint8, ">f4")),
        *(rows[:, :2].copy(), np.zeros((3, 4), np.float32), rows[:2], np.zeros((4, 3), np.float32), rows.reshape(-1)),
        *(rows[None], np.asfortranarray(rows), np.zeros((6, 3), np.float32)[::2], np.zeros((3, 6), np.float32)[:, ::2]),
    ]
    wrong_masks = [
        *(found.astype(np.uint8), found[:2], np.zeros(4, np.bool_), found[None], np.zeros(6, np.bool_)[::2]),
        frozen_mask,
    ]
    calls: list[tuple[str, Callable[[], object]]] = []
    for wrong in wrong_keys:
        calls += [
            ("keys of table users", lambda wrong=wrong: store.query("users", wrong, rows, found)),
            ("keys of table users", lambda wrong=wrong: store.insert("users", wrong, rows)),
            ("keys of table users", lambda wrong=wrong: store.update("users", wrong, rows)),
            ("keys of table users", lambda wrong=wrong: store.delete("users", wrong)),
        ]
    for wrong in wrong_rows:
        calls += [
            ("for 3 keys of table users", lambda wrong=wrong: store.query("users", keys, wrong, found)),
            ("for 3 keys of table users", lambda wrong=wrong: store.insert("users", keys, wrong)),
            ("for 3 keys of table users", lambda wrong=wrong: store.update("users", keys, wrong)),
        ]
    calls += [
        ("mask found is", lambda wrong=wrong: store.query("users", keys, rows, wrong))  # type: ignore[misc]
        for wrong in wrong_masks
    ]
    calls += [("read-only", lambda: store.query("users", keys, frozen_rows, found))]
    calls += [
        (f"batch_size is {size}: must be at least 1", lambda size=size: list(store.dump_keys("users", size)))  # type: ignore[misc]
        for size in (0, -1)
    ]
    for said, call in calls:
        with pytest.raises(StoreError, match=said):
            call()
        assert held(store) == before
    assert np.array_equal(rows, rows_for("users", keys, 7))
    assert not found.any(), "buffers of calls that were refused are as they were"
    nothing = np.empty(0, np.int64)
    store.insert("users", nothing, np.empty((0, 3), np.float32))
    assert store.query("users", nothing, np.empty((0, 3), np.float32), np.empty(0, np.bool_)) == 0
    assert held(store) == before
    store.update("users", keys, frozen_rows)  # which is only read
    np.testing.assert_allclose(held(store)["users"][1], frozen_rows[1], rtol=1e-2)  # as its row format holds it


class StoreConformance:
    """Subclasses define the fixture `make_store`: a callable that gives an empty store of `TABLES`."""

    examples = 15
    """So often it is opened and driven through random calls."""

    def test_behaves_as_a_dict_of_rows(self, make_store: Callable[[], EmbeddingStore]) -> None:
        class Machine(RuleBasedStateMachine):
            @initialize()
            def start(self) -> None:
                self.store = make_store()
                self.model: dict[str, dict[int, np.ndarray]] = {table: {} for table in TABLES}
                self.stamp = 0

            @rule(table=TABLE, keys=KEYS)
            def insert(self, table: str, keys: np.ndarray) -> None:
                self.stamp += 1
                rows = rows_for(table, keys, self.stamp)
                self.store.insert(table, keys, rows)
                self.model[table].update(zip(keys.tolist(), rows, strict=True))

            @rule(table=TABLE, keys=ANY_KEYS)
            def update(self, table: str, keys: np.ndarray) -> None:
                self.stamp += 1
                rows = rows_for(table, keys, self.stamp)
                there = {key: row for key, row in zip(keys.tolist(), rows, strict=True) if key in self.model[table]}
                assert self.store.update(table, keys, rows) == len(there)
                self.model[table].update(there)

            @rule(table=TABLE, keys=ANY_KEYS)
            def delete(self, table: str, keys: np.ndarray) -> None:
                there = set(keys.tolist()) & set(self.model[table])
                assert self.store.delete(table, keys) == len(there)
                for key in there:
                    del self.model[table][key]

            @rule(table=TABLE, keys=ANY_KEYS)
            def query(self, table: str, keys: np.ndarray) -> None:
                keys.flags.writeable = False
                rows = np.full((len(keys), TABLES[table]), np.nan, np.float32)
                found = np.zeros(len(keys), np.bool_)
                count = self.store.query(table, keys, rows, found)
                assert found.tolist() == [key in self.model[table] for key in keys.tolist()]
                assert count == found.sum()
                for key, row in zip(keys.tolist(), rows, strict=True):
                    expected = self.model[table].get(key)
                    assert np.isnan(row).all() if expected is None else np.array_equal(row, expected)

            @rule(table=TABLE, batch_size=st.integers(1, 5))
            def dump_keys(self, table: str, batch_size: int) -> None:
                batches = [batch.tolist() for batch in self.store.dump_keys(table, batch_size)]
                assert all(1 <= len(batch) <= batch_size for batch in batches)
                assert sorted(key for batch in batches for key in batch) == sorted(self.model[table])

            @invariant()
            def sizes(self) -> None:
                if hasattr(self, "store"):
                    assert {t: self.store.size(t) for t in TABLES} == {t: len(rows) for t, rows in self.model.items()}

            def teardown(self) -> None:
                if hasattr(self, "store"):
                    self.store.close()

        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Machine,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=15,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    def test_large_batches(self, make_store: Callable[[], EmbeddingStore]) -> None:
        store = make_store()
        keys = np.random.default_rng(0).integers(0, LARGE_CAPACITY, 40_000)
        rows = rows_for("users", keys, 0)
        store.insert("users", keys, rows)
        last = dict(zip(keys.tolist(), rows, strict=True))
        got, found = np.zeros_like(rows), np.zeros(len(keys), np.bool_)
        assert store.query("users", keys, got, found) == len(keys)
        assert np.array_equal(got, np.stack([last[key] for key in keys.tolist()]))
        store.close()

    def test_arrays_that_a_call_does_not_take(self, make_store: Callable[[], EmbeddingStore]) -> None:
        store = make_store()
        for table in TABLES:
            store.insert(table, np.arange(5), rows_for(table, np.arange(5), 1))
        refuses_wrong_arrays(store)
        store.close()

    def test_unknown_tables_and_closed_stores_are_errors(self, make_store: Callable[[], EmbeddingStore]) -> None:
        store = make_store()
        keys, rows, found = np.array([1]), np.zeros((1, 3), np.float32), np.zeros(1, np.bool_)

        def calls(table: str) -> list[Callable[[], object]]:
            return [
                lambda: store.query(table, keys, rows, found),
                lambda: store.insert(table, keys, rows),
                lambda: store.update(table, keys, rows),
                lambda: store.delete(table, keys),
                lambda: list(store.dump_keys(table, 10)),
                lambda: store.size(table),
            ]

        for call in calls("nobody"):
            with pytest.raises(StoreError, match="no table nobody"):
                call()
        store.close()
        store.close()
        for call in calls("users"):
            with pytest.raises(StoreError, match="closed"):
                call()


def refuses_wrong_updates(store):
    """A store that keeps positions, empty, of table `users` with dim 3, notes nothing of an update that it refuses:
    neither its rows nor its keys nor its position.
    """
    keys, rows = np.arange(2), np.ones((2, 3), np.float32)
    store.apply("users", keys, rows, ("log", 1))
    for wrong_keys, wrong_rows in (
        (keys.astype(np.int32), rows),
        (keys.astype(np.int32), None),
        (np.arange(4)[::2], None),
        (keys, rows.astype(np.float64)),
        (keys, rows[:, :2].copy()),
    ):
        with pytest.raises(StoreError, match=r"keys of table users"):
            store.apply("users", wrong_keys, wrong_rows, ("log", 2))
    with pytest.raises(StoreError, match="no table nobody"):
        store.apply("nobody", keys, None, ("log", 2))
    assert (store.positions(), store.size("users")) == ({"log": 1}, 2)
