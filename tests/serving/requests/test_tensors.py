from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hebe.serving.grpc.protocol import message
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.tensors import DATATYPES, MAX_RANK, tensor_from_buffer, tensor_from_field, tensor_from_values

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
        ("INT64", [2**62, 2**62], 8, "makes 21267647932558653966460912964485513216 elements; at most 92233"),
        ("INT64", [2**63], 8, "sizes must be whole numbers, not negative, of at most 9223372036854775807"),
        ("INT64", [10**4000, 10**4000], 8, "sizes must be whole numbers, not negative, of at most 92233720"),
        ("INT64", [0, 10**4000], 0, "sizes must be whole numbers, not negative, of at most 92233720"),
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
        ("INT64", [2], [1], "data has 1 element(s); shape [2] needs 2"),
        ("INT64", [2, 1], [[1, 2]], "data is ragged, or nested otherwise than its shape"),
        ("INT64", [2, 2], [[1, 2], [3]], "data is ragged"),
        ("INT64", [2, 1], [[1], 2], "data is ragged"),
        ("INT64", [2, 1], [1, [2]], "data must be whole numbers for INT64"),
        ("INT64", [1, 1], [[[1]]], "data must be whole numbers for INT64"),
        ("INT64", [1], [1.5], "data must be whole numbers for INT64"),
        ("INT64", [1], ["1"], "data must be whole numbers for INT64"),
        ("INT64", [1], [None], "data must be whole numbers for INT64"),
        ("INT64", [1], [True], "data must be whole numbers for INT64"),
        ("INT64", [2], [True, 1], "data must be whole numbers for INT64"),
        ("INT64", [2, 1], [[5], [True]], "data must be whole numbers for INT64"),
        ("FP32", [2], [0.5, False], "data must be numbers for FP32"),
        ("INT64", [2], [1, "1"], "data must be whole numbers for INT64"),
        ("INT64", [1], [{}], "data must be whole numbers for INT64"),
        ("INT64", [1], [2**63], "value 9223372036854775808 does not fit INT64"),
        ("INT64", [1], [2**70], "value 1180591620717411303424 does not fit INT64"),
        ("INT32", [1], [-(2**31) - 1], "value -2147483649 does not fit INT32 (-2147483648..2147483647)"),
        ("UINT8", [1], [-1], "value -1 does not fit UINT8"),
        ("FP32", [1], ["x"], "data must be numbers for FP32"),
        ("FP32", [2], [0.5, "0.5"], "data must be numbers for FP32"),
        ("FP64", [1], [10**400], "does not fit FP64"),
        ("FP32", [2], [0.5, -1e39], "value -1e+39 does not fit FP32 (-3.40"),
        ("FP32", [1], [10**39], f"value {10**39} does not fit FP32"),
        ("FP16", [2], [1e5, 0], "value 100000.0 does not fit FP16 (-65504.0..65504.0)"),
        ("BOOL", [1], [1], "data must be booleans for BOOL"),
        ("INT64", [1], 1, "data is 1; it must be a list"),
        ("INT64", [1], "1", "data is '1'; it must be a list"),
        ("INT64", [1], None, "data is None; it must be a list"),
        ("INT64", [1], {"a": 1}, "data is an object; it must be a list"),
    ],
)
def test_contradictions_of_a_listed_tensor(datatype, shape, data, message):
    with pytest.raises(InvalidInput) as error:
        tensor_from_values("keys", datatype, shape, data)
    assert message in error.value.message


@pytest.mark.parametrize("depth", [2, 100, 100_000])
def test_data_may_not_be_nested_more_deeply_than_its_shape(depth):
    data = 1
    for _ in range(depth):
        data = [data]
    with pytest.raises(InvalidInput, match="data must be whole numbers"):
        tensor_from_values("keys", "INT64", [1], data)
    for _ in range(depth):  # not by recursion, as its own end would be
        data = data[0]


def test_one_long_text_among_numbers_costs_no_more_than_it_is_long():
    data = ["x" * 100_000] + [0] * 5000
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="data must be whole numbers"):
            tensor_from_values("keys", "INT64", [5001], data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_more_elements_than_any_query_has_are_not_looked_at():
    said = "shape [3] makes 3 elements; at most 2 are taken, as many as the widest input of the largest query has"
    with pytest.raises(InvalidInput) as error:
        tensor_from_values("keys", "INT64", [3], Untouchable(), most=2)
    assert said in error.value.message
    with pytest.raises(InvalidInput) as error:
        tensor_from_field("keys", "INT64", [3], Untouchable(), most=2)
    assert said in error.value.message


def test_a_field_is_counted_before_it_is_copied():
    with pytest.raises(InvalidInput, match=r"data has 5 element\(s\); shape \[4\] needs 4"):
        tensor_from_field("keys", "INT64", [4], Untouchable())


class Untouchable:
    """Five elements that may be counted, but not read."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("INT64", "int64_contents", [-(2**63), 0, 2**63 - 1]),
        ("INT8", "int_contents", [-128, 0, 127]),
        ("UINT32", "uint_contents", [0, 1, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 1, 2**64 - 1]),
        ("FP32", "fp32_contents", [-1.5, 0.0, 0.25]),
        ("FP64", "fp64_contents", [-1e300, 0.0, 1e-300]),
        ("BOOL", "bool_contents", [True, False, True]),
    ],
)
def test_what_protobuf_can_say_comes_out(datatype, field, values):
    contents = message("InferTensorContents")()
    getattr(contents, field).extend(values)
    tensor = tensor_from_field("x", datatype, [3], getattr(contents, field))
    assert tensor.values.tolist() == values
    assert tensor.values.dtype == DATATYPES[datatype]


def test_a_value_of_a_field_that_does_not_fit_is_named():
    contents = message("InferTensorContents")(int_contents=[1, -129])
    with pytest.raises(InvalidInput, match=r"value -129 does not fit INT8 \(-128..127\)"):
        tensor_from_field("x", "INT8", [2], contents.int_contents)
