from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.lookup.feature_plan import COPY, PLAN_COLUMNS, POOL_MEAN, POOL_SUM
from hebe.kernels.lookup.fused_lookup import fused_lookup, fused_lookup_reference
from hebe.kernels.lookup.padding import describe_copies
from hebe.kernels.lookup.row_format import RowFormat, encode_rows

NOTHING_FETCHED = np.empty(0, np.float32)
FORMATS = list(RowFormat)


class Lookup:
    """A flat table array, a plan, and the widths of the matrices that fit it."""

    def __init__(
        self, features: list[tuple[int, int, int, int]], seed: int = 0, row_format: RowFormat = RowFormat.FP32
    ) -> None:
        """`features`: (rows, dim, lookups, pooling) each with a table of its own."""
        self.row_format = row_format
        self.rng = np.random.default_rng(seed)
        self.features = features
        self.plan = np.zeros((len(features), PLAN_COLUMNS), np.int64)
        self.key_columns = self.width = start = 0
        tables = []
        for entry, (rows, dim, lookups, pooling) in zip(self.plan, features, strict=True):
            entry[:] = (self.key_columns, lookups, start, dim, rows, self.width, pooling)
            self.key_columns += lookups
            self.width += dim * lookups if pooling == COPY else dim
            table = np.empty((rows, row_format.row_bytes(dim)), np.uint8)
            encode_rows(row_format, self.rng.standard_normal((rows, dim)).astype(np.float32), table)
            tables.append(table.reshape(-1))
            start += table.size
        self.tables = np.concatenate(tables)

    def keys(self, items: int, least: int = 0) -> np.ndarray:
        columns = [self.rng.integers(least, rows, (items, lookups)) for rows, _, lookups, _ in self.features]
        return np.concatenate(columns, axis=1)

    def check(self, keys: np.ndarray, fetched: np.ndarray = NOTHING_FETCHED) -> tuple[int, int]:
        out = np.full((len(keys) + 1, self.width), np.nan, np.float32)
        expected = out.copy()
        counts = fused_lookup(self.tables, fetched, keys, self.plan, out, row_format=self.row_format)
        assert counts == fused_lookup_reference(self.tables, fetched, keys, self.plan, expected, self.row_format)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
        assert np.isnan(out[-1]).all()  # rows past the batch are not ours
        return counts


FEATURES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 50]),
        st.sampled_from([1, 3, 4, 7, 16, 33, 64, 100, 1024]),
        st.sampled_from([1, 2, 20]),
        st.sampled_from([POOL_SUM, POOL_MEAN, COPY]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(FEATURES, st.sampled_from([0, 1, 2, 40]), st.integers(0, 2**32 - 1), st.sampled_from(FORMATS))
def test_agrees_with_the_reference(features, items, seed, row_format):
    lookup = Lookup(features, seed, row_format)
    found, refused = lookup.check(lookup.keys(items, least=-1))
    assert found <= items * lookup.key_columns
    assert refused == 0


@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
@pytest.mark.parametrize("lookups", [1, 5])
def test_items_of_padding_alone_are_zeros(pooling, lookups):
    lookup = Lookup([(10, 7, lookups, pooling)])
    out = np.full((3, lookup.width), np.nan, np.float32)
    keys = np.full((3, lookups), -1)
    assert fused_lookup(lookup.tables, NOTHING_FETCHED, keys, lookup.plan, out) == (0, 0)
    assert not out.any()


@pytest.mark.parametrize("dim", [1, 16, 64, 90])
def test_sum_and_mean_agree_with_torch(dim):
    for pooling, mode in ((POOL_SUM, "sum"), (POOL_MEAN, "mean")):
        lookup = Lookup([(1000, dim, 80, pooling)])
        keys = lookup.keys(20)
        out = np.empty((20, dim), np.float32)
        fused_lookup(lookup.tables, NOTHING_FETCHED, keys, lookup.plan, out)
        weight = torch.from_numpy(lookup.tables.view(np.float32).reshape(1000, dim))
        expected = torch.nn.functional.embedding_bag(torch.from_numpy(keys), weight, mode=mode)
        np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row_format", FORMATS)
@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
def test_keys_below_minus_one_name_fetched_rows(pooling, row_format):
    lookup = Lookup([(10, 7, 4, pooling), (5, 1, 1, POOL_SUM)], row_format=row_format)
    fetched = lookup.rng.standard_normal(7 * 3).astype(np.float32)
    keys = np.array([[-2, 3, -2 - 7, -1, 4], [-2 - 14, -1, -1, 9, -2 - 20]])
    assert lookup.check(keys, fetched) == (7, 0)


@pytest.mark.parametrize("row_format", FORMATS)
@pytest.mark.parametrize("pooling", [POOL_SUM, COPY])
@pytest.mark.parametrize("key", [10, 2**62, -(2**63), -2 - 15])
def test_keys_out_of_range_are_refused_and_read_nothing(pooling, key, row_format):
    lookup = Lookup([(10, 7, 2, pooling)], row_format=row_format)
    fetched = np.ones(7 * 3, np.float32)
    keys = np.array([[1, key]])
    assert lookup.check(keys, fetched) == (1, 1)


def test_copies_are_made_before_the_lookup():
    lookup = Lookup([(10, 7, 3, POOL_SUM), (20, 4, 1, COPY)])
    keys = lookup.keys(4)
    raw = b"xyz" + keys[:, :3].tobytes()
    received = np.frombuffer(raw, np.int64, offset=3).reshape(4, 3)
    assert not received.flags.aligned
    matrix = np.full((2, 4), -1)
    copies = describe_copies([received, keys[:, 3:].copy()], [0, 3], 1, 3, matrix, 0)
    out, expected = np.empty((2, lookup.width), np.float32), np.empty((2, lookup.width), np.float32)
    assert fused_lookup(lookup.tables, NOTHING_FETCHED, matrix, lookup.plan, out, copies) == (8, 0)
    assert (matrix == keys[1:3]).all()
    fused_lookup_reference(lookup.tables, NOTHING_FETCHED, keys[1:3], lookup.plan, expected)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_wrong_arguments_are_errors():
    lookup = Lookup([(10, 7, 3, POOL_SUM)])
    keys, out = lookup.keys(4), np.empty((4, 7), np.float32)
    with pytest.raises(ValueError, match="4 items into an output of 2"):
        fused_lookup(lookup.tables, NOTHING_FETCHED, keys, lookup.plan, out[:2])
    for arrays in (
        (lookup.tables[1:], keys, lookup.plan, out),
        (lookup.tables, keys[:, 1:].copy(), lookup.plan, out),
        (lookup.tables, keys, -lookup.plan, out),
        (lookup.tables, keys, lookup.plan, out[:, 1:].copy()),
    ):
        with pytest.raises(ValueError, match="the plan reaches past"):
            fused_lookup(arrays[0], NOTHING_FETCHED, *arrays[1:])
    with pytest.raises(TypeError):
        fused_lookup(lookup.tables, NOTHING_FETCHED, keys.astype(np.int32), lookup.plan, out)
    with pytest.raises(TypeError):
        fused_lookup(lookup.tables, NOTHING_FETCHED, keys, lookup.plan, out.astype(np.float64))


def test_threads_share_the_tables():
    lookup = Lookup([(5000, 64, 20, POOL_SUM), (100, 7, 1, COPY)])
    batches = [lookup.keys(64, least=-1) for _ in range(32)]

    def run(keys):
        out = np.empty((64, lookup.width), np.float32)
        for _ in range(5):
            fused_lookup(lookup.tables, NOTHING_FETCHED, keys, lookup.plan, out)
        return out

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(run, batches))
    for keys, out in zip(batches, together, strict=True):
        assert np.array_equal(out, run(keys))
