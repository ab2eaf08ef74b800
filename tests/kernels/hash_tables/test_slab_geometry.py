import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.hash_tables.slab_geometry import (
    CACHE_LINE_BYTES,
    TAGS_AT_ONCE,
    SlabGeometry,
    lowest_bit,
    matching_tags,
)
from hebe.kernels.lookup.row_format import RowFormat
from tests.kernels.slab_memory import memory_for

GEOMETRIES = st.builds(
    SlabGeometry, st.integers(1, 5), st.integers(1, 4), st.integers(1, 200), st.sampled_from(list(RowFormat))
)


@given(GEOMETRIES)
def test_no_byte_is_of_two_parts_and_each_part_has_room_for_all(geometry):
    memory = memory_for(geometry)
    arrays = geometry.arrays(memory)
    for number, part in enumerate(arrays, 1):
        assert part.ctypes.data % CACHE_LINE_BYTES == 0
        assert not part.any(), "no part before it reaches into this one"
        part.view(np.uint8)[:] = number
    assert memory.all()
    assert arrays.tags.size >= geometry.slots
    assert arrays.state.size >= geometry.sets * (1 + geometry.slots_per_set / 64)
    assert arrays.slots.size >= 2 * geometry.slots
    assert arrays.rows.size >= geometry.slots * geometry.row_format.row_bytes(geometry.dim)


@given(GEOMETRIES)
def test_rows_begin_on_whole_words(geometry):
    assert geometry.stride_bytes % 4 == 0
    assert 0 <= geometry.stride_bytes - geometry.row_format.row_bytes(geometry.dim) < 4


@pytest.mark.parametrize(
    ("field", "shape"),
    [("sets", (0, 1, 1)), ("slabs_per_set", (1, 65, 1)), ("dim", (1, 1, 0)), ("dim", (1, 1, (1 << 16) + 1))],
)
def test_fields_out_of_range_are_errors(field, shape):
    with pytest.raises(ValueError, match=f"{field} is"):
        SlabGeometry(*shape)


def test_memory_of_another_size_or_kind_is_an_error():
    geometry = SlabGeometry(1, 1, 3)
    memory = memory_for(geometry)
    for wrong in (memory[1:], memory.view(np.int8), memory.reshape(1, -1)):
        with pytest.raises(ValueError, match="must be uint8"):
            geometry.arrays(wrong)


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
