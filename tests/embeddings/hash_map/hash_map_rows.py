"""Rows of a hash map that tell their key."""

import numpy as np


def rows_of(keys, dim):
    """Rows that tell their key."""
    return np.repeat(np.asarray(keys, np.float32)[:, None], dim, axis=1)


def query(store, keys, dim, table="t"):
    rows, found = np.zeros((len(keys), dim), np.float32), np.zeros(len(keys), np.bool_)
    store.query(table, np.asarray(keys), rows, found)
    return rows, found
