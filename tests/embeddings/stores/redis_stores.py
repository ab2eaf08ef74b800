"""What tests of stores in Redis put into them and expect back: rows that tell their key, in namespaces of their own."""

import contextlib
import itertools
import time

import numpy as np

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.store import StoreUnavailable

from .store_conformance import TABLES

PATIENT = RedisAccess(timeout_s=30.0)
"""For what must work on a machine that is busy with something else."""

IMPATIENT = RedisAccess(timeout_s=0.3)
FOUR = VolatileOptions(4)
NAMESPACES = (f"model-{number}" for number in itertools.count())


def rows_of(keys, dim=3, add=0.0):
    """A row that tells its key."""
    return (np.asarray(keys)[:, None] + np.arange(dim) / 8 + add).astype(np.float32)


def fetched(store, keys, table="users", add=0.0):
    """Which of `keys` are there; their rows are as `rows_of` made them."""
    keys = np.asarray(keys)
    rows, found = np.full((len(keys), store.dims[table]), np.nan, np.float32), np.zeros(len(keys), np.bool_)
    assert store.query(table, keys, rows, found) == found.sum()
    assert np.array_equal(rows[found], rows_of(keys[found], store.dims[table], add))
    assert np.isnan(rows[~found]).all()
    return found


def put(store, keys, table="users", add=0.0):
    store.insert(table, np.asarray(keys), rows_of(keys, store.dims[table], add))


def both(keys):
    """A call for these keys of both tables: table names, and arrays by name; rows tell their key."""
    count = len(keys)
    rows = np.concatenate([rows_of(keys, TABLES[table]).reshape(-1) for table in ("users", "items")])
    starts, bases = np.array([0, count, 2 * count]), np.array([0, 3 * count, 4 * count])
    return ("users", "items"), {"keys": np.tile(keys, 2), "starts": starts, "rows": rows, "bases": bases}


def insert_both(store, keys):
    tables, arrays = both(keys)
    store.insert_tables(tables, **arrays, chosen=np.ones(2 * len(keys), np.bool_))


def fill_both(store, keys):
    """Which are there of both tables, one after the other; their rows are as `both` made them."""
    tables, arrays = both(keys)
    expected = arrays["rows"].copy()
    arrays["rows"][:] = np.nan
    wanted, found = np.ones(2 * len(keys), np.bool_), np.zeros(2 * len(keys), np.bool_)
    assert store.fill_tables(tables, **arrays, wanted=wanted, found=found) == found.sum()
    filled = np.concatenate([np.repeat(found[: len(keys)], 3), found[len(keys) :]])
    assert np.array_equal(arrays["rows"][filled], expected[filled])
    return found


def all_keys(store, table="users"):
    return np.sort(np.concatenate([np.empty(0, np.int64), *store.dump_keys(table, 1000)]))


def heals(holds, timeout_s=60.0):
    """Whether `holds()` within the time, `StoreUnavailable` aside."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(StoreUnavailable):
            if holds():
                return True
        time.sleep(0.05)
    return False
