from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.scheduling.partitioning import PartitionChooser, deal_instances


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=80), st.data())
def test_partitions_differ_by_at_most_one_of_each_type_and_in_all(types, data):
    partitions = data.draw(st.integers(1, len(types)))
    dealt = deal_instances(types, partitions)
    assert len(dealt) == len(types)
    for counted in [types, *({kind} for kind in set(types))]:
        sizes = Counter(part for part, kind in zip(dealt, types, strict=True) if kind in counted)
        numbers = [sizes[part] for part in range(partitions)]
        assert sum(numbers) == sum(kind in counted for kind in types)
        assert max(numbers) - min(numbers) <= 1


def test_thousands_of_instances_have_the_same_mix_everywhere():
    types = ["gpu"] * 1000 + ["cpu"] * 3000
    dealt = deal_instances(types, 20)
    assert set(Counter(zip(dealt, types, strict=True)).values()) == {50, 150}


def test_no_instances_are_one_empty_partition():
    assert deal_instances([], 1) == []


@pytest.mark.parametrize("partitions", [0, -1, 3])
def test_a_number_of_partitions_that_makes_no_sense_is_refused(partitions):
    with pytest.raises(ValueError, match=f"partitions is {partitions}: must be from 1 to the number of instances, 2"):
        deal_instances(["gpu", "cpu"], partitions)


def test_queries_take_turns():
    chooser = PartitionChooser(3)
    assert [chooser.choose() for _ in range(5)] == [0, 1, 2, 0, 1]


def test_queries_go_where_the_least_waits():
    chooser = PartitionChooser(3)
    assert [chooser.choose(waiting) for waiting in ([2, 1, 3], [2.5, 2, 0.5], [0, 1, 1])] == [1, 2, 0]


def test_equals_take_turns_also_after_a_choice():
    chooser = PartitionChooser(4)
    assert chooser.choose([1, 1, 0, 1]) == 2
    assert [chooser.choose([1, 1, 1, 1]) for _ in range(4)] == [3, 0, 1, 2]
    assert chooser.choose([0, 0, 1, 1]) == 0


def test_what_waits_must_be_given_for_every_partition():
    with pytest.raises(ValueError, match="2 entries for 3 partitions"):
        PartitionChooser(3).choose([1, 2])
    with pytest.raises(ValueError, match="at least 1"):
        PartitionChooser(0)
