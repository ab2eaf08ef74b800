import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import JaggedKeys, bring_into_range, key_limit, unlike_behaviours
from hebe.spec import FeatureSpec, OutOfRange, Pooling

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, max_size=5), st.integers(1, 2**40), st.sampled_from(OutOfRange))
def test_keys_come_into_the_range_of_their_table_as_the_rule_says(keys, rows, rule):
    expected = {
        OutOfRange.REFUSE: lambda key: key,
        OutOfRange.WRAP: lambda key: key % rows,
        OutOfRange.CLAMP: lambda key: min(max(key, 0), rows - 1),
        OutOfRange.CLAMP_LOW: lambda key: max(key, 0),
        OutOfRange.CLAMP_HIGH: lambda key: min(key, rows - 1),
        OutOfRange.UNKNOWN: lambda key: key,
    }[rule]
    found = bring_into_range(np.array(keys, np.int64), rows, rule)
    assert found.dtype == np.int64
    assert found.tolist() == [expected(key) for key in keys]


def test_keys_in_range_are_below_the_limit_of_their_feature():
    assert {key_limit(7, rule) for rule in OutOfRange if rule is not OutOfRange.UNKNOWN} == {7}
    assert key_limit(7, OutOfRange.UNKNOWN) == 2**63, "any key that is not negative"


def test_the_keys_that_were_sent_stay_as_they_are():
    keys = np.arange(5)
    keys.flags.writeable = False
    for rule in OutOfRange:
        bring_into_range(keys, 2, rule)
    assert keys.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rule", OutOfRange)
def test_the_rule_of_a_feature_is_plain_data_where_it_is_not_the_default(rule):
    feature = FeatureSpec("item", "items", 3, Pooling.SUM, rule)
    assert ("out_of_range" in feature.to_dict()) == (rule is not OutOfRange.REFUSE)
    assert FeatureSpec(**feature.to_dict()) == feature
    with pytest.raises(ValueError, match="'wrapped' is not a valid OutOfRange"):
        FeatureSpec("item", "items", 3, Pooling.SUM, "wrapped")


PARTS = [FeatureSpec(name, name, 3, Pooling.ATTENTION) for name in ("item", "category", "shop")]
LENGTHS = st.lists(st.integers(0, 3), min_size=4, max_size=4)


def keys_of(lengths):
    """Of so many keys for each of four items; of None as many as there may be, in the fixed form."""
    if lengths is None:
        return np.ones((4, 3), np.int64)
    offsets = np.cumsum([0, *lengths])
    return JaggedKeys(np.ones(offsets[-1], np.int64), offsets)


@given(st.lists(st.one_of(st.none(), LENGTHS, st.just([3, 3, 3, 3]), st.just([1, 0, 2, 3])), min_size=3, max_size=3))
def test_the_first_item_whose_parts_of_a_behaviour_differ_in_length_is_named(lengths):
    found = unlike_behaviours({part.name: keys_of(each) for part, each in zip(PARTS, lengths, strict=True)}, PARTS)
    counts = [each or [3, 3, 3, 3] for each in lengths]
    unlike = [(part, item) for part in (1, 2) for item in range(4) if counts[part][item] != counts[0][item]]
    if not unlike:
        assert found == ""
    else:
        part, item = unlike[0]
        expected = (
            f"item {item} has {counts[0][item]} key(s) of 'item' and {counts[part][item]} of '{PARTS[part].name}'"
        )
        assert found.startswith(f"{expected}; ")


def test_a_model_without_behaviours_has_none_that_differ():
    assert unlike_behaviours({"item": keys_of([1, 0, 2, 3])}, ()) == ""
