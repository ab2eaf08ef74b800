import numba
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hebe.kernels.hash_tables.xxh64 import hash_key, hash_key_reference, key_partitions

INT64 = st.integers(-(2**63), 2**63 - 1)
ENDS = np.array([-(2**63), -1, 0, 1, 2**63 - 1])


def library_hash(key: int) -> int:
    return xxhash.xxh64_intdigest(key.to_bytes(8, "little", signed=True), seed=0)


@numba.njit
def hash_within_a_kernel(key):
    return hash_key(key)


@given(st.lists(INT64, max_size=20))
def test_agrees_with_the_library_and_the_reference(keys):
    hashes = [int(hash_within_a_kernel(np.int64(key))) for key in keys]
    assert hashes == [library_hash(key) for key in keys] == [hash_key_reference(key) for key in keys]


@pytest.mark.parametrize("num_partitions", [1, 2, 3, 7, 16, 65536])
def test_a_partition_is_the_hash_modulo_their_number(num_partitions):
    keys = np.concatenate([ENDS, np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)])
    partitions = key_partitions(keys, num_partitions)
    assert partitions.dtype == np.int64
    assert partitions.tolist() == [library_hash(key) % num_partitions for key in keys.tolist()]


def test_the_ends():
    assert [int(hash_within_a_kernel(key)) for key in ENDS] == [library_hash(key) for key in ENDS.tolist()]


def test_keys_of_every_layout_but_of_one_kind():
    keys = np.arange(10)
    keys.flags.writeable = False
    assert key_partitions(keys[::2], 5).tolist() == key_partitions(keys, 5)[::2].tolist()
    assert key_partitions(np.empty(0, np.int64), 5).size == 0
    with pytest.raises(TypeError):
        key_partitions(keys.astype(np.int32), 5)
    with pytest.raises(TypeError):
        key_partitions(keys.reshape(2, 5), 5)
    with pytest.raises(ValueError, match="num_partitions is 0"):
        key_partitions(keys, 0)
