from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hebe.serving.errors import InvalidInput
from hebe.serving.tensors import DATATYPES, MAX_RANK, tensor_from_buffer, tensor_from_values

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


@given(st.data(), st.sampled_from(sorted(DATATYPES)), SHAPES)
def test_what_was_packed_comes_out(data, datatype, shape):
    array = data.draw(hnp.arrays(DATATYPES[datatype], shape))
    tensor = tensor_from_buffer("x", datatype, list(shape), array.tobytes())
    assert tensor.values.dtype == DATATYPES[datatype]
    assert tensor.values.tobytes() == array.tobytes()
    assert tensor.shape == shape


@given(st.data(), st.sampled_from(["INT64", "INT32", "UINT64", "UINT8", "BOOL", "FP32", "FP64"]), SHAPES, st.booleans())
def test_what_json_can_say_comes_out(data, datatype, shape, nested):
    elements = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    array = data.draw(hnp.arrays(DATATYPES[datatype], shape, elements=elements or None))
    listed = array.tolist() if nested and array.size else array.reshape(-1).tolist()
    tensor = tensor_from_values("x", datatype, list(shape), listed)
    np.testing.assert_array_equal(tensor.values, array.reshape(-1))
    assert tensor.values.dtype == array.dtype


def test_values_are_a_view_of_the_buffer():
    buffer = bytearray(np.arange(4).tobytes())
    tensor = tensor_from_buffer("x", "INT64", [4], memoryview(buffer))
    buffer[0] = 9
    assert tensor.values[0] == 9


def test_values_are_views_wherever_they_lie():
    buffer = np.zeros(33, np.uint8)
    buffer[1:] = np.arange(4).view(np.uint8)
    tensor = tensor_from_buffer("x", "INT64", [4], memoryview(buffer)[1:])
    assert tensor.values.tolist() == [0, 1, 2, 3]
    buffer[1] = 9
    assert tensor.values[0] == 9


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "message"),
    [
        ("INT64", [2, 2], 31, "has 31 bytes of data; INT64 of shape [2, 2] needs 32"),
        ("INT64", [2, 2], 40, "has 40 bytes of data; INT64 of shape [2, 2] needs 32"),
        ("INT64", [2**62, 2**62], 8, "has 8 bytes of data"),
        ("BYTES", [1], 8, "datatype 'BYTES' is not supported; use INT64, INT32 or FP32"),
        ("int64", [1], 8, "datatype 'int64' is not supported"),
        ("INT64", [-1], 8, "sizes must be whole numbers, not negative"),
        ("INT64", [1.0], 8, "sizes must be whole numbers"),
        ("INT64", [True], 8, "sizes must be whole numbers"),
        ("INT64", ["1"], 8, "sizes must be whole numbers"),
        ("INT64", [1] * (MAX_RANK + 1), 8, "shape has 9 dimensions; at most 8"),
    ],
)
def test_contradictions_of_a_raw_tensor(datatype, shape, size, message):
    with pytest.raises(InvalidInput) as error:
        tensor_from_buffer("keys", datatype, shape, bytes(size))
    assert message in error.value.message
    assert error.value.message.startswith("input 'keys': ")


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("INT64", [2], [1], "data has 1 element(s) of shape [1]; shape [2] needs 2"),
        ("INT64", [2, 1], [[1, 2]], "data has 2 element(s) of shape [1, 2]; shape [2, 1] needs 2"),
        ("INT64", [2, 2], [[1, 2], [3]], "data is ragged"),
        ("INT64", [1], [1.5], "data must be whole numbers for INT64"),
        ("INT64", [1], ["1"], "data must be whole numbers for INT64"),
        ("INT64", [1], [None], "data must be whole numbers for INT64"),
        ("INT64", [1], [True], "data must be whole numbers for INT64"),
        ("INT64", [1], [{}], "data must be whole numbers for INT64"),
        ("INT64", [1], [2**63], "value 9223372036854775808 does not fit INT64"),
        ("INT64", [1], [2**70], "data must be whole numbers for INT64"),
        ("INT32", [1], [-(2**31) - 1], "value -2147483649 does not fit INT32 (-2147483648..2147483647)"),
        ("UINT8", [1], [-1], "value -1 does not fit UINT8"),
        ("FP32", [1], ["x"], "data must be numbers for FP32"),
        ("BOOL", [1], [1], "data must be booleans for BOOL"),
        ("INT64", [1], 1, "data has 1 element(s) of shape []"),
        ("INT64", [1], "1", "data has 1 element(s) of shape []"),
        ("INT64", [1], None, "data has 1 element(s) of shape []"),
        ("INT64", [1], {"a": 1}, "data has 1 element(s) of shape []"),
    ],
)
def test_contradictions_of_a_listed_tensor(datatype, shape, data, message):
    with pytest.raises(InvalidInput) as error:
        tensor_from_values("keys", datatype, shape, data)
    assert message in error.value.message


def test_too_deeply_nested_data_is_ragged():
    data = 1
    for _ in range(100):
        data = [data]
    with pytest.raises(InvalidInput, match=r"nested too deeply|element"):
        tensor_from_values("keys", "INT64", [1], data)
