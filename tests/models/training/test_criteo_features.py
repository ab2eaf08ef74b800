"""The transform from Criteo rows to a model's inputs, against a plain formulation of its docstring."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.models.training.criteo import CriteoRows
from hebe.models.training.criteo_features import CriteoTransform
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SpecError

NAMES = tuple(f"C{number}" for number in range(1, 27))


def plain_key(value: bytes, column: int, rows: int) -> int:
    """The docstring's formula in Python's integers; `column` from 1."""
    if not value or rows == 1:
        return 0
    modulus = 2**64
    hashed = 0xCBF29CE484222325
    for octet in value:
        hashed = (hashed ^ octet) * 0x100000001B3 % modulus
    hashed = (hashed + column * 0x9E3779B97F4A7C15) % modulus
    hashed = (hashed ^ (hashed >> 30)) * 0xBF58476D1CE4E5B9 % modulus
    hashed = (hashed ^ (hashed >> 27)) * 0x94D049BB133111EB % modulus
    return 1 + (hashed ^ (hashed >> 31)) % (rows - 1)


@given(
    st.lists(st.binary(max_size=12).filter(lambda value: 0 not in value), min_size=26, max_size=26),
    st.lists(st.integers(1, 2**40), min_size=26, max_size=26),
)
def test_keys_are_the_documented_function(values, rows):
    keys = CriteoTransform(NAMES, tuple(rows)).keys(np.array([values], dtype="S12"))
    assert keys.dtype == np.int64
    assert keys.tolist() == [[plain_key(*row) for row in zip(values, range(1, 27), rows, strict=True)]]


def test_keys_do_not_depend_on_the_width_of_the_batch_or_on_its_neighbours():
    transform = CriteoTransform(NAMES, (1000,) * 26)
    narrow = np.full((2, 26), b"ab", dtype="S2")
    wide = narrow.astype("S60")
    assert (transform.keys(narrow) == transform.keys(wide)).all()
    assert (transform.keys(wide[:, ::-1]) == transform.keys(narrow)).all()


def test_keys_spread_over_the_table_and_columns_differ():
    transform = CriteoTransform(NAMES, (101,) * 26)
    values = np.array([[f"{value:08x}"] * 26 for value in range(20_000)], dtype="S8")
    keys = transform.keys(values)
    counts = np.bincount(keys[:, 0], minlength=101)
    assert counts[0] == 0
    # 200 expected in each row: 5 standard deviations of a binomial.
    assert abs(counts[1:] - 200).max() < 5 * math.sqrt(200)
    assert (keys[:, 0] == keys[:, 1]).mean() < 0.02


def test_keys_are_the_same_in_another_process():
    transform = CriteoTransform(NAMES, (997,) * 26)
    here = transform.keys(np.full((1, 26), b"68fd1e64")).tolist()
    code = (
        "import numpy as np; from hebe.models.training.criteo_features import CriteoTransform\n"
        f"print(CriteoTransform({NAMES!r}, (997,) * 26).keys(np.full((1, 26), b'68fd1e64')).tolist())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.strip() == str(here)


def test_dense_is_log1p_with_missing_and_negative_as_zero():
    integers = np.zeros((1, 13))
    integers[0, :4] = [np.nan, -3, 1, 1e12]
    dense = CriteoTransform(NAMES, (2,) * 26).dense(integers)
    assert dense.dtype == np.float32
    assert dense[0, :4].tolist() == [0, 0, np.float32(math.log(2)), np.float32(math.log1p(1e12))]


def criteo_spec(**changes) -> ModelSpec:
    settings = {
        "name": "small",
        "architecture": "dlrm",
        "tables": tuple(EmbeddingTableSpec(f"table{n}", 10 + n, 4) for n in range(26)),
        "features": tuple(FeatureSpec(f"feature{n}", f"table{n}", 1, Pooling.SUM) for n in range(26)),
        "dense_dim": 13,
    } | changes
    return ModelSpec(**settings)


def test_inputs_are_named_and_shaped_as_a_query():
    transform = CriteoTransform.for_model(criteo_spec())
    assert transform.rows == tuple(range(10, 36))
    categories = np.full((3, 26), b"ab")
    categories[1] = b""
    rows = CriteoRows(np.zeros(3, dtype=np.float32), np.ones((3, 13)), categories)
    inputs = transform.inputs(rows)
    assert list(inputs) == ["dense", *(f"feature{n}" for n in range(26))]
    assert inputs["dense"].shape == (3, 13)
    keys = transform.keys(categories)
    for n in range(26):
        assert inputs[f"feature{n}"].tolist() == keys[:, n : n + 1].tolist()
    assert (keys[1] == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dense_dim": 12}, "dense_dim is 12"),
        (
            {"features": criteo_spec().features[:25], "tables": criteo_spec().tables[:25]},
            "has 25 features",
        ),
        (
            {"features": (FeatureSpec("many", "table0", 2, Pooling.SUM), *criteo_spec().features[1:])},
            "feature many has 2 lookups",
        ),
    ],
)
def test_a_model_of_another_shape_is_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        CriteoTransform.for_model(criteo_spec(**changes))
