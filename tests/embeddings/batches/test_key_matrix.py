import numpy as np
import pytest

from hebe.embeddings.batches.key_matrix import describe_keys, fill_lengths, find_keys, place_described, place_keys
from hebe.kernels.lookup.padding import copy_fixed
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


def fill_keys(out, *place):
    copy_fixed(place_keys(out, *place), out)


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


def test_a_query_that_does_not_fit_the_batch_is_an_error():
    features = {"history": np.zeros((2, 3), np.int64), "pooled": np.zeros((2, 2), np.int64), "likes": jagged([[], []])}
    with pytest.raises(ValueError, match=r"broadcast|do not fit"):
        fill_keys(np.zeros((2, 7), np.int64), 1, features, 0, 2, SPEC)


def test_described_keys_stand_where_placed_ones_do():
    features = {"history": np.arange(9).reshape(3, 3), "pooled": np.arange(6).reshape(3, 2) + 20}
    features["likes"] = features["pooled"] + 20
    buffer = b"".join(features[name].tobytes() for name in ("likes", "history", "pooled"))
    described = describe_keys(SPEC, 3, {"likes": 0, "history": 48, "pooled": 120})
    assert find_keys(memoryview(buffer), described, np.array([100] * 3), 0, 0)
    placed, out = np.full((5, 7), 77), np.full((5, 7), 77)
    fill_keys(placed, 2, features, 1, 3, SPEC)
    copy_fixed(place_described(out, 2, described, 1, 3), out)
    assert out.tolist() == placed.tolist()
    for row, start, stop in ((4, 1, 3), (-1, 1, 3), (0, 2, 4), (0, -1, 1), (0, 2, 1)):
        with pytest.raises(ValueError, match="do not fit"):
            place_described(out, row, described, start, stop)
