from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import JaggedKeys
from hebe.serving.requests.errors import InvalidInput
from hebe.serving.requests.query_decoder import QueryDecoder
from hebe.serving.requests.tensors import WireTensor
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling

from .small_model import DECODER, MAX_ITEMS, SPEC


def tensor(name, array, datatype=None, shape=None):
    array = np.asarray(array)
    names = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "float64": "FP64"}
    return WireTensor(name, datatype or names[array.dtype.name], tuple(shape or array.shape), array.reshape(-1))


def inputs(items=2, **changed):
    """A valid query's tensors by name; a change of None leaves one out."""
    tensors = {
        "one": tensor("one", np.arange(items).reshape(items, 1)),
        "three": tensor("three", np.zeros((items, 3), np.int64)),
        "dense": tensor("dense", np.ones((items, 2), np.float32)),
    }
    for name, value in changed.items():
        tensors[name.replace("__", ".")] = value
    return [value for value in tensors.values() if value is not None]


@given(st.integers(1, MAX_ITEMS), st.data())
def test_fixed_keys_come_out_as_they_went_in(items, data):
    one = np.array(data.draw(st.lists(st.integers(0, 99), min_size=items, max_size=items)))[:, None]
    three = np.array(data.draw(st.lists(st.integers(0, 6), min_size=3 * items, max_size=3 * items))).reshape(-1, 3)
    dense = np.arange(2 * items, dtype=np.float32).reshape(items, 2)
    given_tensors = [tensor("one", one), tensor("three", three), tensor("dense", dense)]
    decoded = DECODER.decode(data.draw(st.permutations(given_tensors)))
    assert decoded.items == items
    np.testing.assert_array_equal(decoded.features["one"], one)
    np.testing.assert_array_equal(decoded.features["three"], three)
    np.testing.assert_array_equal(decoded.dense, dense)
    assert np.shares_memory(decoded.features["three"], three)


@given(st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=MAX_ITEMS), st.booleans())
def test_jagged_keys_come_out_item_by_item(keys, short_lengths):
    lengths = np.array([len(item) for item in keys], np.int32 if short_lengths else np.int64)
    values = np.array([key for item in keys for key in item], np.int64)
    decoded = DECODER.decode(
        inputs(
            len(keys), three=None, three__values=tensor("three.values", values),
            three__lengths=tensor("three.lengths", lengths),
        )
    )  # fmt: skip
    jagged = decoded.features["three"]
    assert isinstance(jagged, JaggedKeys)
    assert jagged.offsets.dtype == np.int64
    assert [jagged.values[a:b].tolist() for a, b in zip(jagged.offsets, jagged.offsets[1:], strict=False)] == keys


@given(st.integers(0, 5), st.integers(0, 2), st.one_of(st.integers(-(2**63), -1), st.integers(7, 2**63 - 1)))
def test_a_key_out_of_range_is_named_with_its_item(item, column, key):
    three = np.zeros((6, 3), np.int64)
    three[item, column] = key
    with pytest.raises(InvalidInput) as error:
        DECODER.decode(inputs(6, three=tensor("three", three)))
    assert error.value.message == f"input 'three': key {key} of item {item} is out of range; keys must lie in 0..6"


def test_a_jagged_key_out_of_range_is_named_with_its_item():
    values = tensor("three.values", np.array([1, 2, 7]))
    lengths = tensor("three.lengths", np.array([0, 2, 0, 1]))
    with pytest.raises(InvalidInput, match=r"input 'three\.values': key 7 of item 3 is out of range"):
        DECODER.decode(inputs(4, three=None, three__values=values, three__lengths=lengths))


def ruled(rule):
    """A decoder of one feature `f` of up to 2 lookups in 10 rows."""
    feature = FeatureSpec("f", "t", 2, Pooling.SUM, rule)
    return QueryDecoder(ModelSpec("m", "dlrm", (EmbeddingTableSpec("t", 10, 4),), (feature,)), MAX_ITEMS)


@pytest.mark.parametrize("form", ["fixed", "jagged"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (OutOfRange.WRAP, [3, 9, 7, 8]),
        (OutOfRange.CLAMP, [3, 9, 9, 0]),
        (OutOfRange.CLAMP_HIGH, "key -12 of item 1 is out of range; keys must not be negative"),
        (OutOfRange.CLAMP_LOW, "key 10000000000007 of item 1 is out of range; keys must be at most 9"),
        (OutOfRange.UNKNOWN, "key -12 of item 1 is out of range; keys must not be negative"),
    ],
)
def test_keys_out_of_range_are_taken_as_the_feature_says(rule, expected, form):
    keys = np.array([3, 9, 10**13 + 7, -12])
    tensors = [tensor("f", keys, shape=(2, 2))]
    if form == "jagged":
        tensors = [tensor("f.values", keys), tensor("f.lengths", np.array([2, 2]))]
    if isinstance(expected, str):
        with pytest.raises(InvalidInput, match=expected):
            ruled(rule).decode(tensors)
        return
    decoded = ruled(rule).decode(tensors).features["f"]
    decoded = decoded.values if isinstance(decoded, JaggedKeys) else decoded
    assert decoded.ravel().tolist() == expected


def test_new_keys_are_taken_as_they_are_up_to_the_end_of_int64():
    keys = np.array([3, 10, 2**63 - 1, 0])
    decoded = ruled(OutOfRange.UNKNOWN).decode([tensor("f", keys, shape=(2, 2))]).features["f"]
    assert decoded.ravel().tolist() == keys.tolist()


def test_keys_of_which_the_model_takes_the_maximum_are_sent_whole():
    feature = FeatureSpec("f", "t", 3, Pooling.CONCAT, whole=True)
    decoder = QueryDecoder(ModelSpec("m", "imported", (EmbeddingTableSpec("t", 10, 4),), (feature,)), MAX_ITEMS)
    values = tensor("f.values", np.arange(6))
    assert decoder.decode([values, tensor("f.lengths", np.array([3, 3]))]).items == 2
    assert decoder.decode([tensor("f", np.zeros((2, 3), np.int64))]).items == 2
    with pytest.raises(InvalidInput) as error:
        decoder.decode([tensor("f.values", np.arange(5)), tensor("f.lengths", np.array([3, 2]))])
    assert error.value.message == (
        "input 'f.lengths': length 2 of item 1 is too short; the model takes the maximum over all 3 keys of feature "
        "'f': send 3 for each item, or 'f' [items, 3]"
    )
    with pytest.raises(InvalidInput, match=r"length 4 of item 0 is out of range"):
        decoder.decode([values, tensor("f.lengths", np.array([4, 2]))])


@pytest.mark.parametrize("rule", OutOfRange)
def test_keys_in_range_are_never_copied(rule):
    keys = np.array([[0, 9]])
    assert np.shares_memory(ruled(rule).decode([tensor("f", keys)]).features["f"], keys)


def jagged(values, lengths):
    return {
        "three": None,
        "three__values": tensor("three.values", values),
        "three__lengths": tensor("three.lengths", lengths),
    }


NONE = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (inputs(three=None), "input(s) missing: three"),
        (inputs(dense=None, one=None), "input(s) missing: one, dense"),
        ([], "input(s) missing: one, three, dense"),
        (inputs(four=tensor("four", NONE)), "input 'four' is unknown to model m; its inputs are one, three, dense"),
        ([*inputs(), inputs()[0]], "input 'one' is given twice"),
        ([*inputs(), inputs()[2]], "input 'dense' is given twice"),
        (inputs(one=tensor("one", np.zeros((2, 1), np.int32))), "input 'one': datatype is INT32; it must be INT64"),
        (inputs(dense=tensor("dense", np.zeros((2, 2)))), "input 'dense': datatype is FP64; it must be FP32"),
        (inputs(one=tensor("one", np.zeros(2, np.int64))), "input 'one': shape is [2]; it must be [items, 1]"),
        (inputs(three=tensor("three", np.zeros((2, 2), np.int64))), "shape is [2, 2]; it must be [items, 3]"),
        (inputs(dense=tensor("dense", np.zeros((2, 3), np.float32))), "shape is [2, 3]; it must be [items, 2]"),
        (inputs(dense=tensor("dense", np.zeros((3, 2), np.float32))), "'dense': has 3 item(s); input 'one' has 2"),
        (inputs(0), "input 'one': has no items; a query needs at least 1"),
        (inputs(21), "input 'one': has 21 items; a query may have at most 20"),
        (inputs(**jagged(NONE, np.array([0]))), "input 'three.lengths': has 1 item(s); input 'one' has 2"),
        (inputs(**jagged([1], np.array([0, 2]))), "lengths sum to 2; 'three.values' has 1 key(s)"),
        (inputs(**jagged([1, 2], np.array([1, 0]))), "lengths sum to 1; 'three.values' has 2 key(s)"),
        (inputs(**jagged([1], np.array([2, -1]))), "length -1 of item 1 is out of range; it must lie in 0..3"),
        (inputs(**jagged([1] * 4, np.array([4, 0]))), "length 4 of item 0 is out of range; it must lie in 0..3"),
        (inputs(**(jagged([1], np.array([1, 0])) | {"three__values": None})), "input 'three.values' is missing"),
        (inputs(**(jagged([1], np.array([1, 0])) | {"three__lengths": None})), "input 'three.lengths' is missing"),
        (inputs(three__values=tensor("three.values", NONE), three__lengths=tensor("three.lengths", np.array([0, 0]))),
         "input 'three' is given both fixed and as .values and .lengths"),
        (inputs(**jagged(np.zeros((1, 1), np.int64), np.array([1, 0]))), "shape is [1, 1]; it must be [total keys]"),
        (inputs(**jagged([1], np.array([[1, 0]]))), "shape is [1, 2]; it must be [items]"),
        (inputs(**jagged([1], np.array([1, 0], np.float32))), "datatype is FP32; it must be INT64 or INT32"),
        ([*inputs(**jagged([1], np.array([1, 0]))), tensor("three.values", NONE)], "'three.values' is given twice"),
        ([*inputs(**jagged([1], np.array([1, 0]))), tensor("three.lengths", NONE)], "'three.lengths' is given twice"),
    ],
)  # fmt: skip
def test_each_contradiction_names_field_and_limit(tensors, message):
    with pytest.raises(InvalidInput) as error:
        DECODER.decode(tensors)
    assert message in error.value.message


def test_parts_of_a_behaviour_have_as_many_keys_each():
    tables = (EmbeddingTableSpec("items", 9, 4), EmbeddingTableSpec("shops", 9, 4))
    features = (FeatureSpec("item", "items", 3, Pooling.ATTENTION), FeatureSpec("shop", "shops", 3, Pooling.ATTENTION))
    decoder = QueryDecoder(ModelSpec("m", "din", tables, features), MAX_ITEMS)

    def behaviours(items, shops):
        given_lengths = (("item", items), ("shop", shops))
        return [
            tensor(f"{name}.{suffix}", array)
            for name, lengths in given_lengths
            for suffix, array in (("values", np.ones(sum(lengths), np.int64)), ("lengths", np.array(lengths)))
        ]

    assert decoder.decode(behaviours([2, 0, 3], [2, 0, 3])).items == 3
    with pytest.raises(InvalidInput, match=r"^item 1 has 0 key\(s\) of 'item' and 1 of 'shop'; they are parts of one"):
        decoder.decode(behaviours([2, 0, 3], [2, 1, 2]))
    fixed = tensor("shop", np.ones((2, 3), np.int64))
    with pytest.raises(InvalidInput, match=r"^item 0 has 2 key\(s\) of 'item' and 3 of 'shop'"):
        decoder.decode([*behaviours([2, 3], [])[:2], fixed])
    assert decoder.decode([*behaviours([3, 3], [])[:2], fixed]).items == 2
    warmed = decoder.decode(behaviours([2, 0], [1, 1]), complete=False)
    assert warmed.items == 2, "keys alone, which no DenseNet will see"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_dense_values_must_be_finite(value, at):
    dense = np.zeros(4, np.float32)
    dense[at] = value
    with pytest.raises(InvalidInput, match=rf"value {value} of item {at // 2}, column {at % 2}; every value"):
        DECODER.decode(inputs(dense=tensor("dense", dense, shape=(2, 2))))


def test_large_finite_values_pass():
    most = np.finfo(np.float32).max
    decoded = DECODER.decode(inputs(dense=tensor("dense", np.array([[most, -most], [most, most]], np.float32))))
    assert decoded.dense.max() == most


def test_a_model_without_dense_knows_no_dense():
    spec = ModelSpec("n", "ncf", (SPEC.tables[0],), (SPEC.features[0],))
    with pytest.raises(InvalidInput, match="input 'dense' is unknown to model n; its inputs are one"):
        QueryDecoder(spec, 10).decode(inputs(three=None))
    assert QueryDecoder(spec, 10).decode(inputs(three=None, dense=None)).dense is None


def test_no_input_has_more_elements_than_the_widest_of_the_largest_query():
    assert DECODER.most_values == 3 * MAX_ITEMS
    wide = ModelSpec("n", "dlrm", tables=SPEC.tables[:1], features=(SPEC.features[0],), dense_dim=100)
    assert QueryDecoder(wide, 10).most_values == 1000
