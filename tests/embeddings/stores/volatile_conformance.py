"""What every `VolatileStore` must do beyond an `EmbeddingStore`: calls that are for several tables at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hebe.embeddings.store import StoreError, VolatileStore

from .store_conformance import ANY_KEYS, KEYS, TABLE, TABLES, StoreConformance

Part = tuple[str, np.ndarray, list[bool]]


def chosen_among(table_and_keys: tuple[str, np.ndarray]) -> st.SearchStrategy[Part]:
    table, keys = table_and_keys
    return st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)).map(lambda mask: (table, keys, mask))


def parts_of(keys: st.SearchStrategy[np.ndarray]) -> st.SearchStrategy[list[Part]]:
    """Tables, which may come again, each with keys and which of them are meant."""
    return st.lists(st.tuples(TABLE, keys).flatmap(chosen_among), max_size=5)


INSERT, FILL = st.tuples(st.just("insert"), parts_of(KEYS)), st.tuples(st.just("fill"), parts_of(ANY_KEYS))


class TableBatch:
    """The arrays of a call for several tables; before and after them lies what is none of its business."""

    def __init__(self, parts: Sequence[Part], stamp: int) -> None:
        self.tables = [table for table, _, _ in parts]
        self.keys = np.concatenate([np.array([-7, -7]), *(keys for _, keys, _ in parts), np.array([-7])])
        self.starts = np.cumsum([2, *(len(keys) for _, keys, _ in parts)])
        self.bases = np.cumsum([3, *(len(keys) * TABLES[table] for table, keys, _ in parts)])
        self.rows = np.arange(self.bases[-1] + 4, dtype=np.float32) + 1000 * stamp
        self.chosen = np.array([True, True, *(chosen for _, _, mask in parts for chosen in mask), True])

    def arrays(self) -> dict[str, np.ndarray]:
        """By the name that calls give them."""
        return {"keys": self.keys, "starts": self.starts, "rows": self.rows, "bases": self.bases}

    def entries(self, rows: np.ndarray) -> list[tuple[int, str, int, np.ndarray]]:
        """Of every key of a table: its place, the table, the key, and its row as a view of `rows`."""
        return [
            (place, table, int(self.keys[place]), rows[at : at + TABLES[table]])
            for number, table in enumerate(self.tables)
            for place in range(self.starts[number], self.starts[number + 1])
            for at in [self.bases[number] + (place - self.starts[number]) * TABLES[table]]
        ]


class VolatileConformance(StoreConformance):
    """As `StoreConformance`; the fixture `make_store` gives an empty `VolatileStore` of `TABLES`."""

    def test_calls_for_several_tables_behave_as_dicts_of_rows(self, make_store: Callable[[], VolatileStore]) -> None:
        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(INSERT | FILL, max_size=6))
        def check(steps: list[tuple[str, list[Part]]]) -> None:
            store = make_store()
            model: dict[tuple[str, int], np.ndarray] = {}
            for stamp, (step, parts) in enumerate(steps, 1):
                batch = TableBatch(parts, stamp)
                if step == "insert":
                    batch.rows.flags.writeable = False
                    store.insert_tables(batch.tables, **batch.arrays(), chosen=batch.chosen)
                    model |= {
                        (table, key): row for at, table, key, row in batch.entries(batch.rows) if batch.chosen[at]
                    }
                    continue
                batch.rows[:] = np.nan
                untouched = np.arange(len(batch.keys)) % 2 == 0
                found = untouched.copy()
                count = store.fill_tables(batch.tables, **batch.arrays(), wanted=batch.chosen, found=found)
                expected, there = np.full_like(batch.rows, np.nan), untouched.copy()
                for at, table, key, row in batch.entries(expected):
                    if batch.chosen[at]:
                        there[at] = (table, key) in model
                        row[:] = model.get((table, key), np.nan)
                assert count == np.count_nonzero((there & batch.chosen)[2:-1])
                assert np.array_equal(found, there)
                np.testing.assert_array_equal(batch.rows, expected)
                store.touch([(table, keys) for table, keys, _ in parts])
            assert {table: store.size(table) for table in TABLES} == {
                table: sum(of == table for of, _ in model) for table in TABLES
            }
            store.close()

        check()

    def test_calls_for_several_tables_that_are_wrong(self, make_store: Callable[[], VolatileStore]) -> None:
        store = make_store()
        batch = TableBatch([("users", np.arange(4), [True] * 4), ("items", np.arange(3), [True] * 3)], 1)
        keys, found = np.arange(3), np.zeros(len(batch.keys), np.bool_)

        def calls(tables: Sequence[str], mask: np.ndarray, **arrays: np.ndarray) -> list[Callable[[], object]]:
            return [
                lambda: store.fill_tables(tables, **arrays, wanted=mask, found=found),
                lambda: store.insert_tables(tables, **arrays, chosen=mask),
            ]

        given_arrays = batch.arrays()
        for wrong in (
            {"starts": batch.starts + 4},
            {"starts": batch.starts[:-1]},
            {"bases": batch.bases + 10},
            {"bases": batch.bases[::-1].copy()},
            {"rows": batch.rows[:-5]},
        ):
            for call in calls(batch.tables, batch.chosen, **{**given_arrays, **wrong}):
                with pytest.raises(StoreError, match="do not go together"):
                    call()
        wide = np.zeros(2 * len(batch.rows), np.float32)
        for name, kind in (
            ("keys", batch.keys.astype(np.int32)),
            ("keys", batch.keys.astype(np.uint64)),
            ("keys", np.repeat(batch.keys, 2)[::2]),
            ("starts", batch.starts.astype(np.int32)),
            ("bases", batch.bases.astype(np.float64)),
            ("rows", batch.rows.astype(np.float64)),
            ("rows", batch.rows[None]),
            ("rows", wide[::2]),
        ):
            for call in calls(batch.tables, batch.chosen, **{**given_arrays, name: kind}):
                with pytest.raises(StoreError, match=rf"{name} of users, items: .*must be (int64|float32) \[n\]"):
                    call()
        for mask in (batch.chosen.astype(np.uint8), np.repeat(batch.chosen, 2)[::2], batch.chosen[None]):
            for call in calls(batch.tables, mask, **given_arrays):
                with pytest.raises(StoreError, match=r"a mask of users, items: .*must be bool \[n\]"):
                    call()
        frozen = batch.rows.copy()
        frozen.flags.writeable = False
        with pytest.raises(StoreError, match="read-only"):
            store.fill_tables(batch.tables, **{**given_arrays, "rows": frozen}, wanted=batch.chosen, found=found)
        for wrong_keys in (keys.astype(np.int32), keys[None], np.arange(6)[::2]):
            with pytest.raises(StoreError, match="keys of table users are"):
                store.touch([("users", wrong_keys)])
        for call in calls(batch.tables, batch.chosen[:5], **given_arrays):
            with pytest.raises(StoreError, match="do not go together"):
                call()
        for call in [*calls(["users", "ghost"], batch.chosen, **given_arrays), lambda: store.touch([("ghost", keys)])]:
            with pytest.raises(StoreError, match="no table ghost"):
                call()
        assert [store.size(table) for table in TABLES] == [0] * len(TABLES)
        store.close()
        for call in [*calls(batch.tables, batch.chosen, **given_arrays), lambda: store.touch([("users", keys)])]:
            with pytest.raises(StoreError, match="closed"):
                call()
