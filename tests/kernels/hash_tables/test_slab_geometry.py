import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.slab_memory import memory_for

from hebe.kernels.hash_tables.slab_geometry import CACHE_LINE_BYTES, SlabGeometry
from hebe.kernels.lookup.row_format import RowFormat

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
