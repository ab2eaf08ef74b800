import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hebe.kernels.deduplicate import Deduplicator, deduplicate_reference

KEYS = st.integers(-2, 5) | st.sampled_from((-(2**63), 2**63 - 1, 2**32, -(2**32)))


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(0, 9), st.just(6)), elements=KEYS),
    st.lists(st.sampled_from(((0, 2), (2, 1), (3, 0), (3, 3))), unique=True),
    st.integers(0, 100),
    st.integers(1, 8),
)
def test_agrees_with_the_reference(keys: np.ndarray, blocks: list[tuple[int, int]], base: int, dim: int) -> None:
    deduplicator = Deduplicator()
    columns = np.array(blocks, np.int64).reshape(-1, 2)
    expected_matrix = keys.copy()
    expected = deduplicate_reference(expected_matrix, columns, base, dim)
    for _ in range(2):
        matrix = keys.copy()
        ours = deduplicator.run(matrix, columns, base, dim)
        assert ours.tolist() == expected.tolist()
        assert np.array_equal(matrix, expected_matrix)


def test_buffers_serve_large_and_small_batches() -> None:
    rng = np.random.default_rng(0)
    deduplicator = Deduplicator()
    for items in (3, 5000, 7):
        keys = rng.integers(-1, 3 * items, (items, 4))
        matrix = keys.copy()
        distinct = deduplicator.run(matrix, np.array([[1, 2]]), 10, 4)
        used, places = keys[:, 1:3], matrix[:, 1:3]
        numbers = (-2 - places[used != -1] - 10) // 4
        assert np.array_equal(distinct[numbers], used[used != -1])
        assert len(np.unique(distinct)) == len(distinct)
        assert np.array_equal(matrix[:, [0, 3]], keys[:, [0, 3]])


def test_keys_that_share_their_low_bits_stay_apart() -> None:
    keys = (np.arange(4096, dtype=np.int64) << 40).reshape(-1, 1)
    distinct = Deduplicator().run(keys.copy(), np.array([[0, 1]]), 0, 1)
    assert np.array_equal(distinct, keys[:, 0])


def test_columns_beyond_the_matrix_are_an_error() -> None:
    with pytest.raises(ValueError, match="key matrix"):
        Deduplicator().run(np.zeros((2, 3), np.int64), np.array([[2, 2]]), 0, 1)
