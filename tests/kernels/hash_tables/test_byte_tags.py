import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.hash_tables.slab_geometry import TAGS_AT_ONCE, lowest_bit, matching_tags


@numba.njit(**OPTIONS)
def match(tags, index, tag):
    mask = matching_tags(tags, index, tag)
    return mask, lowest_bit(mask) if mask else -1


@settings(deadline=None)
@given(st.integers(0, 40), st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 2**32 - 1))
def test_each_bit_says_of_one_tag_whether_it_is_that(index, tag, seed):
    rng = np.random.default_rng(seed)
    tags = np.where(rng.random(index + TAGS_AT_ONCE) < 0.1, tag, rng.integers(0, 256, index + TAGS_AT_ONCE))
    tags = tags.astype(np.uint8)
    places = np.flatnonzero(tags[index:] == tag).tolist()
    mask, lowest = match(tags, index, np.uint8(tag))
    assert mask == sum(1 << place for place in places)
    assert lowest == (places[0] if places else -1)
