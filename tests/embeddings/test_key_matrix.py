import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.key_matrix import check_keys, fill_keys, fill_lengths
from hebe.query import JaggedKeys
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "model",
    "dlrm",
    (EmbeddingTableSpec("t", 100, 4),),
    (
        FeatureSpec("history", "t", 3, Pooling.ATTENTION),
        FeatureSpec("pooled", "t", 2, Pooling.SUM),
        FeatureSpec("likes", "t", 2, Pooling.CONCAT),
    ),
)


def jagged(lists):
    return JaggedKeys(
        np.array([key for keys in lists for key in keys], np.int64),
        np.cumsum([0, *map(len, lists)]),
    )


def test_sub_queries_stand_below_each_other():
    first = {"history": jagged([[1, 2, 3], [], [4]]), "pooled": np.arange(6).reshape(3, 2), "likes": jagged([[]] * 3)}
    second = {"history": np.full((2, 3), 9), "pooled": jagged([[5], [6, 7]]), "likes": np.array([[8, 8], [0, 0]])}
    out = np.full((5, 7), 77)
    fill_keys(out, 0, first, 1, 3, SPEC)
    fill_keys(out, 2, second, 0, 2, SPEC)
    assert out.tolist() == [
        [-1, -1, -1, 2, 3, -1, -1],
        [4, -1, -1, 4, 5, -1, -1],
        [9, 9, 9, 5, -1, 8, 8],
        [9, 9, 9, 6, 7, 0, 0],
        [77] * 7,
    ]
    lengths = np.full((5, 2), 77)
    fill_lengths(lengths, out[:4], SPEC)
    assert lengths.tolist() == [[0, 0], [1, 0], [3, 2], [3, 2], [77, 77]]


def test_received_bytes_are_read_as_they_are():
    raw = b"z" + np.arange(6).tobytes()
    received = np.frombuffer(raw, np.int64, offset=1)
    features = {
        "history": received.reshape(2, 3),
        "pooled": received[:4].reshape(2, 2),
        "likes": JaggedKeys(received[:3], np.frombuffer(b"z" + np.array([0, 1, 3]).tobytes(), np.int64, offset=1)),
    }
    out = np.zeros((2, 7), np.int64)
    fill_keys(out, 0, features, 0, 2, SPEC)
    assert out.tolist() == [[0, 1, 2, 0, 1, 0, -1], [3, 4, 5, 2, 3, 1, 2]]
    assert check_keys(features["history"], 5) == (1, 5)
    assert check_keys(features["likes"], 2) == (1, 2)


@given(st.lists(st.lists(st.integers(-3, 12) | st.sampled_from([2**62, -(2**63)]), max_size=3), max_size=6))
def test_the_first_key_out_of_range_is_named(lists):
    bad = [(item, key) for item, keys in enumerate(lists) for key in keys if not 0 <= key < 10]
    assert check_keys(jagged(lists), 10) == (bad[0] if bad else None)
    if lists and all(len(keys) == len(lists[0]) for keys in lists):
        fixed = np.array(lists, np.int64).reshape(len(lists), -1)
        assert check_keys(fixed, 10) == (bad[0] if bad else None)


def test_a_query_that_does_not_fit_the_batch_is_an_error():
    features = {"history": np.zeros((2, 3), np.int64), "pooled": np.zeros((2, 2), np.int64), "likes": jagged([[], []])}
    with pytest.raises(ValueError, match=r"broadcast|do not fit"):
        fill_keys(np.zeros((2, 7), np.int64), 1, features, 0, 2, SPEC)
